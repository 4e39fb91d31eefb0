"""The messages between the feed, the screens and the app."""

from dataclasses import dataclass

from textual.message import Message

from horsies.operate.actions import Outcome
from horsies_tui.data.feed import Kinds
from horsies_tui.data.source import Target


@dataclass
class DataStale(Message):
    """Rows of these kinds may have changed; the visible screen reads again."""

    kinds: Kinds


@dataclass
class SourceState(Message):
    """Whether a read succeeded; otherwise why it failed."""

    error: str | None


@dataclass
class ActionRequested(Message):
    """The operator has confirmed an action."""

    action: str
    targets: tuple[Target, ...]


@dataclass
class ActionDone(Message):
    """The outcome of an action."""

    action: str
    outcome: Outcome
