"""What tasks report of their progress: the newest value of each, written with the next tick of the heartbeats."""

from collections.abc import Callable, Sequence

from horsies._pg.refusals import worded
from horsies_worker.child.jobs import Job
from horsies_worker.claim.claimed_task import OwnedTasks
from horsies_worker.database.session import Session
from horsies_worker.database.split_batch import write_or_split
from horsies_worker.output.log_context import about, log

Reported = tuple[str, int, str]
"""Task id, claim generation, and the value as JSON text."""


class Progress:
    def __init__(self, session: Session, owned: OwnedTasks, end_idle_pause: Callable[[], None] = lambda: None) -> None:
        """`end_idle_pause`: make the next tick come soon, also where the worker has been idle until now."""
        self._session = session
        self._owned = owned
        self._end_idle_pause = end_idle_pause
        self._newest: dict[tuple[str, int], str] = {}

    def on_progress(self, job: Job, text: str) -> None:
        self._newest[job.task_id, job.generation] = text
        self._end_idle_pause()

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

    async def _write(self, items: Sequence[Reported]) -> set[str]:
        """Write these. A value that cannot be stored (a number of 200,000 digits) is dropped, alone."""

        async def write(part: Sequence[Reported]) -> set[str]:
            return await self._session.run(lambda c: self._session.queries.write_progress(c, part))

        def drop(item: Reported, error: Exception) -> set[str]:
            log.warning("task %s: its progress cannot be stored: %s", item[0], worded(error), extra=about(item[0]))
            return {item[0]}

        return set[str]().union(*await write_or_split(items, write, drop))
