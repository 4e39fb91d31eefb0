"""Where a claim looks: at the (queue, priority) pairs that the last claims found work in, or everywhere.

A full scan finds all there is. It also walks what stands at the front of every pair and cannot be taken: dead entries
that a long transaction keeps from being cleaned away (200 ms for 250,000), and tasks of names that this process does
not know (60 ms for 100,000). So slow full scans are made for at most a twentieth of the time. In between, a claim looks
everywhere behind the floor: the time before which the last scan that found nothing left nothing. That misses only
what comes back with an old `enqueued_at` (hand-backs, late commits): the next full scan finds it.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, Final

from horsies_worker.queries import Hint

EVERY_S: Final = 1.0
"""Rows that came back with an old enqueued_at, or at another priority, are seen by the next full scan."""
SHARE: Final = 20
SLOW_S: Final = 0.020
QUICK_S: Final = 0.005
"""The same where a crowd stands before the floor: a full scan that is put off hides no new task."""
ROW_S: Final = 0.000_2
"""What a claimed row may add to the time of a statement before the look itself is to blame."""
LATE_S: Final = 1.0
"""A sender's transaction may commit so long after its `enqueued_at` and still be found behind the floor."""


class Look(Enum):
    HINTS = "the pairs of the last claims, from where these began"
    FLOOR = "all pairs, from the floor"
    FULL = "all pairs, from their beginning"


class Lookout:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hints: dict[tuple[str, int], Hint] = {}
        self._next = 0.0
        self._earliest = 0.0
        self._earliest_from_floor = 0.0
        self._put_off_at: float | None = None
        self._is_crowded = False
        self._is_first = True
        """The first look on a connection also makes the statement's plan: its time says nothing."""
        self.floor: datetime | None = None
        self.has_news = True
        """Something may be where no hint points."""
        self._owes_full_scan = False
        """There was news, and only a look from the floor."""

    @property
    def hints(self) -> tuple[Hint, ...]:
        return tuple(self._hints.values())

    def news(self) -> None:
        self.has_news = True

    def forget(self) -> None:
        """Nothing is known any more: after an outage, or when queues were paused or resumed."""
        self._hints.clear()
        self.floor = None
        self._is_crowded = False
        self._is_first = True
        self.has_news = True

    def next_look(self) -> Look:
        """How the claim that is made now looks."""
        now = self._clock()
        if not (self.has_news or not self._hints or now >= self._next):
            return Look.HINTS
        if not self._must_wait(now):
            look = Look.FULL
        elif self.floor is not None and now >= self._earliest_from_floor:
            look = Look.FLOOR
        else:
            return Look.HINTS
        self._owes_full_scan = look is Look.FLOOR
        self.has_news = False
        self._put_off_at = None
        return look

    def knows_enough(self) -> bool:
        """Is what the last look everywhere said still to be believed?"""
        return not self.has_news and self._clock() < self._next

    def may_put_off(self) -> bool:
        """May a claim that finds all announced tasks be the only look for now? For a second from the first time."""
        now = self._clock()
        if self._put_off_at is None:
            self._put_off_at = now
        return not self.has_news and now < self._put_off_at + EVERY_S

    def wait_s(self) -> float | None:
        """How long until the look that is wanted may be made; None when none is wanted, or nothing is in its way."""
        now = self._clock()
        if not (self.has_news or self._owes_full_scan) or not self._must_wait(now):
            return None
        if self.has_news and self.floor is not None:
            return max(0.0, min(self._earliest, self._earliest_from_floor) - now)
        return self._earliest - now

    def _must_wait(self, now: float) -> bool:
        # Without a crowd a scan that took long has waited for a processor: the next one need not.
        return (bool(self._hints) or (self.floor is not None and self._is_crowded)) and now < self._earliest

    def saw(self, rows: Sequence[Mapping[str, Any]], look: Look, *, took_s: float) -> int:
        """Learn from a claim; returns how many pairs its rows are of."""
        if look is not Look.HINTS:
            now = self._clock()
            look_s = took_s - ROW_S * len(rows)
            is_slow = look_s > (QUICK_S if self._is_crowded else SLOW_S) and not self._is_first
            rest_s = SHARE * look_s if is_slow else 0.0
            self._is_first = False
            if look is Look.FLOOR:
                self._earliest_from_floor = now + rest_s
            else:
                self._earliest = now + rest_s
                self._next = now + max(EVERY_S, rest_s)
                if not rest_s:
                    self._hints.clear()
        pairs = {(row["queue_name"], row["priority"]): row["since"] for row in rows}
        for pair, since in pairs.items():
            self._hints[pair] = Hint(*pair, since)
        return len(pairs)

    def found_nothing(self, until: datetime, *, is_crowded: bool) -> None:
        """A look everywhere left nothing that this process could take and that was ready at this time. `is_crowded`:
        many other tasks are ready there, which every full scan walks."""
        self._is_crowded = is_crowded
        self.floor = until - timedelta(seconds=LATE_S)
        for pair, hint in self._hints.items():
            if hint.since < self.floor:
                self._hints[pair] = replace(hint, since=self.floor)
