"""The interface between the screens and their data, which a database and the demo implement."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Protocol, TypeVar

from horsies.operate.actions import Outcome
from horsies.operate.views import TaskDetail
from horsies_tui.data import models
from horsies_tui.data.filters import Query

P = TypeVar("P", covariant=True)
MAX_SCHEDULES: Final = 1_000
OnHint = Callable[[str], None]
"""Called with the kind of what changed: tasks, queues, workflows or schedules."""
OnLive = Callable[[bool], None]


class SourceError(Exception):
    """The data could not be read or changed. The message can be shown and contains no secret."""


@dataclass(frozen=True, slots=True)
class Target:
    """The target of an action, and the state in which the operator saw it."""

    id: str
    label: str
    expected: str
    guard_ms: int = 0
    """For a stale task, how long it must have been silent when the action is carried out."""
    change: str = ""
    """For a policy, the fields to override, as they are typed; for a signal, its value as JSON."""
    part: str = ""
    """Of a workflow: the node to retry, or the name of the signal to send."""


class ReadPage(Protocol[P]):
    async def __call__(self, query: Query, *, since: timedelta | None, after: models.Place | None, limit: int) -> P: ...


class Source(Protocol):
    """Every method raises SourceError when it fails."""

    async def session(self) -> models.Session: ...
    def origin(self) -> str:
        """Where the last data came from, if not from the database itself; empty otherwise."""
        ...

    async def overview(self, window: timedelta) -> models.Overview: ...
    @property
    def tasks(self) -> ReadPage[models.TaskList]: ...
    async def breakdown(self, query: Query, *, since: timedelta | None) -> models.Breakdown: ...
    async def task(self, task_id: str) -> TaskDetail | None: ...
    async def queue(self, name: str) -> models.QueueDetail: ...
    async def workers(self) -> tuple[models.WorkerLine, ...]: ...
    async def worker(self, worker_id: str, window: timedelta) -> models.WorkerDetail | None: ...
    async def stale(self) -> models.Stale: ...
    @property
    def workflows(self) -> ReadPage[models.WorkflowList]: ...
    async def workflow(self, workflow_id: str) -> models.WorkflowDetail | None: ...
    async def schedules(self) -> tuple[models.ScheduleRow, ...]: ...
    async def schedule(self, name: str) -> models.ScheduleDetail | None: ...
    async def maintenance(self) -> models.Maintenance: ...
    async def act(self, action: str, targets: Sequence[Target]) -> Outcome: ...
    async def watch(self, on_hint: OnHint, on_live: OnLive) -> None:
        """Report changes until it is cancelled."""
        ...

    async def close(self) -> None: ...
