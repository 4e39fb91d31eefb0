"""Schedules whose slot cannot be written for now, because another session has inserted a row with the id of its task or
run and has not committed. The ids of slots can be computed, so that two schedulers write one task: a producer can do
that too. Such a schedule waits apart, and the others run in time.
"""

import asyncio
import logging
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from horsies._pg.locks import holder
from horsies._text import span
from horsies_worker.database.session import Session

_log = logging.getLogger("horsies.scheduler")

R = TypeVar("R")

BATCH_WAIT_MS: Final = 500
"""How long the slots of all due schedules wait together. Other schedulers pass over rows that are locked, so only a
session that is none of ours is waited for, or a change of the schema."""
PART_WAIT_MS: Final = 50
"""The same for parts of a batch, of which some are known to wait."""
PARTS_S: Final = 2.0
"""After so long the parts of a batch that have not been tried are left for the next one."""
LOOK_AFTER_S: Final = 0.2
"""A write that takes longer is looked at from another connection: only while it waits can the holder be named."""
MIN_APART_S: Final = 1.0
MAX_APART_S: Final = 10.0
TOLD_EVERY_S: Final = 60.0
_NAMED: Final = 3


class SlotBlocked(Exception):
    """One of the slots waits for another session."""


class OutOfTime(Exception):
    """Too many parts of the batch have waited: the others are not tried."""


@dataclass
class _Apart:
    version: int | None
    since: float
    apart_s: float = MIN_APART_S
    again: float = 0.0
    told: float = float("-inf")


class BlockedSchedules:
    """The schedules that wait. Pure: the caller says what time it is."""

    def __init__(self) -> None:
        self._schedules: dict[str, _Apart] = {}

    def __bool__(self) -> bool:
        return bool(self._schedules)

    def hold(self, name: str, version: int | None, now: float) -> None:
        """Its slot could not be written: do not try again at once. `version`: of a schedule made at run time."""
        one = self._schedules.setdefault(name, _Apart(version, now))
        one.version, one.again = version, now + one.apart_s
        one.apart_s = min(2 * one.apart_s, MAX_APART_S)

    def release(self, name: str, now: float) -> float | None:
        """Its slot was written; returns how long it has waited, None if it has not."""
        one = self._schedules.pop(name, None)
        return None if one is None else now - one.since

    def waiting(self, now: float) -> dict[str, int | None]:
        """The schedules that are not tried now, each with its version."""
        return {name: one.version for name, one in self._schedules.items() if one.again > now}

    def due(self, now: float) -> list[str]:
        """Those that are to be tried again."""
        return [name for name, one in self._schedules.items() if one.again <= now]

    def forget_untried(self, names: Sequence[str], now: float) -> None:
        """These were due, and no slot of theirs was tried: another scheduler has written it, or none is due now."""
        for name in names:
            if name in self._schedules and self._schedules[name].again <= now:
                del self._schedules[name]

    def next_s(self, now: float) -> float:
        """Seconds until one is tried again."""
        return min((one.again for one in self._schedules.values()), default=float("inf")) - now

    def to_tell(self, names: Sequence[str], now: float) -> list[str]:
        """Those of these schedules that the log has not named for a while."""
        late = [name for name in names if self._schedules[name].told <= now - TOLD_EVERY_S]
        for name in late:
            self._schedules[name].told = now
        return late


class Blockers:
    """Finds out for which sessions a statement waits."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._found: Sequence[Mapping[str, Any]] = ()

    async def during(self, pid: int, work: Awaitable[R]) -> R:
        """Await the work of the server process `pid`, and look what it waits for if it takes long."""
        self._found = ()
        looking = asyncio.ensure_future(self._look(pid))
        try:
            return await work
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    async def _look(self, pid: int) -> None:
        await asyncio.sleep(LOOK_AFTER_S)
        session = self._session.another("scheduler locks")
        try:
            self._found = await session.ask("blocking_sessions", pid)
        except Exception as error:
            _log.debug("scheduler: the holder of a lock could not be read", exc_info=error)
        finally:
            await session.close()

    def tell(self, names: Sequence[str]) -> None:
        """Log which schedules wait, and for whom."""
        more = f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""
        who = " and ".join(map(_described, self._found[:_NAMED])) or "a session that was not seen"
        _log.warning(
            "schedule %r%s: its slot waits, because another session has inserted a row with the same id and has not "
            "committed: %s; other schedules run", names[0], more, who,
        )  # fmt: skip


def _described(row: Mapping[str, Any]) -> str:
    since = f", open for {span(row['age'])}" if row["age"] is not None else ""
    return f"{holder(row)}{since} (to end it: SELECT pg_terminate_backend({row['pid']}))"
