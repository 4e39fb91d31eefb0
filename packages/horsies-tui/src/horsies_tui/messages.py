"""What the rooms of the dashboard tell each other."""

from textual.message import Message

from horsies_tui.data.feed import Kinds
from horsies_tui.data.source import Outcome, Target


class DataStale(Message):
    """Something of these kinds may have changed; the screen that is seen looks again."""

    def __init__(self, kinds: Kinds) -> None:
        super().__init__()
        self.kinds = kinds


class SourceState(Message):
    """Whether an answer came, and why not."""

    def __init__(self, error: str | None) -> None:
        super().__init__()
        self.error = error


class ActionRequested(Message):
    """The operator has said yes."""

    def __init__(self, action: str, targets: tuple[Target, ...]) -> None:
        super().__init__()
        self.action = action
        self.targets = targets


class ActionDone(Message):
    """What became of it."""

    def __init__(self, action: str, outcome: Outcome) -> None:
        super().__init__()
        self.action = action
        self.outcome = outcome
