"""The filter that lists, counts and actions on tasks share, and the cursor between two pages."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Self, cast

from horsies._checks import Checks, shown
from horsies.ids import id_problem, is_storable_id
from horsies.status import TASK_TERMINAL_STATES, TaskStatus

LIVE_STATES: Final = frozenset(TaskStatus) - TASK_TERMINAL_STATES
RETRYABLE_STATES: Final = TASK_TERMINAL_STATES - {TaskStatus.COMPLETED}
_ALWAYS_WITH_CODE: Final = frozenset({TaskStatus.FAILED, TaskStatus.EXPIRED})

_SETS: Final = ("ids", "queues", "task_names", "error_codes", "statuses")
_TEXTS: Final = ("id_start", "name_part", "worker_id", "worker_part", "code_part")
_SPANS: Final = ("older_than", "newer_than")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """The tasks for which every given condition holds; all tasks when none is given. A plain string counts as a
    collection of one."""

    ids: Collection[str] | None = None
    id_start: str | None = None
    """The first characters of the id."""
    statuses: Collection[TaskStatus] | None = None
    queues: Collection[str] | None = None
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

    def __post_init__(self) -> None:
        checks = Checks("TaskFilter")
        for name in _SETS:
            self._keep(checks, name)
        for name in _TEXTS:
            checks.text(name, getattr(self, name), optional=True)
        for name in _SPANS:
            checks.span(name, getattr(self, name), optional=True)
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
        """The terminal states in which a task can match."""
        return TASK_TERMINAL_STATES & self._wanted

    @property
    def has_code(self) -> bool:
        """Whether every ended task that can match has an error code."""
        return self.code_part is not None or self.ended <= _ALWAYS_WITH_CODE

    def values(self, statuses: Collection[TaskStatus]) -> tuple[Any, ...]:
        """The parameters of the fragment `task_filter`, for a statement that reads tasks in these states."""
        return (
            _listed(self.ids), self.id_start, sorted(statuses), _listed(self.queues), _listed(self.task_names),
            self.name_part, self.worker_id, self.worker_part, self.older_than, self.newer_than, self.in_workflow,
            _listed(self.error_codes), self.code_part, self.has_code and self.ended.issuperset(statuses),
        )  # fmt: skip

    @property
    def is_empty(self) -> bool:
        """No condition is given."""
        return self == TaskFilter()


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
