"""Unique keys without a database: which task holds a key, and until when. The function `horsies_send_unique` decides
the same; `tests/integration/test_unique_sends_kit.py` compares both."""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, NamedTuple, Protocol, TypeVar

from horsies.status import TaskStatus

if TYPE_CHECKING:
    from horsies.new_tasks import NewTasks
    from horsies.testing.records import SentTask
    from horsies.uniqueness import Uniqueness


class TaskRow(Protocol):
    """A task of the store."""

    @property
    def sent(self) -> "SentTask": ...


R = TypeVar("R", bound=TaskRow)
Place = tuple[str, str]
"""The name of the task and the key."""
_NO_TIME: Final = timedelta(0)


@dataclass(slots=True, eq=False)
class _Held(Generic[R]):
    """A row of `horsies_unique_keys`."""

    row: R
    until: datetime
    sends: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])
    """The ids and fingerprints of the sends that the task took over."""
    before: "_Held[R] | None" = None


class Verdict(NamedTuple, Generic[R]):
    """What becomes of a send: a task of its own, what `row` has now, or nothing."""

    outcome: Literal["sent", "replaced", "kept"]
    row: R | None = None
    """The task that holds the key."""


class UniqueKeys(Generic[R]):
    """The keys of one `with` block."""

    def __init__(self) -> None:
        self.now: Callable[[], datetime] = lambda: datetime.now(UTC)
        """For the modes: the time, with what the test has let pass."""
        self._live: dict[Place, R] = {}
        """As the index of unique keys: the task that has not ended."""
        self._held: dict[Place, _Held[R]] = {}

    def live(self, task_name: str, key: str) -> R | None:
        return self._live.get((task_name, key))

    def judge(self, tasks: "NewTasks", unique: "Uniqueness", key: str) -> Verdict[R]:
        """What a send with `unique_for`, `debounce` or `on_conflict="replace"` does; its id is new."""
        place = tasks.plan.task_name, key
        held = self._held.get(place)
        if held is not None and (tasks.ids[0], tasks.shas[0]) in held.sends:
            return Verdict("kept", held.row)  # repeated
        holder = held.row if held is not None and not held.row.sent.status.is_terminal else self._live.get(place)
        if unique.mode == "keep":
            if holder is None and held is not None and held.until > self.now():
                holder = held.row
            return Verdict("sent") if holder is None else Verdict("kept", holder)
        if holder is not None and holder.sent.status is not TaskStatus.PENDING:
            holder = self._live.get(place)
        if holder is None or holder.sent.status is not TaskStatus.PENDING:
            return Verdict("sent")
        if held is None or held.row is not holder:
            held = self._held[place] = _Held(holder, self.now(), before=held)
        held.sends.add((tasks.ids[0], tasks.shas[0]))
        return Verdict("replaced", holder)

    def take(self, row: R, key: str, unique: "Uniqueness | None") -> None:
        """The key is that of this new task."""
        place = row.sent.task_name, key
        if unique is not None:
            until = self.now() + (unique.unique_for or _NO_TIME)
            self._held[place] = _Held(row, until, before=self._held.get(place))
        self._live.setdefault(place, row)

    def release(self, row: R) -> None:
        """The task has ended."""
        for place in [place for place, live in self._live.items() if live is row]:
            del self._live[place]

    def forget(self, row: R) -> None:
        """The transaction that sent the task was rolled back."""
        self.release(row)
        for place, held in list(self._held.items()):
            if held.row is row:
                if held.before is None:
                    del self._held[place]
                else:
                    self._held[place] = held.before


def overwrite(old: Any, new: Any, *, keep: frozenset[str] = frozenset()) -> Callable[[], None]:
    """Give `old` the fields of `new`; returns what takes that back."""
    before = {one.name: getattr(old, one.name) for one in fields(old)}

    def set_all(values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name not in keep:
                setattr(old, name, value)

    set_all({name: getattr(new, name) for name in before})
    return lambda: set_all(before)
