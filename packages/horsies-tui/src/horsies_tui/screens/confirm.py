"""The confirmation of an action, with its targets and their number; the focus starts on the button that goes back."""

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label, Static

from horsies_tui.actions import TYPE_ABOVE, Action
from horsies_tui.data.source import Target
from horsies_tui.text import inert
from horsies_tui.themes import GLYPHS, variable_of

_LISTED = 6


class ConfirmScreen(ModalScreen[bool]):
    """Returns True when the operator confirms."""

    AUTO_FOCUS = "#no"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,n", "no", "Back", show=False),
        Binding("left,right", "other", "Other button", show=False),
    ]

    def __init__(self, action: Action, targets: Sequence[Target]) -> None:
        super().__init__()
        self._action = action
        self._targets = targets

    def compose(self) -> ComposeResult:
        count = len(self._targets)
        with Vertical(id="question"):
            yield Label(self._action.question(count), id="what", markup=False)
            yield Static(Content("\n").join(self._lines()), id="which")
            yield Static(self._action.means, id="means", markup=False)
            if count > TYPE_ABOVE:
                yield Label(f"More than {TYPE_ABOVE}: type {count} to go on", markup=False)
                yield Input(id="typed", compact=True, placeholder=str(count))
            with Horizontal(id="answers"):
                yield Button("Go back", id="no", variant="default", compact=True)
                yield Button(
                    f"{self._action.verb} {count:,}", id="yes", variant="error", compact=True,
                    disabled=count > TYPE_ABOVE,
                )  # fmt: skip

    def _lines(self) -> list[Content]:
        lines = [
            Content.assemble(
                (f"{GLYPHS.get(target.expected, '·')} ", f"${variable_of(target.expected)}"), inert(target.label, 44),
                (f"  {inert(target.id, 40)}", "$text-muted"),
            )
            for target in self._targets[:_LISTED]
        ]  # fmt: skip
        more = len(self._targets) - _LISTED
        return [*lines, Content(f"… and {more:,} more")] if more > 0 else lines

    def on_input_changed(self, event: Input.Changed) -> None:
        self.query_one("#yes", Button).disabled = event.value.strip() != str(len(self._targets))

    def on_input_submitted(self) -> None:
        self.query_one("#yes", Button).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        self.dismiss(event.button.id == "yes")

    def action_no(self) -> None:
        self.dismiss(False)

    def action_other(self) -> None:
        self.focus_next("Button")
