"""Rates over a window, counted slot by slot and kept.

A slot that has passed does not change, so it is counted once. One refresh reads a bounded number of rows: a long window
of a busy queue takes several refreshes, the newest slots first, and `Rate.counted_s` says how far back they have
come. Rates are counted, never extrapolated: a batch can write the first forty ends of a slot in one instant.
"""

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from horsies.operate.session import Fetch
from horsies_tui.data.models import Rate, Series

SLOTS: Final = 40
SETTLED: Final = timedelta(seconds=5)
"""A row has the time of its statement but is visible after its commit, so younger rows are counted again next time."""
FIRST_LOOK: Final = 200
"""The number of rows of each slot that the first statement of a refresh counts at most."""
LOOK: Final = 8_000
LOOK_ROWS: Final = 2_000
"""The same for a statement that continues one slot: with an index-only scan, and when it reads rows."""
SPENT_S: Final = 0.006
"""A refresh stops counting after this long, and the next one continues."""
SHOWN_SHARE: Final = 0.2
"""The current slot is shown after this share of it, because a batch in its first instant is no rate."""
NOW_SPAN: Final = timedelta(seconds=60)
"""The current rates cover this long, or one slot of a longer window; less when the bound of rows is reached."""
LOOK_NOW: Final = 5_000
LOOK_ROWS_NOW: Final = 2_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_SHORTEST_S: Final = 0.001
_TICK: Final = timedelta(microseconds=1)
_MILLISECOND: Final = timedelta(milliseconds=1)


@dataclass(slots=True)
class Tally:
    """The number of tasks, of failed tasks, and of tasks in each bucket of waiting times."""

    tasks: int = 0
    failed: int = 0
    waits: Counter[int] = field(default_factory=Counter[int])

    def add(self, row: Mapping[str, Any]) -> None:
        self.tasks += row["tasks"]
        self.failed += row.get("failed", 0)
        if row.get("waited") is not None:
            self.waits[row["waited"]] += row["tasks"]

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.tasks + other.tasks, self.failed + other.failed, self.waits + other.waits)

    def wait(self, share: float) -> float:
        """A percentile of the waiting times in seconds, to within a tenth; 0 when no task started."""
        left = share * self.waits.total()
        for bucket, tasks in sorted(self.waits.items()):
            left -= tasks
            if left <= 0:
                return 0.0 if bucket < _INSTANT else 2 ** ((bucket + 0.5) / 8)
        return 0.0


_INSTANT: Final = -80
"""Buckets below this are waits of less than a millisecond."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Convert a time to a value of the counted column; `low` is excluded from a range and lies just before it."""

    low: Callable[[datetime], Any]
    high: Callable[[datetime], Any]


def id_at(moment: datetime) -> str:
    """The prefix of the first ids of this millisecond."""
    digits = f"{(moment - _EPOCH) // _MILLISECOND:012x}"
    return f"{digits[:8]}-{digits[8:]}"


def moment_of(task_id: str | None) -> datetime | None:
    """When an id was made, by its sender's clock; None when it is not a UUIDv7."""
    try:
        return _EPOCH + int((task_id or "")[:13].replace("-", ""), 16) * _MILLISECOND
    except (ValueError, OverflowError):
        return None


BY_END: Final = Bounds(lambda moment: moment - _TICK, lambda moment: moment)
BY_ID: Final = Bounds(id_at, id_at)


@dataclass(slots=True)
class _Slot:
    start: datetime
    end: datetime
    reached: Any
    settled: Tally = field(default_factory=Tally)
    """The tally up to `reached`."""
    young: Tally = field(default_factory=Tally)
    """The tally from there to now, which every refresh counts again."""
    is_whole: bool = False
    is_behind: bool = False
    """More rows are left to count."""


