"""Keeps tasks that died together apart when they run again. Pure.

When a process dies, every task that it was running counts a crash, because it cannot be known which one killed it. With
equal delays they would all start together again, and a task that kills its process would take the same others with it
until all of them are at their limit.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import Final

MIN_S: Final = 1.0
"""The least time that one of them has for itself."""
MAX_S: Final = 60.0
"""The last of many starts at most this much later than the first."""


def apart_ms(ran_s: Sequence[float]) -> list[int]:
    """How much longer each of these tasks waits, by how long each had run when the process died.

    The shortest goes first, and each one waits as long as those before it had run: a task that kills its process soon
    after its start is then alone when it does so again.
    """
    order = sorted(range(len(ran_s)), key=lambda at: ran_s[at])
    waits = list(accumulate((max(MIN_S, ran_s[at]) for at in order[:-1]), initial=0.0)) if order else []
    scale = min(1.0, MAX_S / waits[-1]) if len(waits) > 1 else 1.0
    found = [0] * len(ran_s)
    for at, wait in zip(order, waits, strict=True):
        found[at] = round(wait * scale * 1000)
    return found
