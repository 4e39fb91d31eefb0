"""What this screen shows and which keys it has: read from the bindings that are in force."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

_HIDDEN = {
    "ctrl+c", "tab", "shift+tab", "f1", "ctrl+q", "ctrl+i", "super+c", "up", "down", "home", "end", "pageup",
    "pagedown", "left", "right", "ctrl+pageup", "ctrl+pagedown", "ctrl+home", "ctrl+end", "colon",
}  # fmt: skip
"""What every terminal program does with these."""
_NAMES = {
    "question_mark": "?", "slash": "/", "left_square_bracket": "[", "right_square_bracket": "]", "upper": "",
    "space": "space", "plus": "+",
}  # fmt: skip


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,question_mark,q", "dismiss", "Close", show=False)]

    def __init__(self, title: str, text: str, keys: list[tuple[str, str]]) -> None:
        super().__init__()
        self._title, self._text, self._keys = title, text, keys

    def compose(self) -> ComposeResult:
        with VerticalScroll(id="help") as box:
            box.border_title = self._title
            yield Static(Content(self._text), id="help-text")
            lines = [Content.assemble((f"{key:>9}  ", "bold $accent"), what) for key, what in self._keys]
            yield Static(Content("\n").join(lines))


def keys_of(bindings: dict[str, object]) -> list[tuple[str, str]]:
    """From `Screen.active_bindings`: key and what it does, disabled ones left out."""
    found: list[tuple[str, str]] = []
    for key, active in bindings.items():
        binding = getattr(active, "binding", None)
        if key in _HIDDEN or binding is None or not binding.description or not getattr(active, "enabled", True):
            continue
        found.append((_NAMES.get(key, key), binding.description))
    return found
