"""The first line: where one can go, where one is."""

from typing import Final

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.widgets import Static

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
