"""Which tasks are meant: the filter that listing, counting and acting share, and the place where a page ended."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, Self, cast

from horsies._checks import Checks, shown
from horsies.ids import is_storable_id
from horsies.status import TASK_TERMINAL_STATES, TaskStatus

LIVE_STATES: Final = frozenset(TaskStatus) - TASK_TERMINAL_STATES
RETRYABLE_STATES: Final = TASK_TERMINAL_STATES - {TaskStatus.COMPLETED}
_ALWAYS_WITH_CODE: Final = frozenset({TaskStatus.FAILED, TaskStatus.EXPIRED})

_TEXTS: Final = ("ids", "queues", "task_names", "error_codes")
_SPANS: Final = ("older_than", "newer_than")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskFilter:
    """Every condition that is given must hold; without any, all tasks are meant. A plain string counts as one."""

    ids: Collection[str] | None = None
    statuses: Collection[TaskStatus] | None = None
    queues: Collection[str] | None = None
    task_names: Collection[str] | None = None
    error_codes: Collection[str] | None = None
    """Only ended tasks have one."""
    worker_id: str | None = None
    """Held or run by this worker, also at its end."""
    older_than: timedelta | None = None
    """At least so long in its state; a waiting task: at least so long due."""
    newer_than: timedelta | None = None
    in_workflow: bool | None = None
    """True: only tasks of workflows. False: only others."""

    def __post_init__(self) -> None:
        checks = Checks("TaskFilter")
        for name in _TEXTS:
            self._keep(checks, name)
        self._keep_statuses(checks)
        checks.text("worker_id", self.worker_id, optional=True)
        for name in _SPANS:
            checks.span(name, getattr(self, name), optional=True)
        checks.finish()

    def _keep(self, checks: Checks, name: str) -> None:
        value = cast("object", getattr(self, name))
        if value is None:
            return
        given = [value] if isinstance(value, str) else list(cast("Collection[object]", value))
        object.__setattr__(self, name, tuple(dict.fromkeys(given)))
        for one in given:
            if name == "ids" and not is_storable_id(one):
                checks.add(name, f"{shown(one)} cannot be the id of a task", "give ids as `tasks list` prints them")
            else:
                checks.text(name, one)

    def _keep_statuses(self, checks: Checks) -> None:
        value = cast("object", self.statuses)
        if value is None:
            return
        words = [value] if isinstance(value, str) else list(cast("Collection[object]", value))
        kept: list[TaskStatus] = []
        for word in words:
            if checks.word("statuses", word, tuple(TaskStatus)):
                kept.append(TaskStatus(str(word)))
        object.__setattr__(self, "statuses", frozenset(kept))

    @property
    def live(self) -> frozenset[TaskStatus]:
        """The live states that are meant."""
        if self.error_codes is not None:
            return frozenset()
        return LIVE_STATES & frozenset(self.statuses if self.statuses is not None else TaskStatus)

    @property
    def ended(self) -> frozenset[TaskStatus]:
        """The terminal states that are meant."""
        return TASK_TERMINAL_STATES & frozenset(self.statuses if self.statuses is not None else TaskStatus)

    @property
    def has_code(self) -> bool:
        """Whether every terminal state that is meant always has an error code."""
        return self.ended <= _ALWAYS_WITH_CODE

    @property
    def is_empty(self) -> bool:
        """Nothing is asked for: every task is meant."""
        return self == TaskFilter()


@dataclass(frozen=True, slots=True)
class TaskCursor:
    """Where a page ended: pass it on to get the next one. Its text form can be kept and read back."""

    id: str
    terminal_at: datetime | None

    def __str__(self) -> str:
        return self.id if self.terminal_at is None else f"{self.id}@{self.terminal_at.isoformat()}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises ValueError."""
        task_id, at, moment = text.partition("@")
        terminal_at = datetime.fromisoformat(moment) if at else None
        if not task_id or not is_storable_id(task_id) or (terminal_at is not None and terminal_at.tzinfo is None):
            raise ValueError(f"{text!r} is not where a page of tasks ended")
        return cls(task_id, terminal_at)
