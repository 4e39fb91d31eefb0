"""Which tasks take the same time again and again? Their end can be foreseen, and their successor be on its way. Pure.

Between two tasks of 50 ms a child waited 3 ms for a claim: 0.92 of what it could do. Now the successor is fetched a few
milliseconds before the end: 0.97. It is RUNNING that much before it starts, within the bound of very short tasks that
are handed ahead; one behind a task that does not end in time is taken back.
"""

from __future__ import annotations

from typing import Final

LEAD_S: Final = 0.004
"""A claim and the way to the child take 1 to 3 ms."""

_ENOUGH: Final = 8
_BLOCK: Final = 16
_SPREAD: Final = 1.25
"""The longest of the last 16 to 32, to the shortest."""
_MAX_NAMES: Final = 4096


class _Spans:
    __slots__ = ("count", "high", "low", "previous")

    def __init__(self) -> None:
        self.count = 0
        self.low, self.high = float("inf"), 0.0
        self.previous: tuple[float, float] | None = None


class Steady:
    """Spans by task name."""

    def __init__(self) -> None:
        self._names: dict[str, _Spans] = {}

    def observe(self, name: str, span: float) -> None:
        """A task of this name ran for so many seconds."""
        spans = self._names.get(name)
        if spans is None:
            if len(self._names) >= _MAX_NAMES:
                self._names.clear()  # never with a sane registry; bounds this process's memory all the same
            spans = self._names[name] = _Spans()
        elif spans.count == _BLOCK:
            spans.previous = (spans.low, spans.high)
            spans.count, spans.low, spans.high = 0, float("inf"), 0.0
        spans.count += 1
        spans.low = min(spans.low, span)
        spans.high = max(spans.high, span)

    def bounds(self, name: str) -> tuple[float, float] | None:
        """The shortest and the longest of late, in seconds; None when they are too few or too different."""
        spans = self._names.get(name)
        if spans is None or (spans.previous is None and spans.count < _ENOUGH):
            return None
        low, high = spans.low, spans.high
        if spans.previous is not None:
            low, high = min(low, spans.previous[0]), max(high, spans.previous[1])
        return (low, high) if high <= low * _SPREAD else None

    def forget(self, name: str) -> None:
        """It ran longer than it ever did: it has to prove itself again."""
        self._names.pop(name, None)
