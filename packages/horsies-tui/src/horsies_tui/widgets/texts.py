"""Texts of a row: facts in two columns, and long texts such as arguments or a traceback, cut and scrollable."""

from collections.abc import Iterable
from typing import Any, Final

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from horsies._text import error_in
from horsies.operate.session import NEEDS_OPERATOR
from horsies_tui.text import block, inert, pretty_json
from horsies_tui.themes import badge, variable_of

NAME_WIDTH: Final = 13


def status_content(state: str) -> Content:
    return Content.styled(badge(state, inert(state, 30)), f"${variable_of(state)}")


class Fields(Static):
    """`show` takes (name, value) pairs; a value is a text or a Content, and None is left out."""

    def show(self, fields: Iterable[tuple[str, object]]) -> None:
        shown = {
            name: value if isinstance(value, Content) else inert(value) for name, value in fields if value is not None
        }
        lines = [Content.assemble((f"{name:<{NAME_WIDTH}}", "$text-muted"), value) for name, value in shown.items()]
        self.update(Content("\n").join(lines))


class TextView(VerticalScroll):
    """Shows one text as it is."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self._static = Static("", markup=False)
        self.shown = ""

    def on_mount(self) -> None:
        self.mount(self._static)

    def show(self, text: str) -> None:
        if text != self.shown:
            self.shown = text
            self._static.update(Content(text))


def payload_text(payload: dict[str, Any] | None, *names: str) -> str:
    """Some private columns of a task, each under its name, or a note that the role may not read them."""
    if payload is None:
        return NEEDS_OPERATOR
    parts: list[str] = []
    for name in names:
        text = pretty_json(payload.get(name), payload.get(f"{name}_chars"))
        if text:
            parts.append(f"{name}\n{text}" if len(names) > 1 else text)
    return "\n\n".join(parts) or "nothing"


def traceback_of(result: str | None) -> str:
    """The traceback in a stored error, when there is one."""
    error = error_in(result)
    return "" if error is None or error.traceback is None else block(error.traceback, 50_000)
