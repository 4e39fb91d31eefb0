"""A titled box with four faces: loading, empty (with a hint how to fill it), data, error."""

from collections.abc import Callable, Collection
from typing import Any

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Static

from horsies_tui.widgets.live_table import Columns, LiveTable

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
        """Show one of FACES; an error keeps the current data, and the banner reports it."""
        if name == "error" and self.has_class("-data"):
            return
        if not self.has_class(f"-{name}"):  # every change of classes styles all children again
            self.remove_class(*(f"-{face}" for face in FACES), update=False)
            self.add_class(f"-{name}")
        words = {"loading": "loading …", "empty": self._empty, "error": f"no answer: {text}"}
        self._sentence.update(words.get(name, ""))

    def face_of(self, *, empty: bool, text: str | None = None) -> None:
        """Show the data, or the empty face with a text, such as for a filter that matches nothing."""
        self.face("empty" if empty else "data")
        if empty and text:
            self._sentence.update(text)


class TablePanel(Panel):
    """A panel around the table `name`."""

    def __init__(
        self,
        name: str,
        columns: Columns[Any],
        key: Callable[[Any], str],
        *,
        empty: str,
        title: str = "",
        **options: Any,
    ) -> None:
        self.table = LiveTable(columns, key, id=name, **options)
        super().__init__(title or name, self.table, empty=empty, id=f"{name}-panel")

    def show(self, rows: Collection[Any], note: str = "", empty: str | None = None) -> None:
        """Show these rows and a note at the lower border; without rows, why there are none."""
        self.table.show(rows)
        self.face_of(empty=not rows, text=empty)
        self.border_subtitle = note
