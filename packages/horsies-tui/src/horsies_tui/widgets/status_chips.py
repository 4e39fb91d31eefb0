"""Statuses as chips with glyph, name and count; a click or a letter adds a status to the filter or removes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from horsies_tui.data.models import Count
from horsies_tui.text import counted
from horsies_tui.themes import GLYPHS, variable_of
from horsies_tui.widgets.typed import app_of

_SHORT_BELOW = 100
_SHORT = {
    "pending": "wait", "claimed": "held", "running": "run", "completed": "done", "failed": "fail", "cancelled": "canc",
    "expired": "exp", "paused": "paus",
}  # fmt: skip


class Chip(Static):
    def __init__(self, status: str) -> None:
        super().__init__("", id=f"chip-{status.lower()}")
        self.status = status

    def show(self, count: Count | None) -> None:
        name = self.status.lower()
        if app_of(self).size.width < _SHORT_BELOW:
            name = _SHORT.get(name, name)
        text = f"{GLYPHS[self.status]} {name}"
        parts: list[str | tuple[str, str]] = [(text, f"${variable_of(self.status)}")]
        if count is not None:
            parts.append((f" {counted(count)}", "bold"))
        self.update(Content.assemble(*parts))

    def on_click(self) -> None:
        self.post_message(StatusChips.Toggled(self.status))


class StatusChips(Horizontal):
    @dataclass
    class Toggled(Message):
        status: str

    def __init__(self, statuses: Sequence[str]) -> None:
        super().__init__()
        self._chips = [Chip(status) for status in statuses]
        self._counts: Mapping[str, Count] = {}

    def compose(self) -> ComposeResult:
        yield from self._chips

    def on_mount(self) -> None:
        self.count({})

    def on_resize(self) -> None:
        self.count(self._counts)  # the names are shorter on a narrow screen

    def count(self, counts: Mapping[str, Count]) -> None:
        self._counts = counts
        for chip in self._chips:
            chip.show(counts.get(chip.status))

    def ask(self, asked: frozenset[str]) -> None:
        """Highlight these statuses; none means all."""
        for chip in self._chips:
            chip.set_class(chip.status in asked, "-on")
            chip.set_class(bool(asked) and chip.status not in asked, "-off")
