"""A number, its past as a curve, and the curve's window and maximum as text."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Sparkline, Static


class MetricCard(Vertical):
    def __init__(self, title: str, *, id: str) -> None:
        super().__init__(id=id)
        self.border_title = title

    def compose(self) -> ComposeResult:
        yield Static("–", classes="value", markup=False)
        yield Sparkline(summary_function=max)
        yield Static("", classes="foot", markup=False)

    def show(self, value: str, curve: Sequence[float], foot: str, covers: str = "") -> None:
        """`covers` is the time span of the number, unless it is the current value."""
        shown = Content.assemble(value, (f"  {covers}", "$text-muted not bold")) if covers else Content(value)
        self.query_one(".value", Static).update(shown)
        self.query_one(Sparkline).data = list(curve) or None
        self.query_one(".foot", Static).update(foot)
