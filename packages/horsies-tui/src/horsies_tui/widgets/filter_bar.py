"""The line where a filter is typed. Enter applies it, escape restores the old one."""

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.message import Message
from textual.widgets import Input, Static

from horsies_tui.data.filters import Query
from horsies_tui.text import inert


class FilterBar(Horizontal):
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "Back", show=False)]

    @dataclass
    class Changed(Message):
        query: Query

    class Left(Message):
        """The focus can go back to the table."""

    def __init__(self, placeholder: str) -> None:
        super().__init__()
        self._input = Input(placeholder=placeholder, compact=True, id="filter")
        self._problems = Static("", id="filter-problems", markup=False)
        self.applied = Query()
        self._shown = ""

    def compose(self) -> ComposeResult:
        yield Static("/", classes="slash")
        yield self._input
        yield self._problems

    def show(self, query: Query) -> None:
        """Show the filter; control characters of a name that was picked from a list are spelled out."""
        self.applied = query
        self._shown = inert(query, 1_000)
        self._input.value = self._shown

    def edit(self) -> None:
        self._input.focus()
        self._input.cursor_position = len(self._input.value)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        event.stop()
        query, problems = (self.applied, []) if event.value == self._shown else Query.parse(event.value)
        self._problems.update(inert("; ".join(problems)))
        if problems:
            return
        self.applied = query
        self.post_message(self.Changed(query))
        self.post_message(self.Left())

    def on_input_changed(self, event: Input.Changed) -> None:
        event.stop()
        self._problems.update(inert("; ".join(Query.parse(event.value)[1])))

    def action_leave(self) -> None:
        self.show(self.applied)
        self._problems.update("")
        self.post_message(self.Left())
