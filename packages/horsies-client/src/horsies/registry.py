"""The registered tasks of an app, by name. A name in a row is looked up here only; it is never imported."""

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from horsies.errors import TaskDefinitionError
from horsies.exception_codes import ExceptionCodes
from horsies.options import TaskOptions

if TYPE_CHECKING:
    from horsies.batch_limits import BatchLimits
    from horsies.codec import TaskCodec
    from horsies.groups import GroupBy


@dataclass(frozen=True, slots=True)
class TaskDefinition:
    """A registered task. `is_stub`: declared for sending only; the worker has the body."""

    name: str
    fn: Callable[..., Any]
    is_async: bool
    is_stub: bool
    codec: "TaskCodec"
    options: TaskOptions
    location: str
    group_by: "GroupBy | None" = None
    batch: "BatchLimits | None" = None
    """Of a batch task: `fn` takes a list of items, one of each task."""
    exception_codes: ExceptionCodes = field(default_factory=ExceptionCodes)
    """The error codes of exceptions that escape it: those of the app, and its own."""

    def signature(self) -> inspect.Signature:
        """The parameters of a send, which are those of the function, or the item of a batch task."""
        if self.batch is None:
            return inspect.signature(self.fn)
        from horsies.batch_limits import ITEM_SIGNATURE

        return ITEM_SIGNATURE


class Registry:
    """The tasks of one app."""

    def __init__(self) -> None:
        self._tasks: dict[str, TaskDefinition] = {}

    def add(self, definition: TaskDefinition) -> None:
        known = self._tasks.get(definition.name)
        # The same line again: the module was imported twice (as __main__ and by name, or by a reloader).
        if known is not None and known.location != definition.location:
            raise TaskDefinitionError(
                definition.name,
                f"the name is taken by {known.fn.__qualname__} at {known.location}",
                "give each task a name of its own",
                location=definition.location,
            )
        self._tasks[definition.name] = definition

    def get(self, name: str) -> TaskDefinition | None:
        return self._tasks.get(name)

    def __iter__(self) -> Iterator[TaskDefinition]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)
