"""Deletes records that are older than their retention, once an hour, in small batches with a rest after each.

Small batches, because a long delete slows other statements and old rows do no harm. One pruner works at a time per
database and schema; the others skip their turn.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from horsies._pg.locks import PRUNE_LOCK
from horsies._pg.transient import is_refusal, is_transient
from horsies._text import plural
from horsies.config import AppConfig
from horsies.events import RowsPruned
from horsies_worker.database.lock_watch import LockWatch
from horsies_worker.database.session import Session
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.output.log_context import log
from horsies_worker.service import Service

EVERY_S: Final = 3_600.0
FIRST_AFTER_S: Final = 60.0
"""The average delay of the first run: a starting worker has more urgent work, and many workers may start at once."""
BATCH: Final = 500
REST: Final = 3.0
"""Rest this many times as long as the batch took. With two million old rows (115 s) the p99 of claims beside it stayed
below twice the normal one."""
RATE_HOURS: Final = 1
"""A rate that was not used for so long says nothing. Not sooner: the server's clock may be set back by a little."""
KEY_HOURS: Final = 1
"""The row of a key that is free again stays so long: it knows which sends of the key were made."""
_BEGINNING: Final = datetime(1, 1, 1, tzinfo=UTC)


class _Busy(Exception):
    """Another worker is pruning."""


class Pruner(Service):
    name = "pruner"

    def __init__(self, session: Session, config: AppConfig, bus: EventBus = SILENT) -> None:
        super().__init__(session, config.resilience, EVERY_S)
        self._bus = bus
        self._settings = config.recovery
        self._watch = LockWatch("pruner", PRUNE_LOCK, session, limit=1)

    async def run(self) -> None:
        await asyncio.sleep(FIRST_AFTER_S * random.uniform(0.5, 1.5))
        await super().run()

    async def run_once(self) -> None:
        """Delete everything that is old now. The connection is closed until the next run."""
        gone: dict[str, int] = {}
        try:
            for what, batches in self._kinds():
                try:
                    async for count in batches:
                        gone[what] = gone.get(what, 0) + count
                except _Busy:
                    await self._watch.refused()
                    break
                except Exception as error:
                    if is_transient(error) or is_refusal(error):
                        raise
                    log.error(
                        "pruner: old %s cannot be deleted; other kinds continue", what.replace("_", " "), exc_info=error
                    )
        finally:
            await self._session.close()
            for what, count in gone.items():
                if count:
                    self._bus.emit(RowsPruned(what, count))
                    log.info("pruner: old records deleted: %s", plural(count, what.removesuffix("s").replace("_", " ")))

    def _kinds(self) -> Iterator[tuple[str, AsyncIterator[int]]]:
        """Each kind of record with its batches, in the order of deletion."""
        settings = self._settings
        # Without a record of who knew it, a name has the short grace: keep the records until its long grace ends.
        retired_h = 2 * settings.retired_task_grace_ms // 3_600_000
        yield "rate_limits", self._drain("rate_limits", timedelta(hours=RATE_HOURS))
        # `keep_for` of a task overrides the retention, also where there is none
        yield "kept_tasks", self._drain("kept_tasks")
        yield "unique_keys", self._drain("unique_keys", timedelta(hours=KEY_HOURS))
        if (hours := settings.heartbeat_retention_hours) is not None:
            yield "heartbeats", self._walk("heartbeats", hours, 0)
        if (hours := settings.worker_state_retention_hours) is not None:
            yield "worker_states", self._walk("worker_states", hours, 0)
            yield "worker_instances", self._drain("worker_instances", timedelta(hours=max(hours, retired_h)))
            yield "task_sets", self._drain("task_sets", timedelta(hours=hours))
        if (hours := settings.terminal_record_retention_hours) is not None:
            yield "tasks", self._walk("tasks", hours, _BEGINNING)
            yield "task_names", self._drain("task_names", timedelta(hours=max(hours, retired_h)))
            for what in ("workflow_nodes", "workflows"):
                yield what, self._drain(what, timedelta(hours=hours))

    async def _walk(self, what: str, hours: int, cursor: Any) -> AsyncIterator[int]:
        """Delete batch after batch, each from the end of the last one."""
        while True:
            row = await self._batch(f"prune_{what}", timedelta(hours=hours), cursor, BATCH)
            yield row["deleted"]
            if row["deleted"] < BATCH:
                return
            cursor = row["reached"]

    async def _drain(self, what: str, *ages: timedelta) -> AsyncIterator[int]:
        while True:
            row = await self._batch(f"prune_{what}", *ages, BATCH)
            yield row["deleted"]
            if not row["deleted"]:
                return

    async def _batch(self, name: str, *values: Any) -> Any:
        started = time.monotonic()
        row = await self._session.run(lambda connection: self._one_batch(connection, name, values))
        if row["deleted"]:
            await asyncio.sleep(REST * (time.monotonic() - started))
        return row

    async def _one_batch(self, connection: Any, name: str, values: tuple[Any, ...]) -> Any:
        async with self._session.transaction(connection):
            if not await connection.fetchval(self._queries.sql("try_prune_lock"), PRUNE_LOCK):
                raise _Busy
            return await connection.fetchrow(self._queries.sql(name), *values)
