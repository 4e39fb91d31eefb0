"""Forecasts how long a task of a given name takes, from its recent durations. Pure.

A child may get several jobs of *short* names at once: their recent worst duration is below 2 ms. "Worst" leaves out the
two longest of the last 32 to 64 durations, because a busy machine now and then preempts a no-op for 5 ms. A duration
of 20 ms is no preemption, and the name loses its place among the short ones at once.

*Repeating* names take the same time again and again, so the end of a job can be foreseen. Between two tasks of 50 ms a
child waited 3 ms for a claim and was busy for 0.92 of the time. With its next job assigned a few milliseconds before
the end of the current one it is busy for 0.97. The next job is RUNNING that much before it starts; the parent takes it
back when the current job overruns its forecast.
"""

from math import inf
from typing import Final

SHORT_S: Final = 0.002
"""A child gets jobs of longer names one at a time."""
PREDICTED_S: Final = 0.010
"""Seconds of work that one child may get at once, by forecast."""
MAX_QUEUED: Final = 256
"""Jobs that one child may get at once. This decides how many rows a claim carries: no-ops drained at 5,600, 7,700 and
8,600 tasks/s with 64, 128 and 200, at 9,500 with 256 and 8,800 with 400 (medians of 4, interleaved; two runs).
PREDICTED_S still applies: a child gets at most ten jobs that take 1 ms."""
OVERRUN_S: Final = 0.005
"""When the current job runs this much longer than its forecast, the parent takes the jobs behind it back."""
FLOOR_S: Final = 0.00005
"""A no-op costs its child about this much between two results."""
LEAD_S: Final = 0.004
"""A claim and the way to the child take 1 to 3 ms."""
MAX_NAMES: Final = 4096
"""Names come from the registry, so there are fewer; this bounds the memory all the same."""

_BLOCK: Final = 32
_PROOF: Final = 3
_PROOF_AFTER_DEMOTION: Final = 16
_NO_PREEMPTION_S: Final = 0.020
_REPEATS: Final = 8
_REPEATED_BLOCK: Final = 16
_SPREAD: Final = 1.25
"""The longest of the last 16 to 32 durations of a repeating name, divided by the shortest."""


class _RecentWorst:
    """The three longest durations in the current block of 32 and in the previous one."""

    __slots__ = ("block", "count", "previous", "until_proof", "upper")

    def __init__(self, until_proof: int) -> None:
        self.until_proof = until_proof
        self.count = 0
        self.block: list[float] = [0.0, 0.0, 0.0]
        self.previous: list[float] | None = None
        self.upper = FLOOR_S

    def observe(self, duration: float) -> None:
        if self.until_proof:
            self.until_proof -= 1
        self.block[0] = max(self.block[0], duration)
        self.block.sort()
        self.count += 1
        # One spike in eight runs may be noise, two in 32; with fewer runs the longest counts.
        spikes = 2 if self.previous is not None or self.count == _BLOCK else int(self.count >= 8)
        if self.count == _BLOCK:
            self.count = 0
            self.previous, self.block = self.block, [0.0, 0.0, 0.0]
        both = sorted(self.block + (self.previous or []))
        self.upper = max(FLOOR_S, both[-1 - spikes])


class _RecentRange:
    """The shortest and the longest duration in the current block of 16 and in the previous one."""

    __slots__ = ("count", "high", "low", "previous")

    def __init__(self) -> None:
        self.count = 0
        self.low, self.high = inf, 0.0
        self.previous: tuple[float, float] | None = None

    def observe(self, duration: float) -> None:
        if self.count == _REPEATED_BLOCK:
            self.previous = (self.low, self.high)
            self.count, self.low, self.high = 0, inf, 0.0
        self.count += 1
        self.low = min(self.low, duration)
        self.high = max(self.high, duration)

    def bounds(self) -> tuple[float, float] | None:
        """Return (shortest, longest); None when the durations are too few or too different."""
        low, high = self.low, self.high
        if self.previous is not None:
            low, high = min(low, self.previous[0]), max(high, self.previous[1])
        elif self.count < _REPEATS:
            return None
        return (low, high) if high <= low * _SPREAD else None


class Durations:
    """Forecasts by task name, in seconds."""

    def __init__(self) -> None:
        self._worst: dict[str, _RecentWorst] = {}
        self._short: dict[str, float] = {}
        self._ranges: dict[str, _RecentRange] = {}

    def observe(self, name: str, duration: float) -> None:
        """Record that a job of this name occupied its child for `duration` seconds."""
        if duration >= SHORT_S:
            self._range(name).observe(duration)
        worst = self._worst.get(name)
        if worst is None:
            worst = self._start_over(name, _PROOF)
        # This runs once per task, and most durations change nothing: proven, mid-block, not among the longest three.
        if not worst.until_proof and duration <= worst.block[0] and 8 < worst.count < _BLOCK - 1:
            worst.count += 1
            return
        if duration >= _NO_PREEMPTION_S:
            self._demote(name)
            return
        worst.observe(duration)
        if worst.upper < SHORT_S and not worst.until_proof:
            self._short[name] = worst.upper
        else:
            self._short.pop(name, None)

    def overran(self, name: str) -> None:
        """A job of this name kept the jobs behind it waiting: trust no forecast of it until it is proven again."""
        self._demote(name)
        self._ranges.pop(name, None)

    def _demote(self, name: str) -> None:
        self._short.pop(name, None)
        self._start_over(name, _PROOF_AFTER_DEMOTION)

    def _start_over(self, name: str, until_proof: int) -> _RecentWorst:
        if len(self._worst) >= MAX_NAMES and name not in self._worst:
            self._worst.clear()
            self._short.clear()
        worst = self._worst[name] = _RecentWorst(until_proof)
        return worst

    def _range(self, name: str) -> _RecentRange:
        found = self._ranges.get(name)
        if found is None:
            if len(self._ranges) >= MAX_NAMES:
                self._ranges.clear()
            found = self._ranges[name] = _RecentRange()
        return found

    def is_short(self, name: str) -> bool:
        return name in self._short

    def short_names(self) -> frozenset[str]:
        return frozenset(self._short)

    def worst_short(self) -> float:
        """Return the longest forecast among the short names, for counting room before the names are known."""
        return max(self._short.values(), default=inf)

    def longest(self, name: str) -> float:
        """Return how long a job takes at most; infinite for a name that is neither short nor repeating."""
        short = self._short.get(name)
        if short is not None:
            return short
        bounds = self._bounds(name)
        return inf if bounds is None else bounds[1]

    def prefetch_after(self, name: str) -> float:
        """Return how long after a job's start its child may get the next one; infinite when its end is unknown."""
        bounds = None if name in self._short else self._bounds(name)
        return inf if bounds is None else max(0.0, bounds[0] - LEAD_S)

    def _bounds(self, name: str) -> tuple[float, float] | None:
        found = self._ranges.get(name)
        return None if found is None else found.bounds()
