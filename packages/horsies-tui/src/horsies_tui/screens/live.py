"""What all screens share: load when told, show, keep the last good data when there is no answer, act after a yes."""

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen
from textual.widget import Widget
from textual.widgets import Footer

from horsies._text import plural, printable
from horsies_tui.actions import BY_ID, Action, for_screen
from horsies_tui.data.feed import Kinds
from horsies_tui.data.source import SourceError, Target
from horsies_tui.messages import ActionDone, ActionRequested, DataStale, SourceState
from horsies_tui.screens.confirm import ConfirmScreen
from horsies_tui.text import inert
from horsies_tui.widgets.live_table import LiveTable
from horsies_tui.widgets.nav_bar import NavBar
from horsies_tui.widgets.panel import Panel
from horsies_tui.widgets.status_bar import Banner, StatusBar
from horsies_tui.widgets.typed import app_of

if TYPE_CHECKING:
    from horsies_tui.app import Dashboard

T = TypeVar("T")


def action_bindings(name: str) -> list[BindingType]:
    """The keys of the actions of one screen; `check_action` hides those that are not allowed."""
    return [Binding(action.key, f"act('{action.id}')", action.label) for action in for_screen(name)]


class LiveScreen(Screen[None], Generic[T]):
    """A screen over one look at the source. `T` is what the look returns."""

    NAME: ClassVar[str]
    """As the navigation and the table of actions know it."""
    PLACE: ClassVar[str]
    """The place in the navigation that it belongs to."""
    KINDS: ClassVar[Kinds] = frozenset({"tasks"})
    HAS_WINDOW: ClassVar[bool] = False
    """Whether the session's window changes what it shows."""
    ABOUT: ClassVar[str] = ""
    """What it shows, for the help."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "reload", "Refresh", show=False),
        Binding("y", "copy", "Copy", show=False),
        Binding("escape", "back", "Back", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.data: T | None = None
        self._is_loading = False
        self._again = False
        # A widget is styled when it is mounted. A screen that does not say that it knows the current sheets makes
        # Textual parse all of them and style everything twice more: half of the time that a first visit takes.
        self._css_update_count = app_of(self)._css_update_count  # pyright: ignore[reportPrivateUsage]

    # -- for the screens -------------------------------------------------------------------------

    def body(self) -> ComposeResult:
        raise NotImplementedError

    def look(self) -> Callable[[], Awaitable[T]]:
        """The question, as it stands now."""
        raise NotImplementedError

    def show(self, data: T) -> None:
        raise NotImplementedError

    def targets(self, action: Action) -> Sequence[Target]:
        """What the action would act on: marks, or what is under the cursor, in the states that it applies to."""
        return ()

    def copied(self) -> str | None:
        """What `y` puts on the clipboard."""
        return None

    @property
    def dash(self) -> "Dashboard":
        return cast("Dashboard", app_of(self))

    def colour(self, state: str) -> str:
        return self.dash.colour(state)

    @property
    def muted(self) -> str:
        return self.dash.muted

    # -- life ------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield NavBar(self.PLACE)
        yield Banner()
        yield from self.body()
        yield StatusBar()
        yield Footer(compact=True, show_command_palette=False)

    def on_screen_resume(self) -> None:
        self.dash.tell_screen()
        self.reload()

    def on_data_stale(self, message: DataStale) -> None:
        message.stop()
        if "all" in message.kinds or message.kinds & self.KINDS:
            self.reload()

    def reload(self) -> None:
        """Look again; while a look is under way, once more after it. (Cancelling one would cost its connection.)"""
        if self._is_loading:
            self._again = True
            return
        self._is_loading = True
        self.run_worker(self._load(), group="load", exit_on_error=False)

    async def _load(self) -> None:
        try:
            while True:
                self._again = False
                question = self.look()
                try:
                    data = await question()
                    if not self._again:
                        self.data = data
                        self.show(data)
                        self.dash.post_message(SourceState(None))
                except SourceError as error:
                    self._failed(str(error))
                except Exception as error:  # a bug of ours must not look like a database without news
                    self.log.error(error)
                    self._failed(f"{type(error).__name__}: {error}")
                if not self._again or not self.is_attached:
                    return
        finally:
            self._is_loading = False

    def _failed(self, text: str) -> None:
        for panel in self.query(Panel):
            panel.face("error", inert(text))
        self.dash.post_message(SourceState(text))

    def repaint(self) -> None:
        """After a change of theme."""
        for table in self.query(LiveTable):
            table.repaint()
        if self.data is not None:
            self.show(self.data)

    # -- acting ----------------------------------------------------------------------------------

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        if action == "act":
            found = BY_ID.get(str(parameters[0]))
            return found is not None and self.NAME in found.screens and self.dash.may(found)
        return True

    async def action_act(self, name: str) -> None:
        action = BY_ID[name]
        targets = tuple(self.targets(action))
        if not self.dash.may(action):
            return
        if not targets:
            states = ", ".join(sorted(state.lower() for state in action.states))
            self.dash.say(f"nothing to {action.verb.lower()} here: it takes {states}", warn=True)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.post_message(ActionRequested(action.id, targets))

        self.dash.push_screen(ConfirmScreen(action, targets), answered)

    def on_action_requested(self, message: ActionRequested) -> None:
        message.stop()
        self.run_worker(self._act(message), group="act", exit_on_error=False)

    async def _act(self, message: ActionRequested) -> None:
        action = BY_ID[message.action]
        try:
            outcome = await self.dash.source.act(action.id, message.targets)
        except SourceError as error:
            self.dash.say(f"{action.label} failed: {error}", warn=True)
            return
        for table in self.query(LiveTable):
            if table.marks:
                table.unmark()
        self.post_message(ActionDone(action.id, outcome))

    def on_action_done(self, message: ActionDone) -> None:
        message.stop()
        action, outcome = BY_ID[message.action], message.outcome
        parts = [action.report(outcome.done)] if outcome.done or not (outcome.asked or outcome.not_done) else []
        if outcome.asked:
            parts.append(f"{outcome.asked} {action.asked or 'asked'}")
        if outcome.not_done:
            reasons: dict[str, int] = {}
            for _, why in outcome.not_done:
                reasons[why] = reasons.get(why, 0) + 1
            parts += [f"{count} left alone: {why}" for why, count in reasons.items()]
        self.dash.say("; ".join(parts), warn=bool(outcome.not_done))
        self.reload()

    # -- keys ------------------------------------------------------------------------------------

    def action_reload(self) -> None:
        self.reload()

    def action_back(self) -> None:
        for table in self.query(LiveTable):
            if table.marks:
                table.unmark()
                return
        if len(self.dash.screen_stack) > 1:
            self.dash.pop_screen()

    def action_copy(self) -> None:
        text = self.copied()
        if text:
            self.dash.copy_to_clipboard(printable(text))
            self.dash.say(f"copied {plural(len(text), 'character')}")

    def on_live_table_marks_changed(self, message: LiveTable.MarksChanged) -> None:
        message.stop()
        self.dash.tell_screen()

    @property
    def note(self) -> str:
        marked = sum(len(table.marks) for table in self.query(LiveTable))
        return f"{marked} marked" if marked else ""

    def focused_within(self, widget: Widget) -> bool:
        focused = self.focused
        return focused is not None and widget in focused.ancestors_with_self
