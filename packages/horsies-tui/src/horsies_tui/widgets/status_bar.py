"""The line above the keys: how fresh the data is, where it comes from, what is selected. And the banner."""

from dataclasses import dataclass
from datetime import timedelta

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Static

from horsies_tui.text import inert


@dataclass(frozen=True, slots=True)
class BarState:
    """What the bar says."""

    place: str = ""
    mode: str = "connecting"
    """live, polling, down, paused, demo."""
    age: timedelta | None = None
    window: str = ""
    read_only: bool = False
    note: str = ""


_COLOURS = {"live": "$success", "demo": "$success", "polling": "$warning", "paused": "$warning", "down": "$error"}


class StatusBar(Horizontal):
    state: reactive[BarState] = reactive(BarState())

    def compose(self) -> ComposeResult:
        yield Static(id="bar-left")
        yield Static(id="bar-right")

    def watch_state(self, state: BarState) -> None:
        if not self.is_mounted:
            return
        colour = _COLOURS.get(state.mode, "$text-muted")
        left = [("● ", colour), (state.mode, colour), f"  {inert(state.place, 60)}"]
        if state.read_only:
            left.append(("  read-only", "$accent"))
        self.query_one("#bar-left", Static).update(Content.assemble(*left))
        parts = [part for part in (state.note, state.window and f"window {state.window}") if part]
        parts.append(_freshness(state.age))
        self.query_one("#bar-right", Static).update(Content("  ·  ".join(parts)))

    def on_mount(self) -> None:
        self.watch_state(self.state)


def _freshness(age: timedelta | None) -> str:
    if age is None:
        return "no data yet"
    return "data just in" if age < timedelta(seconds=1) else f"data {age.total_seconds():,.0f} s old"


class Banner(Static):
    """Seen only while the database does not answer."""

    def __init__(self) -> None:
        super().__init__("", markup=False)

    def tell(self, text: str | None) -> None:
        self.set_class(text is not None, "-seen")
        if text is not None:
            self.update(Content(inert(text, 400)))
