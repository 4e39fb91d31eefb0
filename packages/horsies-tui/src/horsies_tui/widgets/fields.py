"""Names and values in two columns, for the facts of one thing."""

from collections.abc import Iterable

from textual.content import Content
from textual.widgets import Static

from horsies_tui.text import inert
from horsies_tui.themes import GLYPHS, variable_of


def status_content(state: str) -> Content:
    return Content.styled(f"{GLYPHS.get(state, '·')} {inert(state, 30)}", f"${variable_of(state)}")


class Fields(Static):
    """`show` takes (name, value) pairs; a value is inert text or made content; None is left out."""

    def show(self, fields: Iterable[tuple[str, object]]) -> None:
        lines: list[Content] = []
        for name, value in fields:
            if value is None:
                continue
            shown = value if isinstance(value, Content) else Content(inert(value))
            lines.append(Content.assemble((f"{name:<13}", "$text-muted"), shown))
        self.update(Content("\n").join(lines))
