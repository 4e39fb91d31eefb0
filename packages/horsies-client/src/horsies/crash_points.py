"""`crash_point`: a named place in a task, at which a test of `testing.crash_at` kills the attempt."""

from collections.abc import Callable

_reached: Callable[[str], None] | None = None


def crash_point(name: str) -> None:
    """Mark a place in a task for `testing.crash_at(name)`. Outside of such a test it does nothing."""
    if _reached is not None:
        _reached(name)


def watch(reached: Callable[[str], None] | None) -> None:
    """Call this function at every crash point of this process; for `horsies.testing`."""
    global _reached
    _reached = reached
