"""Operations on unique keys: list those that are taken, free one. `app.get_broker().unique_keys`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Final

from horsies._checks import Checks
from horsies._pg.rows import FromRow
from horsies.operate.session import Fetch, OperatorSession
from horsies.status import TaskStatus

MOST: Final = 10_000
_TIMEOUT_MS: Final = 5_000


@dataclass(frozen=True, slots=True)
class TakenKey(FromRow):
    """A unique key that is taken, and the task that holds it."""

    task_name: str
    key: str
    task_id: str
    since: datetime
    """The first send of the task that holds it."""
    until: datetime | None
    """The end of its `unique_for`; None: it is taken for as long as the task has not ended."""
    replaced: int
    """How often a later send has replaced the arguments of the task."""
    status: TaskStatus | None
    """Of the task; None: it was pruned."""


@dataclass(frozen=True, slots=True)
class Release:
    """What became of a key that was to be freed."""

    was_kept: bool
    """Its time had not ended, and has now."""
    holders: tuple[str, ...]
    """The tasks that have not ended, and hold it all the same: cancel them, or let them end."""

    @property
    def is_free(self) -> bool:
        return not self.holders


class KeyControl:
    """The operations on unique keys, all coroutines."""

    def __init__(self, session: OperatorSession) -> None:
        self._session = session

    async def list(self, task_name: str | None = None, key: str | None = None, limit: int = 100) -> "list[TakenKey]":
        """The keys that are taken, of one task or of all; the last to end first, then those without a time."""
        checks = Checks("unique_keys")
        checks.text("task_name", task_name, optional=True)
        checks.text("key", key, optional=True)
        checks.integer("limit", limit, 1, MOST)
        checks.finish()
        rows = await self._session.read(lambda fetch: fetch("list_unique_keys", task_name, key, limit))
        return [
            TakenKey.from_row({**row, "status": None if row["status"] is None else TaskStatus(row["status"])})
            for row in rows
        ]

    async def release(self, task_name: str, key: str) -> Release:
        """End the time of a key's `unique_for`. A task that has not ended holds its key all the same."""
        checks = Checks("unique_keys")
        checks.text("task_name", task_name)
        checks.text("key", key)
        checks.finish()

        async def free(fetch: Fetch) -> Release:
            freed = await fetch("release_unique_key", task_name, key)
            holders = await fetch("live_key_holders", task_name, key)
            return Release(bool(freed), tuple(row["id"] for row in holders))

        return await self._session.bounded(free, _TIMEOUT_MS)
