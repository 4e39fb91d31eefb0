"""The help of a screen: its description, and its keys from the active bindings."""

from collections.abc import Mapping
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import ActiveBinding, Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

_HIDDEN = {
    "ctrl+c", "tab", "shift+tab", "f1", "ctrl+q", "ctrl+i", "super+c", "up", "down", "home", "end", "pageup",
    "pagedown", "left", "right", "ctrl+pageup", "ctrl+pagedown", "ctrl+home", "ctrl+end", "colon",
}  # fmt: skip
"""Keys that are the same in every terminal program."""
_NAMES = {
    "question_mark": "?", "slash": "/", "left_square_bracket": "[", "right_square_bracket": "]", "plus": "+",
    "minus": "-",
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


def key_name(key: str) -> str:
    """The character to type, for a key that Textual names by a word."""
    return _NAMES.get(key, key)


def keys_of(bindings: Mapping[str, ActiveBinding]) -> list[tuple[str, str]]:
    """The enabled keys of `Screen.active_bindings` and their descriptions."""
    return [
        (key_name(key), active.binding.description)
        for key, active in bindings.items()
        if key not in _HIDDEN and active.binding.description and active.enabled
    ]
