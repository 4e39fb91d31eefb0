"""What tasks report of their progress: the newest value of each, written with the next tick of the heartbeats."""

from collections.abc import Sequence

from horsies._pg.transient import is_transient
from horsies_worker.child.jobs import Job
from horsies_worker.claim.claimed_task import OwnedTasks
from horsies_worker.database.session import Session
from horsies_worker.output.log_context import about, log


class Progress:
    def __init__(self, session: Session, owned: OwnedTasks) -> None:
        self._session = session
        self._owned = owned
        self._newest: dict[tuple[str, int], str] = {}

    def on_progress(self, job: Job, text: str) -> None:
        self._newest[job.task_id, job.generation] = text

    async def run_once(self) -> None:
        if not self._newest:
            return
        values, self._newest = self._newest, {}
        written: set[str] = set()
        try:
            written = await self._write([(*key, text) for key, text in values.items()])
        finally:
            # Try again what was not written (the row was locked, or the database is away), unless newer values came.
            left = {key: text for key, text in values.items() if key[0] not in written and self._owned.find(*key)}
            self._newest = left | self._newest

    async def _write(self, items: Sequence[tuple[str, int, str]]) -> set[str]:
        """Write these. A value that cannot be stored (a number of 200,000 digits) is dropped, alone."""
        try:
            return await self._session.run(lambda c: self._session.queries.write_progress(c, items))
        except Exception as error:
            if is_transient(error):
                raise
            if len(items) == 1:
                log.warning("task %s: its progress cannot be stored: %s", items[0][0], error, extra=about(items[0][0]))
                return {items[0][0]}
        half = len(items) // 2
        return await self._write(items[:half]) | await self._write(items[half:])
