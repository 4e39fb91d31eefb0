"""Deletes what retention no longer wants, once an hour, in small batches with a rest after each.

Never in a hurry: old rows harm nobody, a long delete does. One pruner works at a time per database and schema; whoever
finds another at work leaves it to that one.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from horsies._text import plural
from horsies.config import AppConfig
from horsies_worker.queries import PRUNE_LOCK, Queries
from horsies_worker.service import Service
from horsies_worker.session import SET_LOCAL_CLAIM_SETTINGS, Session

_log = logging.getLogger("horsies.worker")

EVERY_S: Final = 3_600.0
FIRST_AFTER_S: Final = 60.0
"""A worker that starts has more urgent things to do, and a fleet that starts should not do this all at once."""
BATCH: Final = 500
REST: Final = 3.0
"""Rest this many times as long as the batch took. With two million old rows (115 s) the p99 of claims beside it stayed
below twice the normal one."""
_BEGINNING: Final = datetime(1, 1, 1, tzinfo=UTC)


class _Busy(Exception):
    """Another worker prunes at this moment."""


class Pruner(Service):
    name = "pruner"

    def __init__(self, config: AppConfig, session: Session, queries: Queries) -> None:
        super().__init__(EVERY_S, config.resilience)
        self._settings = config.recovery
        self._session = session
        self._queries = queries

    async def run(self) -> None:
        await asyncio.sleep(FIRST_AFTER_S * random.uniform(0.5, 1.5))
        await super().run()

    async def run_once(self) -> None:
        """Everything that is old now. The connection is closed afterwards: an hour is long."""
        gone: dict[str, int] = {}
        try:
            async for what, count in self._rounds():
                gone[what] = gone.get(what, 0) + count
        except _Busy:
            pass
        finally:
            await self._session.close()
            for what, count in gone.items():
                if count:
                    _log.info(
                        "pruner: old records deleted: %s", plural(count, what.removesuffix("s").replace("_", " "))
                    )

    async def _rounds(self) -> AsyncIterator[tuple[str, int]]:
        settings = self._settings
        by_id = (("heartbeats", settings.heartbeat_retention_hours),
                 ("worker_states", settings.worker_state_retention_hours))  # fmt: skip
        for what, hours in by_id:
            if hours is not None:
                async for count in self._walk(what, hours, 0):
                    yield what, count
        if settings.worker_state_retention_hours is not None:
            async for count in self._drain("worker_instances", settings.worker_state_retention_hours):
                yield "worker_instances", count
            async for count in self._drain("task_sets", settings.worker_state_retention_hours):
                yield "task_sets", count
        if settings.terminal_record_retention_hours is None:
            return
        async for count in self._walk("tasks", settings.terminal_record_retention_hours, _BEGINNING):
            yield "tasks", count
        # a name that is forgotten has the short grace of one that no worker ever knew: not before the long one is over
        retired_h = 2 * settings.retired_task_grace_ms // 3_600_000
        async for count in self._drain("task_names", max(settings.terminal_record_retention_hours, retired_h)):
            yield "task_names", count
        for what in ("workflow_nodes", "workflows"):
            async for count in self._drain(what, settings.terminal_record_retention_hours):
                yield what, count

    async def _walk(self, what: str, hours: int, cursor: Any) -> AsyncIterator[int]:
        """Batch after batch, each from where the last one ended."""
        while True:
            row = await self._batch(f"prune_{what}", timedelta(hours=hours), cursor, BATCH)
            yield row["deleted"]
            if row["deleted"] < BATCH:
                return
            cursor = row["reached"]

    async def _drain(self, what: str, hours: int) -> AsyncIterator[int]:
        while True:
            row = await self._batch(f"prune_{what}", timedelta(hours=hours), BATCH)
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
        async with connection.transaction(isolation="read_committed"):
            if self._session.pooled:
                await connection.execute(SET_LOCAL_CLAIM_SETTINGS)
            if not await connection.fetchval(self._queries.sql("try_prune_lock"), PRUNE_LOCK):
                raise _Busy
            return await connection.fetchrow(self._queries.sql(name), *values)
