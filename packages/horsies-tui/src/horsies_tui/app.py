"""The dashboard: screens, keys, themes and the feed. The rows are kept by the visible screen."""

import asyncio
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from typing import Any, ClassVar, Final, cast

from textual.app import App, SystemCommand
from textual.binding import Binding, BindingType
from textual.screen import Screen

from horsies_tui.actions import Action
from horsies_tui.commands import DashboardCommands
from horsies_tui.data.feed import SLOW_S, Feed, Kinds
from horsies_tui.data.filters import Query
from horsies_tui.data.models import Rights, Session
from horsies_tui.data.source import Source, SourceError
from horsies_tui.data.windows import DEFAULT, WINDOWS, Window
from horsies_tui.messages import DataStale, SourceState
from horsies_tui.screens.help import HelpScreen, keys_of
from horsies_tui.screens.live import LiveScreen
from horsies_tui.screens.maintenance import MaintenanceScreen
from horsies_tui.screens.overview import OverviewScreen
from horsies_tui.screens.schedules import SchedulesScreen
from horsies_tui.screens.stale import StaleScreen
from horsies_tui.screens.tasks import TasksScreen
from horsies_tui.screens.workers import WorkersScreen
from horsies_tui.screens.workflows import WorkflowsScreen
from horsies_tui.text import inert
from horsies_tui.themes import CYCLE, DEFAULT_VARIABLES, THEMES
from horsies_tui.widgets.bars import PLACES, Banner, BarState, StatusBar

_SHEETS: Final = (
    "overview", "tasks", "task", "worker", "queue", "stale", "workflow", "schedule", "maintenance", "confirm", "help",
)  # fmt: skip


