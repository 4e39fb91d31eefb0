"""The dialog in which a policy is typed. Enter goes to the button, enter there overrides; escape goes back."""

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from horsies.operate.policies import Policy, QueuePolicy, SharedLimit
from horsies_tui.data.policies import Subject, changes, typed, words
from horsies_tui.text import inert

_MEANS = (
    "It holds from the next claim on, in every worker, until it is unset; what runs goes on. `none` is no limit. What "
    "is left out stays as it is."
)


class PolicyScreen(ModalScreen[str | None]):
    """Returns the changed fields as words, or None."""

    AUTO_FOCUS = "#typed"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "back", "Back", show=False),
        Binding("left,right", "other", "Other button", show=False),
    ]

    def __init__(self, subject: Subject, one: QueuePolicy | SharedLimit) -> None:
        super().__init__()
        self._subject = subject
        self._one = one

    def compose(self) -> ComposeResult:
        fields = self._subject.fields
        declared = typed(Policy.of(self._one.declared or {}), fields)
        with Vertical(id="question"):
            yield Label(inert(f"Override the policy of {self._subject}"), id="what", markup=False)
            yield Static(inert(f"declared: {declared}"), id="which", markup=False)
            yield Input(typed(self._one.effective, fields), id="typed", compact=True)
            yield Static("", id="problems", markup=False)
            yield Static(_MEANS, id="means", markup=False)
            with Horizontal(id="answers"):
                yield Button("Go back", id="no", variant="default", compact=True)
                yield Button("Override", id="yes", variant="error", compact=True, disabled=True)

    @property
    def _change(self) -> tuple[str, list[str]]:
        text = self.query_one("#typed", Input).value
        found, problems = changes(text, self._one.effective, self._subject.fields)
        return words(found), problems

    def on_input_changed(self) -> None:
        change, problems = self._change
        told = "; ".join(problems) or (f"changes {change}" if change else "changes nothing")
        self.query_one("#problems", Static).update(inert(told))
        self.query_one("#yes", Button).disabled = bool(problems) or not change

    def on_input_submitted(self) -> None:
        button = self.query_one("#yes", Button)
        if not button.disabled:
            button.focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(self._change[0] if event.button.id == "yes" else None)

    def action_back(self) -> None:
        self.dismiss(None)

    def action_other(self) -> None:
        self.focus_next("Button")
