"""The base of all screens: it reads, shows, keeps the last data after a failed read, and acts after a confirmation."""

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.screen import Screen

from horsies._text import plural, printable
from horsies_tui.actions import BY_ID, Action, for_screen
from horsies_tui.data.feed import Kinds
from horsies_tui.data.source import SourceError, Target
from horsies_tui.messages import ActionDone, ActionRequested, DataStale, SourceState
from horsies_tui.screens.confirm import ConfirmScreen
from horsies_tui.text import inert
from horsies_tui.widgets.bars import Banner, KeyBar, NavBar, StatusBar
from horsies_tui.widgets.live_table import LiveTable
from horsies_tui.widgets.panel import Panel, TablePanel
from horsies_tui.widgets.typed import app_of

if TYPE_CHECKING:
    from horsies_tui.app import Dashboard

T = TypeVar("T")


class LiveScreen(Screen[None], Generic[T]):
    """A screen over one read of the source, which returns a `T`."""

    NAME: ClassVar[str]
    """Its name in the navigation and in the table of actions."""
    PLACE: ClassVar[str] = ""
    """Its entry in the navigation, if that has another name."""
    TABLE: ClassVar[str] = ""
    """The table whose rows are acted on and copied; without one, actions apply to all targets."""
    KINDS: ClassVar[Kinds] = frozenset({"tasks"})
    HAS_WINDOW: ClassVar[bool] = False
    """Whether it depends on the window of the session."""
    ABOUT: ClassVar[str] = ""
    """Its description in the help."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("r", "reload", "Refresh", show=False),
        Binding("y", "copy", "Copy", show=False),
        Binding("escape", "back", "Back", show=False),
    ]

    def __init_subclass__(cls, **options: Any) -> None:
        """Add the keys of the screen's actions; `check_action` hides actions that are not allowed."""
        acts = [
            Binding(one.key, f"act('{one.id}')", one.label, show=one.is_shown)
            for one in for_screen(getattr(cls, "NAME", ""))
        ]
        cls.BINDINGS = [*acts, *cls.__dict__.get("BINDINGS", ())]  # pyright: ignore[reportConstantRedefinition]
        super().__init_subclass__(**options)

    def __init__(self) -> None:
        super().__init__()
        self.data: T | None = None
        self.is_loading = False
        self._again = False
        # A widget is styled when it is mounted. Unless the screen is marked as up to date with the style sheets,
        # Textual parses all of them and styles everything twice more: half of the time of a first visit.
        self._css_update_count = app_of(self)._css_update_count  # pyright: ignore[reportPrivateUsage]

    # -- for the screens -------------------------------------------------------------------------

    def body(self) -> ComposeResult:
        raise NotImplementedError

    async def look(self) -> T:
        """Read with the current filter and window."""
        raise NotImplementedError

    def show(self, data: T) -> None:
        raise NotImplementedError

    def targets(self) -> Iterable[Target]:
        """What the screen's actions can apply to, such as the rows of its table."""
        return ()

    def targets_of(self, action: Action) -> Iterable[Target]:
        """What this action can apply to, if not all actions of the screen have the same targets."""
        return self.targets()

    def copied(self) -> str | None:
        """The text that `y` copies to the clipboard."""
        return "\n".join(map(inert, self.table.chosen)) if self.TABLE else None

    @property
    def table(self) -> LiveTable:
        return self.query_one(f"#{self.TABLE}", LiveTable)

    def panel(self, name: str) -> TablePanel:
        return self.query_one(f"#{name}-panel", TablePanel)

    @property
    def dash(self) -> "Dashboard":
        return cast("Dashboard", app_of(self))

    # -- life ------------------------------------------------------------------------------------

    def compose(self) -> ComposeResult:
        yield NavBar(self.PLACE or self.NAME)
        yield Banner()
        yield from self.body()
        yield StatusBar()
        yield KeyBar()

    def on_screen_resume(self) -> None:
        self.dash.tell_screen()
        self.reload()

    def on_data_stale(self, message: DataStale) -> None:
        if self.is_stale(message.kinds):
            self.reload()

    def is_stale(self, kinds: Kinds) -> bool:
        """Whether a change of these kinds of rows may change what the screen shows."""
        return "all" in kinds or bool(kinds & self.KINDS)

    def reload(self) -> None:
        """Read again; during a read, once more after it. (Cancelling a read would close its connection.)"""
        if self.is_loading:
            self._again = True
            return
        self.is_loading = True
        self.run_worker(self._load(), group="load", exit_on_error=False)

    async def _load(self) -> None:
        try:
            while True:
                self._again = False
                try:
                    data = await self.look()
                    if not self._again:
                        self.data = data
                        self.show(data)
                        self.dash.post_message(SourceState(None))
                except SourceError as error:
                    self._failed(str(error))
                except Exception as error:  # a bug must not look like a database without changes
                    self.log.error(error)
                    self._failed(f"{type(error).__name__}: {error}")
                if not self._again or not self.is_attached:
                    return
        finally:
            self.is_loading = False

    def _failed(self, text: str) -> None:
        for panel in self.query(Panel):
            panel.face("error", inert(text))
        self.dash.post_message(SourceState(text))

    def repaint(self) -> None:
        """Draw again after a change of theme."""
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

    def _chosen(self, action: Action) -> tuple[Target, ...]:
        """The marked rows, or the row under the cursor, in the states that the action applies to."""
        found = {target.id: target for target in self.targets_of(action) if target.expected in action.states}
        return tuple(found[key] for key in (self.table.chosen if self.TABLE else found) if key in found)

    async def action_act(self, name: str) -> None:
        action = BY_ID[name]
        targets = self._chosen(action)
        if not self.dash.may(action):
            return
        if not targets:
            takes = action.takes or ", ".join(sorted(state.lower() for state in action.states))
            self.dash.say(f"nothing to {action.verb.lower()} here: it takes {takes}", warn=True)
            return

        def answered(yes: bool | None) -> None:
            if yes:
                self.post_message(ActionRequested(action.id, targets))

        self.dash.push_screen(ConfirmScreen(action, targets), answered)

    def on_action_requested(self, message: ActionRequested) -> None:
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
        action, outcome = BY_ID[message.action], message.outcome
        parts = [action.report(outcome.done)] if outcome.done or not (outcome.asked or outcome.not_done) else []
        if outcome.asked:
            parts.append(f"{outcome.asked} {action.asked or 'asked'}")
        reasons = Counter(why for _, why in outcome.not_done)
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

    def on_live_table_marks_changed(self) -> None:
        self.dash.tell_screen()

    @property
    def note(self) -> str:
        marked = sum(len(table.marks) for table in self.query(LiveTable))
        return f"{marked} marked" if marked else ""
