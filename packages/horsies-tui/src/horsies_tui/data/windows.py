"""The windows of time, of which a session uses one at a time.

Curves span it, and lists show the tasks that ended within it. The window does not hide waiting, held and running tasks,
nor a task that is searched by its id.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final


@dataclass(frozen=True, slots=True)
class Window:
    name: str
    span: timedelta
    """The time that the curves span."""
    is_all: bool = False
    """Lists show every row; the curves span `span`."""

    @property
    def since(self) -> timedelta | None:
        """How long ago a row in a list may have ended; None means at any time."""
        return None if self.is_all else self.span

    @property
    def ended(self) -> str:
        """A phrase for the texts around a list."""
        return "ended at any time" if self.is_all else f"ended within {self.name}"

    @property
    def curve_name(self) -> str:
        return f"{self.span.days} d" if self.is_all else self.name


WINDOWS: Final = (
    Window("5 min", timedelta(minutes=5)),
    Window("15 min", timedelta(minutes=15)),
    Window("1 h", timedelta(hours=1)),
    Window("6 h", timedelta(hours=6)),
    Window("24 h", timedelta(hours=24)),
    Window("7 d", timedelta(days=7)),
    Window("all", timedelta(days=30), is_all=True),
)
DEFAULT: Final = 2