class Dashboard(App[None]):
    """The app over a source."""

    TITLE = "horsies"
    CSS_PATH: ClassVar[Any] = ["base.tcss", *(f"screens/{name}.tcss" for name in _SHEETS)]
    """All style sheets at once: a sheet that is loaded with its screen makes Textual parse all of them again."""
    COMMANDS: ClassVar[set[Any]] = {DashboardCommands}
    MODES: ClassVar[dict[str, str | Callable[[], Screen[Any]]]] = {
        "overview": OverviewScreen, "tasks": TasksScreen, "workers": WorkersScreen, "stale": StaleScreen,
        "workflows": WorkflowsScreen, "schedules": SchedulesScreen, "maintenance": MaintenanceScreen,
    }  # fmt: skip
    DEFAULT_MODE = "overview"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (100, "-medium"), (120, "-wide")]  # noqa: RUF012  (as Textual has it)
    VERTICAL_BREAKPOINTS = [(0, "-low"), (34, "-high")]  # noqa: RUF012
    BINDINGS: ClassVar[list[BindingType]] = [
        *(
            Binding(str(number), f"go('{place}')", place.capitalize(), show=False)
            for number, place in enumerate(PLACES, 1)
        ),
        Binding("question_mark", "help", "Help"),
        Binding("p", "pause", "Pause", show=False),
        Binding("left_square_bracket", "window(-1)", "Shorter window", show=False),
        Binding("right_square_bracket", "window(1)", "Longer window", show=False),
        Binding("t", "theme", "Theme", show=False),
        Binding("ctrl+p,colon", "command_palette", "Palette", show=False),
        Binding("q", "quit", "Quit"),
    ]

    def __init__(
        self,
        source: Source,
        *,
        read_only: bool = False,
        refresh_s: float = SLOW_S,
        is_demo: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self.source = source
        self.queries: dict[str, Query] = {}
        """The filters in use, by screen; kept for the session."""
        self.session = Session("", "", Rights.none())
        self._read_only = read_only
        self._refresh_s = refresh_s
        self._is_demo = is_demo
        self._clock = clock
        self._window = DEFAULT
        self._is_live = False
        self._is_paused = False
        self._down_since: float | None = None
        self._error = ""
        self._loaded_at: float | None = None
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = THEMES[0].name

    # -- life ------------------------------------------------------------------------------------

    async def on_mount(self) -> None:
        self.theme_changed_signal.subscribe(self, lambda _theme: self._repaint())
        feed = Feed(self.source, self._stale, self._live, slow_s=self._refresh_s)
        self.run_worker(feed.run(), group="feed", exit_on_error=False)
        self.run_worker(self._find_session(), group="session", exit_on_error=False)
        self.set_interval(1.0, self.tell_screen)

    async def on_unmount(self) -> None:
        self.workers.cancel_all()
        await self.source.close()

    async def _find_session(self) -> None:
        while True:
            try:
                self.session = await self.source.session()
                break
            except SourceError:
                await asyncio.sleep(1.0)
        self.refresh_bindings()
        self.tell_screen()

    def _stale(self, kinds: Kinds) -> None:
        screen = self.live_screen()
        if screen is not None and not self._is_paused:
            screen.post_message(DataStale(kinds))

    def _live(self, is_live: bool) -> None:
        self._is_live = is_live
        self.tell_screen()

    def live_screen(self) -> LiveScreen[Any] | None:
        """The visible screen, also below a dialog."""
        for screen in reversed(self.screen_stack):
            if isinstance(screen, LiveScreen):
                return cast("LiveScreen[Any]", screen)
        return None

    # -- for the screens -------------------------------------------------------------------------

    @property
    def window(self) -> Window:
        return WINDOWS[self._window]

    def now(self) -> float:
        """The monotonic clock of this process, to measure how long ago a read was."""
        return self._clock()

    def may(self, action: Action) -> bool:
        """Whether this action is allowed: read-only mode and missing rights forbid it on every screen."""
        return not self._read_only and self.session.rights.has(action.right)

    def say(self, text: str, *, warn: bool = False) -> None:
        self.notify(inert(text, 300), severity="warning" if warn else "information", markup=False, timeout=6)

    def get_theme_variable_defaults(self) -> dict[str, str]:
        return {**DEFAULT_VARIABLES, "border": "#444c5c"}

    # -- the bar and the banner ------------------------------------------------------------------

    def on_source_state(self, message: SourceState) -> None:
        if message.error is None:
            self._down_since = None
            self._loaded_at = self._clock()
        else:
            self._down_since = self._down_since or self._clock()
            self._error = message.error
        self.tell_screen()

    def tell_screen(self) -> None:
        """Show the age of the data, once a second and after every change."""
        screen = self.live_screen()
        if screen is None or not screen.is_mounted:
            return
        now = self._clock()
        age = timedelta(seconds=now - self._loaded_at) if self._loaded_at is not None else None
        if self._down_since is not None:
            mode = "down"
        else:
            mode = "paused" if self._is_paused else "demo" if self._is_demo else "live" if self._is_live else "polling"
        place = f"{self.session.database} as {self.session.role}" if self.session.database else ""
        if place and (origin := self.source.origin()):
            place += f" · {inert(origin, 120)}"
        looks_only = self._read_only or not _acts(self.session.rights)
        window = self.window.name if screen.HAS_WINDOW else ""
        state = BarState(place, mode, age, window, looks_only, screen.note)
        for bar in screen.query(StatusBar):
            bar.state = state
        for banner in screen.query(Banner):
            banner.tell(self._banner(now))

    def _banner(self, now: float) -> str | None:
        if self._down_since is None:
            return None
        kept = "showing the last data that arrived" if self._loaded_at is not None else "nothing has arrived yet"
        return f"no answer for {now - self._down_since:.0f} s, trying again; {kept}. {self._error}"

    # -- keys ------------------------------------------------------------------------------------

    async def action_go(self, place: str) -> None:
        await self.switch_mode(place)
        while len(self.screen_stack) > 1:
            self.pop_screen()

    def action_pause(self) -> None:
        self._is_paused = not self._is_paused
        self._stale(frozenset({"all"}))
        self.tell_screen()

    def action_window(self, step: int) -> None:
        self.use_window(self._window + step)

    def use_window(self, place: int) -> None:
        self._window = min(len(WINDOWS) - 1, max(0, place))
        screen = self.live_screen()
        if screen is not None and screen.HAS_WINDOW:
            screen.reload()  # also while paused: the window has changed
        self.tell_screen()

    def action_theme(self) -> None:
        names = [name for name in CYCLE if name in self.available_themes]
        place = names.index(self.theme) if self.theme in names else -1
        self.theme = names[(place + 1) % len(names)]

    def _repaint(self) -> None:
        screen = self.live_screen()
        if screen is not None:
            screen.repaint()

    def action_help(self) -> None:
        screen = self.live_screen()
        if screen is not None:
            self.push_screen(HelpScreen(screen.NAME, screen.ABOUT, keys_of(screen.active_bindings)))

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        yield SystemCommand("Quit", "Leave the dashboard", self.action_quit)


def _acts(rights: Rights) -> bool:
    return any(rights.has(name) for name in ("may_cancel", "may_retry", "may_requeue", "may_fail", "may_pause_queue"))
