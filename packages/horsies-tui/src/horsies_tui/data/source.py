"""What the screens may ask for, whoever answers: a database, or the demo."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from horsies.info import TaskDetail
from horsies_tui.data.filters import Query
from horsies_tui.data.models import (
    Breakdown,
    Maintenance,
    Overview,
    Place,
    ScheduleRow,
    Session,
    Stale,
    TaskList,
    WorkerDetail,
    WorkerLine,
    WorkflowDetail,
    WorkflowList,
)

OnHint = Callable[[str], None]
"""Something of this kind changed: tasks, queues, workflows, schedules."""
OnLive = Callable[[bool], None]


class SourceError(Exception):
    """No answer; the message is fit to be shown, and has no secret in it."""


@dataclass(frozen=True, slots=True)
class Target:
    """What an action is asked to change, and the state in which the operator saw it."""

    id: str
    label: str
    expected: str
    guard_ms: int = 0
    """Of a stale task: how long its silence must have lasted at least, when the action is carried out."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of an action."""

    done: int
    asked: int = 0
    """Only asked for: the worker, or a scheduler, carries it out."""
    not_done: tuple[tuple[str, str], ...] = ()
    """Ids, each with why it was left alone, such as that it changed meanwhile."""


class Source(Protocol):
    """Every method raises SourceError when there is no answer."""

    async def session(self) -> Session: ...
    async def overview(self, window: timedelta) -> Overview: ...
    async def tasks(self, query: Query, *, since: timedelta | None, after: Place | None, limit: int) -> TaskList: ...
    async def breakdown(self, query: Query, *, since: timedelta | None) -> Breakdown: ...
    async def task(self, task_id: str) -> TaskDetail | None: ...
    async def workers(self) -> tuple[WorkerLine, ...]: ...
    async def worker(self, worker_id: str, window: timedelta) -> WorkerDetail | None: ...
    async def stale(self) -> Stale: ...
    async def workflows(
        self, query: Query, *, since: timedelta | None, after: Place | None, limit: int
    ) -> WorkflowList: ...
    async def workflow(self, workflow_id: str) -> WorkflowDetail | None: ...
    async def schedules(self) -> tuple[ScheduleRow, ...]: ...
    async def maintenance(self) -> Maintenance: ...
    async def act(self, action: str, targets: Sequence[Target]) -> Outcome: ...
    async def watch(self, on_hint: OnHint, on_live: OnLive) -> None:
        """Tells of changes until it is cancelled."""
        ...

    async def close(self) -> None: ...
