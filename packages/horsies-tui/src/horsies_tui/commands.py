"""The palette: change the screen, use a filter, act on the selection. It depends on the screen and on the rights."""

from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from textual.command import DiscoveryHit, Hit, Hits, Provider

from horsies_tui.actions import for_screen
from horsies_tui.data.filters import Query
from horsies_tui.data.windows import WINDOWS
from horsies_tui.screens.help import key_name
from horsies_tui.themes import CYCLE
from horsies_tui.widgets.bars import PLACES

if TYPE_CHECKING:
    from horsies_tui.app import Dashboard

Call = Callable[[], Awaitable[Any] | Any]

PRESETS: Final = (
    ("failed tasks", "status:failed"),
    ("running tasks", "status:running"),
    ("waiting tasks", "status:pending"),
    ("crashed workers' tasks", "status:failed error:worker_crashed"),
    ("expired tasks", "status:expired"),
    ("all tasks", ""),
)


class DashboardCommands(Provider):
    async def discover(self) -> Hits:
        for text, call, about in self._commands():
            yield DiscoveryHit(text, call, help=about)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for text, call, about in self._commands():
            score = matcher.match(text)
            if score > 0:
                yield Hit(score, matcher.highlight(text), call, help=about)

    def _commands(self) -> Iterator[tuple[str, Call, str]]:
        app = cast("Dashboard", self.app)
        for number, place in enumerate(PLACES, 1):
            yield f"go to {place}", partial(app.action_go, place), f"key {number}"
        for name, text in PRESETS:
            yield f"show {name}", partial(self._preset, text), text or "without a filter"
        for place, window in enumerate(WINDOWS):
            yield f"window {window.name}", partial(app.use_window, place), f"curves and what {window.ended}"
        screen = self.screen
        name = str(getattr(screen, "NAME", ""))
        for action in for_screen(name):
            if app.may(action):
                label = f"{action.verb.lower()} the selected {action.noun}s"
                yield (
                    label,
                    partial(screen.run_action, f"act('{action.id}')"),
                    f"key {key_name(action.key)}: {action.means}",
                )
        for theme in CYCLE:
            if theme in app.available_themes:
                yield f"theme {theme}", partial(setattr, app, "theme", theme), "colours"
        yield "help", app.action_help, "what this screen shows, and its keys"
        yield "pause or go on", app.action_pause, "keep the data as it is while you read"

    async def _preset(self, text: str) -> None:
        app = cast("Dashboard", self.app)
        app.queries["tasks"] = Query.parse(text)[0]
        await app.action_go("tasks")
