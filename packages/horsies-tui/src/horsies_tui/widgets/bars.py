"""The bars of every screen: the navigation at the top, the banner, the status line, and the keys at the bottom."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal
from textual.content import Content
from textual.reactive import reactive
from textual.widgets import Footer, Static

from horsies_tui.text import inert
from horsies_tui.widgets.typed import app_of

PLACES: Final = ("overview", "tasks", "workers", "stale", "workflows", "schedules", "maintenance")


class NavTab(Static):
    def __init__(self, place: str, number: int, *, is_here: bool) -> None:
        super().__init__(
            Content.assemble((str(number), "bold $accent"), f" {place.capitalize()}"),
            classes="-here" if is_here else "",
        )
        self._place = place

    async def on_click(self) -> None:
        await app_of(self).run_action(f"go('{self._place}')")


class NavBar(Horizontal):
    def __init__(self, here: str) -> None:
        super().__init__()
        self._here = here

    def compose(self) -> ComposeResult:
        yield Static("horsies", id="brand")
        for number, place in enumerate(PLACES, 1):
            yield NavTab(place, number, is_here=place == self._here)


@dataclass(frozen=True, slots=True)
class BarState:
    """The content of the bar."""

    place: str = ""
    mode: str = "connecting"
    """live, polling, down, paused or demo."""
    age: timedelta | None = None
    window: str = ""
    read_only: bool = False
    note: str = ""


_COLOURS = {"live": "$success", "demo": "$success", "polling": "$warning", "paused": "$warning", "down": "$error"}


class StatusBar(Horizontal):
    state: reactive[BarState] = reactive(BarState())

    def compose(self) -> ComposeResult:
        yield Static(id="bar-left")
        yield Static(id="bar-note")
        yield WindowLabel(id="bar-window")
        yield Static(id="bar-right")

    def watch_state(self, state: BarState) -> None:
        if not self.is_mounted or not self.query("#bar-right"):
            return  # the bar is being mounted or removed: its children go first
        colour = _COLOURS.get(state.mode, "$text-muted")
        left: list[tuple[str, str] | str] = [("● ", colour), (state.mode, colour)]
        if state.read_only:  # before the database: a long name must not push it out
            left.append(("  read-only", "$accent"))
        left.append(f"  {inert(state.place, 60)}")
        self.query_one("#bar-left", Static).update(Content.assemble(*left))
        self.query_one("#bar-note", Static).update(Content(f"{state.note}  ·  " if state.note else ""))
        self.query_one(WindowLabel).tell(state.window)
        self.query_one("#bar-right", Static).update(Content(_freshness(state.age)))

    def on_mount(self) -> None:
        self.watch_state(self.state)


class WindowLabel(Static):
    """The window of the screen; a click on either half acts as the key that it shows."""

    def tell(self, window: str) -> None:
        self.display = bool(window)
        key = "bold $accent"
        self.update(Content.assemble(("[", key), f" window {inert(window, 20)} ", ("]", key), "  ·  "))

    async def on_click(self, event: events.Click) -> None:
        await app_of(self).run_action("window(-1)" if event.x < self.size.width // 2 else "window(1)")


def _freshness(age: timedelta | None) -> str:
    if age is None:
        return "no data yet"
    return "data just in" if age < timedelta(seconds=1) else f"data {age.total_seconds():,.0f} s old"


class Banner(Static):
    """Visible only while the database does not answer."""

    def __init__(self) -> None:
        super().__init__("", markup=False)

    def tell(self, text: str | None) -> None:
        self.set_class(text is not None, "-seen")
        if text is not None:
            self.update(Content(inert(text, 400)))


class KeyBar(Footer):
    """The keys of the screen. They are made anew only when other keys are to be shown: Textual asks for that at every
    change of the screen and of the focus, and keeps the StylesCache of the last thousand widgets that it has drawn."""

    def __init__(self) -> None:
        super().__init__(compact=True, show_command_palette=False)
        self._keys: list[tuple[Binding, bool, str]] = []
        """The keys that are shown: each with whether it is enabled, and its tooltip."""

    def compose(self) -> ComposeResult:
        keys: list[tuple[Binding, bool, str]] | None = None
        for key in super().compose():  # none while Textual does not know the bindings yet
            if keys is None:  # not sooner: the app may have no screen yet, and the look at its bindings would end it
                keys = self._keys = self._wanted()
            yield key

    async def recompose(self) -> None:
        if not self.is_attached or self._wanted() == self._keys:  # Textual calls this later: the screen may be gone
            return
        await super().recompose()
        # Each key is bound to `compact`. Textual drops the bindings of removed keys only when the value is set: without
        # this, all keys of the whole session stay in memory.
        self.mutate_reactive(Footer.compact)

    def _wanted(self) -> list[tuple[Binding, bool, str]]:
        active = self.screen.active_bindings.values()
        return [(binding, enabled, tooltip) for _, binding, enabled, tooltip in active if binding.show]
