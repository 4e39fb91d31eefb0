"""What `horsies top` shows: the figures of the installation, the running tasks and the stale ones. Each read is bounded
by the bounds of the read model, however many tasks there are."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from horsies.operate.broker import PostgresBroker
from horsies.operate.cluster import ClusterFigures
from horsies.operate.filters import TaskFilter
from horsies.operate.stale import Verdict
from horsies.operate.views import StaleTask, TaskSummary
from horsies.status import TaskStatus

COUNTED: Final = 1_000
"""Waiting tasks of each queue and priority are counted so far."""
RUNNING: Final = 500
"""The number of running tasks that are read, to show those of the chosen order."""
SORTS: Final = ("age", "task", "queue", "worker")


@dataclass(frozen=True, slots=True)
class TopFigures:
    """What was read at one moment."""

    at: datetime
    """The time of this machine, for a person to see; nothing is compared with it."""
    figures: ClusterFigures
    running: tuple[TaskSummary, ...]
    running_is_cut: bool
    """There are more running tasks than were read."""
    stale: tuple[tuple[StaleTask, Verdict], ...]

    @property
    def rate(self) -> float:
        """Ended tasks per second, over the last minute."""
        ended, seconds = self.figures.ended, self.figures.ended.span.total_seconds()
        return sum(ended.tasks.values()) / seconds if seconds else 0.0

    @property
    def failed(self) -> float:
        """FAILED tasks per second, over the last minute."""
        ended, seconds = self.figures.ended, self.figures.ended.span.total_seconds()
        return ended.tasks[TaskStatus.FAILED] / seconds if seconds else 0.0

    def sorted(self, by: str) -> list[TaskSummary]:
        """The running tasks in one of the orders; the longest running first within it."""

        def key(one: TaskSummary) -> tuple[str, timedelta]:
            words = {"task": one.task_name, "queue": one.queue_name, "worker": one.claimed_by_worker_id or ""}
            return words.get(by, ""), -one.age

        return sorted(self.running, key=key)


async def read_top(broker: PostgresBroker) -> TopFigures:
    """Read everything; the stale tasks only when there are some."""
    figures = await broker.get_figures(COUNTED)
    page = await broker.list_tasks(TaskFilter(statuses=frozenset({TaskStatus.RUNNING})), RUNNING)
    stale = await broker.find_stale() if any(figures.stale.values()) else []
    return TopFigures(datetime.now(UTC).astimezone(), figures, page.tasks, page.next is not None, tuple(stale))


def waited(oldest: timedelta | None) -> timedelta:
    """For sorting: how long the oldest ready task of a queue has waited."""
    return oldest or timedelta()
