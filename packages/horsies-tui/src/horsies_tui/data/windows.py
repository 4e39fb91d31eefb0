"""How far back one looks: one window for the whole session.

Curves span it, and lists show what ended within it. What waits, is held or runs is there now, whatever the window; so
is a task that is asked for by its id.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final


@dataclass(frozen=True, slots=True)
class Window:
    name: str
    span: timedelta
    """Of the curves."""
    is_all: bool = False
    """Lists go back as far as there are rows; a curve has to begin somewhere."""

    @property
    def since(self) -> timedelta | None:
        """How long ago something in a list may have ended; None: at any time."""
        return None if self.is_all else self.span

    @property
    def ended(self) -> str:
        """For the words around a list."""
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
