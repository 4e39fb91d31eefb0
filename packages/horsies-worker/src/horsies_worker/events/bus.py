"""The bus: services emit events, subscribers get them at once, in the same thread."""

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar

from horsies import events
from horsies.events import Event

KINDS: Final[tuple[type[Event], ...]] = tuple(
    kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event) and kind is not Event
)
"""All classes of events, in the order of `horsies.events`."""
E = TypeVar("E", bound=Event)
_log = logging.getLogger("horsies.worker")


class EventBus:
    """Synchronous: subscribers run on the event loop of the worker, and must return at once."""

    __slots__ = ("_handlers",)

    def __init__(self) -> None:
        self._handlers: dict[type[Event], list[Callable[[Any], object]]] = {}

    def subscribe(self, kind: type[E], handler: Callable[[E], object]) -> None:
        """Call the handler for each event of this class; `Event` stands for all classes."""
        for one in KINDS if kind is Event else (kind,):
            self._handlers.setdefault(one, []).append(handler)

    def wants(self, kind: type[Event]) -> bool:
        """Whether an event of this class has a subscriber; otherwise it need not be made."""
        return kind in self._handlers

    def emit(self, event: Event) -> None:
        for handler in self._handlers.get(type(event), ()):
            try:
                handler(event)
            except Exception:
                _log.exception("a subscriber of %s failed", type(event).__name__)


SILENT: Final = EventBus()
"""Without subscribers, for services that are used alone."""
