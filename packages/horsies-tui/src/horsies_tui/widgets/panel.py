"""A titled box with four faces: loading, empty (which says what would fill it), data, error."""

from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

FACES = ("loading", "empty", "data", "error")


class Panel(Vertical):
    """Shows its children when it has data, and a sentence otherwise."""

    def __init__(self, title: str, *children: Widget, empty: str, **options: Any) -> None:
        super().__init__(**options)
        self.border_title = title
        self._inside = children
        self._empty = empty
        self._sentence = Static("", classes="face", markup=False)

    def compose(self) -> ComposeResult:
        yield self._sentence
        yield from self._inside

    def on_mount(self) -> None:
        self.face("loading")

    def face(self, name: str, text: str = "") -> None:
        """One of FACES; an error keeps the data that is there already (the banner tells of it)."""
        if name == "error" and self.has_class("-data"):
            return
        if not self.has_class(f"-{name}"):  # every change of classes styles all that is inside
            self.remove_class(*(f"-{face}" for face in FACES), update=False)
            self.add_class(f"-{name}")
        words = {"loading": "loading …", "empty": self._empty, "error": f"no answer: {text}"}
        self._sentence.update(words.get(name, ""))

    def face_of(self, *, empty: bool, text: str | None = None) -> None:
        """Data, or the empty face, with other words when there is a reason (a filter that matches nothing)."""
        self.face("empty" if empty else "data")
        if empty and text:
            self._sentence.update(text)
