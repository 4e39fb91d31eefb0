"""The limits of a batch task, and the one parameter of its single tasks."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from horsies._checks import Checks

MAX_SIZE: Final = 1_000
MAX_WAIT_MS: Final = 60_000


@dataclass(frozen=True, slots=True)
class BatchLimits:
    """How many tasks a worker passes to one call, and how long the first of them waits for others."""

    max_size: int
    max_wait_ms: int

    def check(self, checks: Checks) -> None:
        checks.integer("max_size", self.max_size, 1, MAX_SIZE)
        checks.integer("max_wait_ms", self.max_wait_ms, 0, MAX_WAIT_MS, unit="ms")


def _one(item: Any) -> None:
    """Has the parameter of a single task of a batch task."""


ITEM_SIGNATURE: Final = inspect.signature(_one).replace(return_annotation=inspect.Signature.empty)


def item_taker() -> Callable[..., Any]:
    """A function with the parameter of a single task: what a `group_by` must be able to take."""
    return _by_place


def _by_place(item: Any, /) -> None:
    """Like `_one`, but the parameter may have any name in a `group_by`."""


def group_by_item(given: str | Callable[..., Any]) -> str | Callable[..., Any]:
    """`group_by=` of a batch task, with the parameter's name that rows and senders use."""
    if isinstance(given, str):
        return given

    def by_item(item: Any) -> Any:
        return given(item)

    return by_item
