"""Deletes what retention no longer wants, once an hour, in small batches with a rest after each.

Never in a hurry: old rows harm nobody, a long delete does. One pruner works at a time per database and schema; whoever
finds another at work leaves it to that one.
"""

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from horsies._pg.transient import is_refusal, is_transient
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
            for what, batches in self._kinds():
                try:
                    async for count in batches:
                        gone[what] = gone.get(what, 0) + count
                except _Busy:
                    break
                except Exception as error:
                    if is_transient(error) or is_refusal(error):
                        raise
                    _log.error(
                        "pruner: old %s cannot be deleted; the others are", what.replace("_", " "), exc_info=error
                    )
        finally:
            await self._session.close()
            for what, count in gone.items():
                if count:
                    _log.info(
                        "pruner: old records deleted: %s", plural(count, what.removesuffix("s").replace("_", " "))
                    )

    def _kinds(self) -> Iterator[tuple[str, AsyncIterator[int]]]:
        """Each kind of record with its batches, in the order in which they go."""
        settings = self._settings
        if (hours := settings.heartbeat_retention_hours) is not None:
            yield "heartbeats", self._walk("heartbeats", hours, 0)
        if (hours := settings.worker_state_retention_hours) is not None:
            yield "worker_states", self._walk("worker_states", hours, 0)
            yield "worker_instances", self._drain("worker_instances", hours)
            yield "task_sets", self._drain("task_sets", hours)
        if (hours := settings.terminal_record_retention_hours) is not None:
            yield "tasks", self._walk("tasks", hours, _BEGINNING)
            # a name that is forgotten has the short grace of one that no worker ever knew: not before the long one ends
            retired_h = 2 * settings.retired_task_grace_ms // 3_600_000
            yield "task_names", self._drain("task_names", max(hours, retired_h))
            for what in ("workflow_nodes", "workflows"):
                yield what, self._drain(what, hours)

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
