"""The dialog in which a signal is typed. Enter goes from the name to the value and to the button, which sends it."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from horsies_tui.actions import Action
from horsies_tui.data.signals import problem_of
from horsies_tui.data.source import Target
from horsies_tui.text import inert

_LISTED = 6


class SignalScreen(ModalScreen[tuple[str, str] | None]):
    """Returns the name and the JSON of the value, or None."""

    AUTO_FOCUS = "#typed"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", show=False),
        Binding("left,right", "other", "Other button", show=False),
    ]

    def __init__(self, action: Action, target: Target, waiting: Sequence[str]) -> None:
        """`target.part` is the name that is filled in; `waiting` are the names that nodes wait for."""
        super().__init__()
        self._action = action
        self._target = target
        self._waiting = waiting

    def compose(self) -> ComposeResult:
        more = len(self._waiting) - _LISTED
        names = ", ".join(inert(name, 40) for name in self._waiting[:_LISTED]) + (f" +{more}" if more > 0 else "")
        with Vertical(id="question"):
            yield Label(inert(f"Send a signal to {self._target.label}"), id="what", markup=False)
            told = f"waited for: {names}" if names else "no node waits for a signal now"
            yield Static(f"{inert(self._target.id, 40)}\n{told}", id="which", markup=False)
            yield Label("name", markup=False)
            yield Input(self._target.part, id="name", compact=True)
            yield Label("value, as JSON", markup=False)
            yield Input(id="typed", compact=True, placeholder='true, "yes", {"by": "ann"}, null')
            yield Static("", id="problems", markup=False)
            yield Static(self._action.means, id="means", markup=False)
            with Horizontal(id="answers"):
                yield Button("Go back", id="no", variant="default", compact=True)
                yield Button("Send", id="yes", variant="error", compact=True, disabled=True)

    def on_mount(self) -> None:
        if not self._target.part:
            self.query_one("#name", Input).focus()

    @property
    def _typed(self) -> tuple[str, str]:
        return self.query_one("#name", Input).value, self.query_one("#typed", Input).value

    def on_input_changed(self) -> None:
        problem = problem_of(*self._typed)
        self.query_one("#problems", Static).update(inert(problem or ""))
        self.query_one("#yes", Button).disabled = problem is not None

    def on_input_submitted(self, event: Input.Submitted) -> None:
        button = self.query_one("#yes", Button)
        if event.input.id == "name":
            self.query_one("#typed", Input).focus()
        elif not button.disabled:
            button.focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        is_sent = event.button.id == "yes" and problem_of(*self._typed) is None
        self.dismiss(self._typed if is_sent else None)

    def action_back(self) -> None:
        self.dismiss(None)

    def action_other(self) -> None:
        self.focus_next("Button")
