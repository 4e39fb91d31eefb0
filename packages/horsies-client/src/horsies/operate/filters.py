"""The filter that lists, counts and actions on tasks share, and the cursor between two pages."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from decimal import Decimal
from math import isfinite
from typing import Any, Final, Self, cast

from horsies._checks import Checks, shown
from horsies.ids import id_problem, is_storable_id
from horsies.status import TASK_TERMINAL_STATES, TaskStatus

LIVE_STATES: Final = frozenset(TaskStatus) - TASK_TERMINAL_STATES
RETRYABLE_STATES: Final = TASK_TERMINAL_STATES - {TaskStatus.COMPLETED}
_ALWAYS_WITH_CODE: Final = frozenset({TaskStatus.FAILED, TaskStatus.EXPIRED})

_SETS: Final = ("ids", "queues", "group", "task_names", "error_codes", "statuses")
_TEXTS: Final = ("id_start", "name_part", "worker_id", "worker_part", "code_part")
_SPANS: Final = ("older_than", "newer_than")

METADATA_WINDOW: Final = timedelta(hours=24)
"""How far back a condition on metadata looks among ended tasks, because it has no index."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """The tasks for which every given condition holds; all tasks when none is given. A plain string counts as a
    collection of one."""

    ids: Collection[str] | None = None
    id_start: str | None = None
    """The first characters of the id."""
    statuses: Collection[TaskStatus] | None = None
    queues: Collection[str] | None = None
    group: Collection[str] | None = None
    """The key of the task's group, or several of them."""
    task_names: Collection[str] | None = None
    name_part: str | None = None
    """A part of the task's name, in lower case."""
    error_codes: Collection[str] | None = None
    """Only ended tasks have an error code."""
    code_part: str | None = None
    """A part of the error code, in lower case."""
    worker_id: str | None = None
    """The worker that holds the task, or that ran it last."""
    worker_part: str | None = None
    """A part of that worker's id."""
    older_than: timedelta | None = None
    """The least time that a task has been in its state; for a waiting task, that it has been due."""
    newer_than: timedelta | None = None
    in_workflow: bool | None = None
    """True selects only tasks of workflows, False only other tasks."""
    metadata: Mapping[str, str | float | bool] | None = field(default=None, hash=False)
    """The values that a task's metadata has under these keys, all of them. Values are compared as text: 5 and "5" are
    the same, and so are True and "true". Looks at live tasks and at those that ended within `window`."""

    def __post_init__(self) -> None:
        checks = Checks("TaskFilter")
        for name in _SETS:
            self._keep(checks, name)
        for name in _TEXTS:
            checks.text(name, getattr(self, name), optional=True)
        for name in _SPANS:
            checks.span(name, getattr(self, name), optional=True)
        self._keep_metadata(checks)
        checks.finish()

    def _keep(self, checks: Checks, name: str) -> None:
        value = cast("object", getattr(self, name))
        if value is None:
            return
        given = [value] if isinstance(value, str) else list(cast("Collection[object]", value))
        for one in given:
            if name == "ids" and not is_storable_id(one):
                checks.add(name, f"{shown(one)} cannot be the id of a task", "give ids as `tasks list` prints them")
            elif name == "statuses":
                checks.word(name, one, tuple(TaskStatus))
            else:
                checks.text(name, one)
        is_status = name == "statuses"
        kept = frozenset(one for one in TaskStatus if one in given) if is_status else tuple(dict.fromkeys(given))
        object.__setattr__(self, name, kept)

    def _keep_metadata(self, checks: Checks) -> None:
        given = cast("object", self.metadata)
        if given is None:
            return
        if not isinstance(given, Mapping):
            checks.add("metadata", f"must be a mapping, got {shown(given)}", 'write {"tenant": "acme"}')
            return
        kept = dict(cast("Mapping[object, object]", given))
        for key, value in kept.items():
            if not checks.text("metadata", key):
                continue
            if not isinstance(value, str | int | float):
                why = f"{shown(value)} cannot be compared with the value of {shown(key)}"
                checks.add("metadata", why, "give a text, a number, True or False")
            elif not (_is_storable(key) and _is_storable(value)):
                checks.add("metadata", f"no task can have {shown(key)}: {shown(value)}", "give what JSON can store")
        object.__setattr__(self, "metadata", kept or None)

    @property
    def _wanted(self) -> frozenset[TaskStatus]:
        return frozenset(self.statuses if self.statuses is not None else TaskStatus)

    @property
    def live(self) -> frozenset[TaskStatus]:
        """The live states in which a task can match."""
        if self.error_codes is not None or self.code_part is not None:
            return frozenset()
        held_only = self.worker_id is not None or self.worker_part is not None
        return (LIVE_STATES - {TaskStatus.PENDING} if held_only else LIVE_STATES) & self._wanted

    @property
    def ended(self) -> frozenset[TaskStatus]:
        """The terminal states in which a task can match. No success has an error code."""
        has_codes = self.error_codes is not None or self.code_part is not None
        return (RETRYABLE_STATES if has_codes else TASK_TERMINAL_STATES) & self._wanted

    @property
    def has_code(self) -> bool:
        """Whether every ended task that can match has an error code."""
        return self.code_part is not None or self.ended <= _ALWAYS_WITH_CODE

    @property
    def window(self) -> timedelta | None:
        """How far back a condition on metadata looks among ended tasks: 24 hours, before `older_than`. None when there
        is no such bound: without that condition, with `newer_than` or ids, or when only live tasks are wanted."""
        if self.metadata is None or self.newer_than is not None or self.ids is not None or not self.ended:
            return None
        return (self.older_than or timedelta()) + METADATA_WINDOW

    def call(self, statement: str, statuses: Collection[TaskStatus]) -> tuple[Any, ...]:
        """The name of a statement that reads tasks in these states, and the parameters of its `task_filter`."""
        is_ended = self.ended.issuperset(statuses)
        newer_than = (self.window if is_ended else None) or self.newer_than
        return (
            statement_for(statement, self.metadata), _listed(self.ids), self.id_start, sorted(statuses),
            _listed(self.queues), _listed(self.task_names), self.name_part, self.worker_id, self.worker_part,
            self.older_than, newer_than, self.in_workflow, _listed(self.error_codes), self.code_part,
            _listed(self.group), self.has_code and is_ended, metadata_texts(self.metadata),
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        """No condition is given."""
        return self == TaskFilter()


def walk(filter: TaskFilter) -> str:
    """Along which index the ended tasks of a filter are found, as in the statement `list_coded_tasks`: that of error
    codes, that of states without success (`unsuccessful`), or that of all ends (`ended`)."""
    if filter.error_codes is not None:
        return "coded"
    return "ended" if TaskStatus.COMPLETED in filter.ended else "unsuccessful"


def statement_for(name: str, metadata: Mapping[str, Any] | None) -> str:
    """The name of the statement's text that can compare metadata, if it has to: not every role may read that column."""
    return f"{name}_by_metadata" if metadata else name


def metadata_texts(metadata: Mapping[str, str | float | bool] | None) -> str | None:
    """The parameter `metadata` of such a statement: the text of each value, as the operator ->> returns it."""
    return json.dumps({key: _text(value) for key, value in metadata.items()}) if metadata else None


def _text(value: str | float | bool) -> str:
    if isinstance(value, float):
        return format(Decimal(repr(value)), "f")  # PostgreSQL stores 1e20 with all of its digits
    return value if isinstance(value, str) else json.dumps(value)


def _is_storable(value: object) -> bool:
    """Whether PostgreSQL can store it in JSON: no NUL, no half of a surrogate pair, no infinity."""
    if isinstance(value, float):
        return isfinite(value)
    return not isinstance(value, str) or not any(char == "\0" or "\ud800" <= char <= "\udfff" for char in value)


def _listed(values: Collection[str] | None) -> list[str] | None:
    return None if values is None else list(values)


@dataclass(frozen=True, slots=True)
class TaskCursor:
    """The end of a page, from which the next page continues. Its text form can be stored and parsed again."""

    id: str
    terminal_at: datetime | None

    def __str__(self) -> str:
        return self.id if self.terminal_at is None else f"{self.id}@{self.terminal_at.isoformat()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        task_id, at, moment = text.partition("@")
        terminal_at = datetime.fromisoformat(moment) if at else None
        if id_problem(task_id) or (terminal_at is not None and terminal_at.tzinfo is None):
            raise ValueError(f"{shown(text)} is not where a page of tasks ended")
        return cls(task_id, terminal_at)


def id_list(task_ids: Iterable[str]) -> list[str]:
    """Each id once, sorted. A single str is one id, and not its characters."""
    return sorted({task_ids} if isinstance(task_ids, str) else set(task_ids))
