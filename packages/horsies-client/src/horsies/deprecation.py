"""How horsies says that a name or an option will go: once per place that uses it, with the way out.

    deprecated("Batch.wait()", since="1.2.0", instead="Batch.get()", removed_in="2.0.0")

A test reads these calls, and fails from the version on that `removed_in` names; `just release` refuses that version.
So the versions are written as literals."""

import sys
import warnings
from types import FrameType
from typing import Final

_OURS: Final = ("horsies", "horsies_worker", "horsies_schema", "horsies_tui")
_told: Final[set[tuple[str, str, int]]] = set()


class HorsiesDeprecationWarning(DeprecationWarning):
    """Something of horsies that still works, and that a later major release removes."""


def deprecated(what: str, *, since: str, instead: str, removed_in: str) -> None:
    """Warn of a use of `what` in the caller's code, once per line of it, whatever the filters for warnings are."""
    frame = _user_frame(sys._getframe(1))  # pyright: ignore[reportPrivateUsage]
    file, line = frame.f_code.co_filename, frame.f_lineno
    if (what, file, line) in _told:
        return
    text = f"{what} is deprecated since horsies {since} and will be removed in {removed_in}; use instead: {instead}"
    warnings.warn_explicit(text, HorsiesDeprecationWarning, file, line, module=frame.f_globals.get("__name__"))
    _told.add((what, file, line))  # not when a filter made it an error: that is raised each time


def _user_frame(frame: FrameType) -> FrameType:
    """The nearest frame outside of horsies, or the given one when all are inside."""
    found: FrameType | None = frame
    while found is not None:
        if str(found.f_globals.get("__name__", "")).partition(".")[0] not in _OURS:
            return found
        found = found.f_back
    return frame
