"""Where a claim looks: at the (queue, priority) pairs that the last ones found work in, or everywhere.

A look everywhere (a discovery) finds all there is. It also walks the dead entries at the front of every pair, and while
somebody's long transaction keeps them from being cleaned away that can take 200 ms; a hinted look begins behind them.
So a slow discovery is made for at most a twentieth of the time, and what stands behind no hint waits that long.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from horsies_worker.queries import Hint

EVERY_S: Final = 1.0
"""Rows that came back with an old enqueued_at, or at another priority, are seen by the next discovery."""
SHARE: Final = 20
SLOW_S: Final = 0.020
ROW_S: Final = 0.000_2
"""What a claimed row may add to the time of a statement before the look itself is to blame."""


class Lookout:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._hints: dict[tuple[str, int], Hint] = {}
        self._next = 0.0
        self._earliest = 0.0
        self._put_off_at: float | None = None
        self.has_news = True
        """Something may be where no hint points."""

    @property
    def hints(self) -> tuple[Hint, ...]:
        return tuple(self._hints.values())

    def news(self) -> None:
        self.has_news = True

    def forget(self) -> None:
        """Nothing is known any more: after an outage, or when queues were paused or resumed."""
        self._hints.clear()
        self.has_news = True

    def looks_everywhere(self) -> bool:
        """Shall the claim that is made now be a discovery?"""
        now = self._clock()
        if not (self.has_news or not self._hints or now >= self._next) or self._must_wait(now):
            return False
        self.has_news = False
        self._put_off_at = None
        return True

    def knows_enough(self) -> bool:
        """Is what the last look everywhere said still to be believed?"""
        return not self.has_news and self._clock() < self._next

    def may_put_off(self) -> bool:
        """May whoever finds what was heard of leave it at that for now? For a second, counted from the first time."""
        now = self._clock()
        if self._put_off_at is None:
            self._put_off_at = now
        return not self.has_news and now < self._put_off_at + EVERY_S

    def wait_s(self) -> float | None:
        """How long until the discovery that is wanted may be made; None when nothing is in its way."""
        now = self._clock()
        return self._earliest - now if self.has_news and self._must_wait(now) else None

    def _must_wait(self, now: float) -> bool:
        return bool(self._hints) and now < self._earliest

    def saw(self, rows: Sequence[Mapping[str, Any]], *, everywhere: bool, took_s: float) -> int:
        """Learn from a claim; returns how many pairs its rows are of."""
        if everywhere:
            now = self._clock()
            look_s = took_s - ROW_S * len(rows)
            rest_s = SHARE * look_s if look_s > SLOW_S else 0.0
            self._earliest = now + rest_s
            self._next = now + max(EVERY_S, rest_s)
            if not rest_s:
                self._hints.clear()
        pairs = {(row["queue_name"], row["priority"]): row["since"] for row in rows}
        for pair, since in pairs.items():
            self._hints[pair] = Hint(*pair, since)
        return len(pairs)
