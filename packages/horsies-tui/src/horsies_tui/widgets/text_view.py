"""Long text of a row, such as arguments, results and tracebacks: inert, scrolled, cut."""

from typing import Any

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from horsies._operations import NEEDS_OPERATOR
from horsies._text import error_in
from horsies_tui.text import block, pretty_json


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
    """Some of the private columns of a task, each under its name; says so when the role may not see them."""
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
