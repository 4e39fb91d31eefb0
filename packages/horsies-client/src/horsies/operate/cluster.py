"""The figures of a whole installation, for metrics: read in one transaction, each statement bounded.

Every figure has the meaning that the commands, the doctor and the dashboard give it. No figure is counted beyond a
bound, so that a collection costs about the same with a thousand tasks and with a million.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from horsies._pg.rows import FromRow
from horsies._pg.schema_guard import HEAD_REVISION
from horsies.config.recovery import RecoveryConfig
from horsies.operate import reading
from horsies.operate.groups import QueueGroups, top_groups
from horsies.operate.policies import SharedLimit, shared_limits
from horsies.operate.schedule_state import FORGOTTEN_AFTER, LISTED_FOR, OVERDUE_AFTER, is_scheduler_seen
from horsies.operate.session import Fetch
from horsies.operate.stale import LISTED, SEEN_WITHIN, StaleKind
from horsies.operate.views import QueueStatus, WorkerStatus
from horsies.status import TaskStatus, WorkflowStatus

COUNTED_PAIRS: Final = 20
"""Waiting tasks are counted up to the bound for so many pairs of queue and priority; with more pairs, each gets its
share. A row that vacuum has not seen yet costs up to 8 µs: 200 pairs with 10,000 rows each would take 16 s."""
_LEAST: Final = 100
WORKFLOW_BOUND: Final = 10_000
"""The number of live runs that are counted in each state."""
ENDED_BOUND: Final = 10_000
"""The number of ends that are counted."""
ENDED_SPAN: Final = timedelta(minutes=1)
GROUPED_QUEUES: Final = 10
"""The number of queues whose groups are looked at: those with the most waiting tasks of groups."""
GROUPS: Final = 100
"""The number of groups that are looked at in each."""


@dataclass(frozen=True, slots=True)
class ScheduleFigures(FromRow):
    """Counts of schedules, as the doctor counts them."""

    known: int
    """Every schedule that a scheduler has ever served."""
    runs: int
    """Those that should run: enabled, not paused, and not removed."""
    overdue: int
    longest: timedelta | None
    """How long the first of the overdue slots has been due."""
    unlisted: int
    """Those that no live scheduler lists, although one is running."""
    scheduler_seen: timedelta | None
    """How long ago any scheduler was running; None when there never was one."""

    @property
    def has_scheduler(self) -> bool:
        return is_scheduler_seen(self.scheduler_seen)


@dataclass(frozen=True, slots=True)
class EndedFigures:
    """How many tasks ended lately, by state."""

    tasks: Mapping[TaskStatus, int]
    span: timedelta
    """The span that they cover: shorter than asked for when there were more ends than are counted."""
    is_bounded: bool


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """The figures of one moment."""

    revision: str
    queues: tuple[QueueStatus, ...]
    workers: tuple[WorkerStatus, ...]
    """The workers of `horsies workers`: seen lately, or holding a task."""
    stale: Mapping[StaleKind, int]
    stale_is_bounded: bool
    schedules: ScheduleFigures
    workflows: Mapping[WorkflowStatus, int]
    """The outermost runs that have not ended."""
    workflows_are_bounded: bool
    ended: EndedFigures
    limits: tuple[SharedLimit, ...] = ()
    """The limits that queues share."""
    groups: tuple[QueueGroups, ...] = ()
    """The groups of the queues with the most waiting tasks of groups."""


def is_behind(revision: str) -> bool:
    """Whether this release brings a newer revision of the schema than the database has."""
    return revision < HEAD_REVISION


async def cluster_figures(
    fetch: Fetch, queue_bound: int, recovery: RecoveryConfig | None = None, groups: int = 1
) -> ClusterFigures:
    """Read the figures. Counting of waiting tasks stops at `queue_bound` for each queue and priority, and sooner when
    there are many of these. `recovery` has the thresholds for the tasks of workers that have reported none. `groups` is
    the number of groups of each queue that are returned."""
    await fetch("plan_by_index")
    revisions = await fetch("revisions")
    pairs = len(await fetch("waiting_pairs", 1))
    share = max(COUNTED_PAIRS * queue_bound // max(pairs, 1), _LEAST)
    queues, workers = await reading.queues(fetch, min(queue_bound, share), SEEN_WITHIN)
    stale = await reading.stale_tasks(fetch, workers, LISTED, recovery)
    (schedules,) = await fetch("schedule_facts", LISTED_FOR, OVERDUE_AFTER, FORGOTTEN_AFTER)
    workflows = await fetch("live_workflow_counts", WORKFLOW_BOUND)
    kinds = Counter(verdict.kind for _, verdict in stale.tasks)
    return ClusterFigures(
        revision=str(revisions[0]["version_num"]),
        queues=tuple(queues),
        workers=tuple(one for one in workers if reading.is_recent(one)),
        stale={kind: kinds[kind] for kind in StaleKind},
        stale_is_bounded=stale.is_cut,
        schedules=ScheduleFigures.from_row(schedules),
        workflows={WorkflowStatus(row["status"]): row["runs"] for row in workflows},
        workflows_are_bounded=any(row["looked"] >= WORKFLOW_BOUND for row in workflows),
        ended=await _ended(fetch),
        limits=tuple(await shared_limits(fetch)),
        groups=await _groups(fetch, queues, groups),  # the last, because it changes settings of the planner
    )


async def _groups(fetch: Fetch, queues: list[QueueStatus], top: int) -> tuple[QueueGroups, ...]:
    deepest = sorted((one for one in queues if one.grouped), key=lambda one: (-one.grouped, one.name))
    names = sorted(one.name for one in deepest[:GROUPED_QUEUES])
    return tuple([await top_groups(fetch, name, max(top, 1), looked=GROUPS) for name in names])


async def _ended(fetch: Fetch) -> EndedFigures:
    rows = await fetch("recent_ends", ENDED_SPAN, ENDED_BOUND)
    counts = {TaskStatus(row["status"]): row["tasks"] for row in rows}
    is_bounded = sum(counts.values()) >= ENDED_BOUND
    return EndedFigures(
        tasks={status: counts.get(status, 0) for status in TaskStatus if status.is_terminal},
        span=max(row["oldest"] for row in rows) if is_bounded else ENDED_SPAN,
        is_bounded=is_bounded,
    )
