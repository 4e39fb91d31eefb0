"""How long will a task of this name take? Upper estimates from recent spans, for run-ahead. Pure.

Only names whose recent worst is below 2 ms may be handed ahead. "Worst" leaves out the two longest
of the last 32 to 64 spans: on a busy machine a no-op is now and then preempted for 5 ms, and one
such span must not stop run-ahead for everybody. A span that no scheduler explains demotes at once.
"""

from __future__ import annotations

from math import inf

from horsies_worker.steady import LEAD_S, Steady

SHORT_S = 0.002
"""Names above this are handed out one at a time."""
PREDICTED_S = 0.010
"""Work handed to one child, by prediction: what the loss of a whole worker may leave started in name only."""
MAX_AHEAD = 256
"""And so many at most. It decides how many rows a claim carries: no-ops drained at 5,600, 7,700 and 8,600 tasks/s with
64, 128 and 200, at 9,500 with 256 and 8,800 with 400 (medians of 4, interleaved; two runs). The time above still holds:
of a task that takes 1 ms no more than ten are handed to a child."""
STEAL_AFTER_S = 0.005
"""The front has run this much longer than its estimate: those behind it are taken back."""
FLOOR_S = 0.00005
"""A no-op costs its child about this much between two results."""

_BLOCK = 32
_PROOF = 3
_PROOF_AFTER_DEMOTION = 16
_NO_NOISE_S = 0.020
_MAX_NAMES = 4096


class _Name:
    """The three longest spans of this block of 32 and of the previous one."""

    __slots__ = ("block", "count", "previous", "until_proof", "upper")

    def __init__(self, until_proof: int) -> None:
        self.until_proof = until_proof
        self.count = 0
        self.block: list[float] = [0.0, 0.0, 0.0]
        self.previous: list[float] | None = None
        self.upper = FLOOR_S

    def observe(self, span: float) -> None:
        if self.until_proof:
            self.until_proof -= 1
        self.block[0] = max(self.block[0], span)
        self.block.sort()
        self.count += 1
        # One spike in eight runs may be noise, two in 32; with fewer runs the longest counts.
        spikes = 2 if self.previous is not None or self.count == _BLOCK else int(self.count >= 8)
        if self.count == _BLOCK:
            self.count = 0
            self.previous, self.block = self.block, [0.0, 0.0, 0.0]
        both = sorted(self.block + (self.previous or []))
        self.upper = max(FLOOR_S, both[-1 - spikes])


class Estimates:
    """Upper estimates per task name. Names come from the registry, so there are few."""

    def __init__(self) -> None:
        self._names: dict[str, _Name] = {}
        self._short: dict[str, float] = {}
        self._steady = Steady()

    def observe(self, name: str, span: float) -> None:
        """A job of this name occupied its child for `span` seconds."""
        if span >= SHORT_S:
            self._steady.observe(name, span)
        entry = self._names.get(name)
        if entry is None:
            entry = self._add(name, _PROOF)
        # Most runs change nothing: proven, mid-block, and not among the longest three. Once per task, so it is brief.
        if not entry.until_proof and span <= entry.block[0] and 8 < entry.count < _BLOCK - 1:
            entry.count += 1
            return
        if span >= _NO_NOISE_S:
            self.demote(name)
            return
        entry.observe(span)
        if entry.upper < SHORT_S and not entry.until_proof:
            self._short[name] = entry.upper
        else:
            self._short.pop(name, None)

    def demote(self, name: str) -> None:
        """It was handed ahead and turned out slow: not short until 16 runs say so again."""
        self._short.pop(name, None)
        self._add(name, _PROOF_AFTER_DEMOTION)

    def surprised(self, name: str) -> None:
        """It kept others waiting that were handed to its child: neither short nor steady until it proves it again."""
        self.demote(name)
        self._steady.forget(name)

    def _add(self, name: str, until_proof: int) -> _Name:
        if len(self._names) >= _MAX_NAMES and name not in self._names:
            # Never with a sane registry; bounds this process's memory all the same.
            self._names.clear()
            self._short.clear()
        entry = self._names[name] = _Name(until_proof)
        return entry

    def is_short(self, name: str) -> bool:
        return name in self._short

    def short_names(self) -> frozenset[str]:
        return frozenset(self._short)

    def upper(self, name: str) -> float:
        """Seconds; infinite for a name that is known neither to be short nor to be steady."""
        short = self._short.get(name)
        if short is not None:
            return short
        bounds = self._steady.bounds(name)
        return inf if bounds is None else bounds[1]

    def near_end(self, name: str) -> float:
        """How long after its start a successor may be sent for; infinite when nothing can be foreseen."""
        bounds = None if name in self._short else self._steady.bounds(name)
        return inf if bounds is None else max(0.0, bounds[0] - LEAD_S)

    def worst_short(self) -> float:
        """The longest upper estimate among the short names, for counting room before names are known."""
        return max(self._short.values(), default=inf)
