"""Colours of a terminal, and when to use them.

`NO_COLOR` turns them off. `FORCE_COLOR` or `CLICOLOR_FORCE` turn them on, also in a pipe. Otherwise only a terminal
gets them, unless it is `TERM=dumb` or `CLICOLOR=0`. An empty variable counts as not set.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from typing import Final, TextIO


class Colour(StrEnum):
    """The number of an attribute in an escape sequence."""

    BOLD = "1"
    DIM = "2"
    REVERSE = "7"
    RED = "31"
    GREEN = "32"
    YELLOW = "33"
    BLUE = "34"
    CYAN = "36"


_OF_WORD: Final[Mapping[str, Colour]] = {
    **dict.fromkeys(("completed", "alive", "ok", "success", "succeeded"), Colour.GREEN),
    **dict.fromkeys(("failed", "dead", "problem", "failure", "broken", "crashed", "lost"), Colour.RED),
    **dict.fromkeys(
        ("cancelled", "expired", "late", "warn", "paused", "draining", "drained", "overdue", "unknown"), Colour.YELLOW
    ),
    **dict.fromkeys(("running", "claimed"), Colour.CYAN),
    **dict.fromkeys(("stopped", "hidden", "removed", "skipped", "disabled"), Colour.DIM),
}


def uses_colours(stream: TextIO) -> bool:
    """Whether text for this stream should have colours."""
    if os.environ.get("NO_COLOR"):
        return False
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("FORCE_COLOR", "CLICOLOR_FORCE")):
        return True
    return stream.isatty() and is_able() and os.environ.get("CLICOLOR") != "0"


def is_able() -> bool:
    """Whether the terminal understands escape sequences."""
    return os.environ.get("TERM", "dumb") != "dumb"


def colour_of(word: str) -> Colour | None:
    """The colour of a state or a severity, by its first word."""
    first = word.replace(",", " ").split(maxsplit=1)
    return _OF_WORD.get(first[0].lower()) if first else None


def painted(text: str, *colours: Colour) -> str:
    """The text in colours. It must be safe for a terminal already."""
    return f"\x1b[{';'.join(colours)}m{text}\x1b[0m" if colours and text else text