class Slots:
    """The slots of one window for one column."""

    def __init__(self, slot_s: float, statement: str, bounds: Bounds, look: int) -> None:
        self._width = timedelta(seconds=slot_s)
        self._statement = statement
        self._bounds = bounds
        self._look = look
        self._slots: dict[int, _Slot] = {}

    async def count(self, fetch: Fetch, now: datetime) -> None:
        """Count every slot up to now, within the bounds of one refresh."""
        newest = (now - _EPOCH) // self._width
        self._slots = {
            number: self._slots.get(number) or self._new(number) for number in range(newest, newest - SLOTS, -1)
        }
        began = time.monotonic()
        asked = [slot for slot in self._slots.values() if not slot.is_whole]
        # first a few rows of each new slot, which is often all; then the slots with more rows, the newest first
        new = [slot for slot in asked if not slot.is_behind]
        if new:
            await self._count(fetch, new, now, FIRST_LOOK)
        for slot in asked:
            while slot.is_behind:
                await self._count(fetch, [slot], now, self._look)
                if time.monotonic() - began > SPENT_S:
                    return

    def _new(self, number: int) -> _Slot:
        start = _EPOCH + number * self._width
        return _Slot(start, start + self._width, self._bounds.low(start))

    async def _count(self, fetch: Fetch, asked: Sequence[_Slot], now: datetime, look: int) -> None:
        safe = now - SETTLED
        ranges: list[tuple[_Slot, bool, Any, Any]] = []
        for slot in asked:
            if slot.start < safe:
                ranges.append((slot, True, slot.reached, self._bounds.high(min(slot.end, safe))))
            if slot.end > safe:
                young = (self._bounds.low(max(slot.start, safe)), self._bounds.high(min(slot.end, now + _TICK)))
                ranges.append((slot, False, *young))
            slot.young, slot.is_behind = Tally(), False
        found: dict[int, Tally] = {}
        reached: dict[int, Any] = {}
        froms, untils = [one[2] for one in ranges], [one[3] for one in ranges]
        for row in await fetch(self._statement, froms, untils, look):
            found.setdefault(row["n"], Tally()).add(row)
            if row["reached"] is not None:
                reached[row["n"]] = max(reached.get(row["n"], row["reached"]), row["reached"])
        for number, (slot, is_settled, _, _) in enumerate(ranges, 1):
            tally = found.get(number, Tally())
            is_cut = tally.tasks >= look
            slot.is_behind |= is_cut
            if not is_settled:
                slot.young = tally
                continue
            slot.settled += tally
            until = min(slot.end, safe)
            slot.reached = reached[number] if is_cut else self._bounds.low(until)
            slot.is_whole = not is_cut and until == slot.end

    def tallies(self, now: datetime) -> list[tuple[Tally, float] | None]:
        """The tally of each slot and its length in seconds, the oldest first; None for a slot that is not counted yet.
        The current slot is left out at its beginning."""
        found: list[tuple[Tally, float] | None] = []
        for slot in sorted(self._slots.values(), key=lambda one: one.start):
            lasted = min(slot.end, now) - slot.start
            if lasted < SHOWN_SHARE * self._width:
                continue
            tally = slot.settled + slot.young
            found.append(None if slot.is_behind else (tally, lasted.total_seconds()))
        return found


class Rates:
    """The rates of one window. Keep the object: each refresh continues the counting."""

    def __init__(self, window: timedelta) -> None:
        self._slot_s = window.total_seconds() / SLOTS
        self._span = max(NOW_SPAN, timedelta(seconds=self._slot_s))
        self._sent = Slots(self._slot_s, "sent_ranges", BY_ID, LOOK)
        self._ended = Slots(self._slot_s, "ended_ranges", BY_END, LOOK)
        self._failed = Slots(self._slot_s, "failed_ranges", BY_END, LOOK_ROWS)

    async def look(self, fetch: Fetch) -> Series:
        span_s = self._span.total_seconds()
        (ends,) = await fetch("ended_now", span_s, LOOK_NOW)
        now: datetime = ends["now"]
        (fails,) = await fetch("failed_now", span_s, LOOK_ROWS_NOW)
        # the sender's clock may be ahead of the database's
        (sends,) = await fetch("sent_now", id_at(now - self._span), id_at(now + SETTLED), LOOK_NOW)
        for slots in (self._ended, self._failed, self._sent):
            await slots.count(fetch, now)
        sent, ended, failed = (slots.tallies(now) for slots in (self._sent, self._ended, self._failed))
        done_s = ends["oldest_s"] if ends["tasks"] >= LOOK_NOW else span_s
        failed_s = fails["oldest_s"] if fails["tasks"] >= LOOK_ROWS_NOW else span_s
        oldest = moment_of(sends["oldest_id"]) if sends["tasks"] >= LOOK_NOW else None
        sent_s = (now - oldest).total_seconds() if oldest is not None else span_s
        return Series(
            slot_s=self._slot_s,
            sent=self._rate(sent, lambda tally: tally.tasks, sends["tasks"], sent_s),
            done=self._rate(ended, lambda tally: tally.tasks, ends["tasks"], done_s),
            failed=self._rate(failed, lambda tally: tally.failed, fails["failed"], failed_s),
            wait_p95=_curve(failed, lambda tally, _: tally.wait(0.95)),
            wait_p50_now=fails["p50"] or 0.0,
            wait_p95_now=fails["p95"] or 0.0,
        )

    def _rate(
        self, tallies: Sequence[tuple[Tally, float] | None], count: Callable[[Tally], int], lately: int, span_s: float
    ) -> Rate:
        curve = _curve(tallies, lambda tally, lasted: count(tally) / lasted)
        return Rate(curve, self._slot_s * _counted(tallies), lately / max(span_s, _SHORTEST_S), span_s)


def _curve(tallies: Sequence[tuple[Tally, float] | None], value: Callable[[Tally, float], float]) -> tuple[float, ...]:
    return tuple(value(*one) if one is not None else 0.0 for one in tallies)


def _counted(tallies: Sequence[object | None]) -> int:
    """How many of the newest slots are counted without a gap."""
    return next((place for place, one in enumerate(reversed(tallies)) if one is None), SLOTS)
