"""What producers send: kinds with their shares, drawn from a seed, and how each kind must end."""

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, Final

from tests.soak import settings
from tests.soak.app import Item

SHARES: Final[Mapping[str, int]] = {
    "steady": 46, "long": 4, "nap": 5, "burn": 3, "in_c": 1, "flaky": 6, "once": 6, "dies_once": 2, "poison": 1,
    "expiring": 3, "cancelled": 3, "snoozes": 3, "delayed": 3, "capped": 3, "in_group": 4, "rated": 4, "unique": 3,
    "bulk": 4, "completes": 4, "transactional": 3, "replaced": 3,
}  # fmt: skip
"""Per cent, more or less."""

STEADY: Final = frozenset({"steady", "once", "nap", "rated"})
"""Short tasks whose ends per second are the rate of the fleet."""

ALWAYS_COMPLETED: Final = frozenset(SHARES) - {"once", "poison", "expiring", "cancelled"}


@dataclass(frozen=True)
class Call:
    """One send: a task by name, its arguments and its options."""

    kind: str
    task: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    cancel_after_s: float | None = None
    commits: bool | None = None
    """Sent in a transaction of the producer's own, which is committed or rolled back."""

    def sender(self, tasks: SimpleNamespace) -> Any:
        task = getattr(tasks, self.task)
        return task.with_options(**self.options) if self.options else task


def draw(chance: random.Random, k: int, producer: int = 0) -> Call:
    kind = chance.choices(list(SHARES), list(SHARES.values()))[0]
    return make(kind, k, chance, producer)


def make(kind: str, k: int, chance: random.Random, producer: int = 0) -> Call:
    short = round(chance.uniform(0.01, 0.05), 3)
    match kind:
        case "steady" | "once" | "nap":
            return Call(kind, kind, (k, short))
        case "long":
            return Call(kind, "steady", (k, round(chance.uniform(1.0, 2.0), 3)))
        case "burn":
            return Call(kind, "burn", (k, 0.1))
        case "in_c":
            return Call(kind, "in_c", (k, 2.0))
        case "flaky" | "dies_once" | "poison" | "snoozes" | "rated":
            return Call(kind, kind, (k,))
        case "expiring":
            return Call(kind, "steady", (k, short), {"good_until": timedelta(seconds=2)})
        case "cancelled":
            return Call(kind, "steady", (k, 0.3), cancel_after_s=round(chance.uniform(0, 0.2), 3))
        case "delayed":
            return Call(kind, "steady", (k, short), {"delay": round(chance.uniform(0.5, 3.0), 3)})
        case "capped":
            return Call(kind, "steady", (k, 0.1), {"queue_name": "capped"})
        case "in_group":
            return Call(kind, "in_group", (k, f"g{chance.randrange(4)}", 0.1))
        case "unique":
            return Call(kind, "steady", (k, 0.2), {"unique_key": f"u{chance.randrange(3)}"})
        case "replaced":
            key = f"r{producer}-{chance.randrange(2)}"
            return Call(kind, "steady", (k, short), {"unique_key": key, "on_conflict": "replace", "delay": 0.5})
        case "transactional":
            return Call(kind, "steady", (k, short), commits=chance.random() < 0.7)
        case "bulk":
            return Call(kind, "bulk", (Item(k=k),))
        case "completes":
            return Call(kind, "completes_itself", (k, settings.SECRET))
        case _:
            raise AssertionError(kind)


HOSTILE: Final[Mapping[str, tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    "not a number": ("steady", (1, float("nan")), {}),
    "text for a number": ("steady", ("1", 0.0), {}),
    "missing argument": ("in_c", (1,), {}),
    "NUL in a text": ("in_group", (1, "a\0b"), {}),
    "queue that does not exist": ("steady", (1, 0.0), {"queue_name": "nowhere"}),
    "deadline in the past": ("steady", (1, 0.0), {"good_until": timedelta(seconds=-5)}),
    "id that is no UUID": ("steady", (1, 0.0), {"task_id": "'; DROP TABLE horsies_tasks; --"}),
}
"""Sends that must be refused with a typed error, before a row is written."""
