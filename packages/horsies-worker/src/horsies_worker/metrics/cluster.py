"""The metrics of `horsies exporter`: their names, meanings and labels, and the samples of one collection.

`docs/reference/exporter-metrics.md` is made from the table. The labels whose values come from rows are queues,
shared limits and, on request, groups; the number of each is bounded.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from horsies._pg.schema_guard import HEAD_REVISION
from horsies.operate.cluster import ClusterFigures, is_behind
from horsies.operate.views import QueueStatus, ReplicaState, WorkerLiveness

MAX_QUEUES: Final = 500
"""Queues beyond this number, in the order of their names, are added up under one label."""
MAX_LIMITS: Final = 100
"""Shared limits beyond this number, in the order of their names, are left out."""
OTHER_QUEUES: Final = "(other)"
"""No queue can have this name."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. The name of a counter ends with `_total`."""

    name: str
    help: str
    labels: tuple[str, ...] = ()

    @property
    def is_counter(self) -> bool:
        return self.name.endswith("_total")


Sample = tuple[Metric, tuple[str, ...], float]
"""A metric, the values of its labels, and its value."""

UP: Final = Metric(
    "horsies_up", "1 when the last collection succeeded; 0 when the database did not answer or cannot be used."
)
COLLECTION_DURATION: Final = Metric("horsies_collection_duration_seconds", "How long the last collection took.")
COLLECTION_AGE: Final = Metric(
    "horsies_collection_age_seconds", "Seconds since the last successful collection; absent before the first one."
)
COLLECTIONS: Final = Metric("horsies_collections_total", "Collections, by outcome: ok or error.", ("outcome",))
REPLICA_UP: Final = Metric(
    "horsies_replica_up",
    "1 when the last figures came from the replica, 0 when the primary answered instead; absent without a replica_url.",
)
REPLICA_LAG: Final = Metric(
    "horsies_replica_lag_seconds", "How old the rows of the replica were; absent while it is away."
)
SCHEMA_INFO: Final = Metric(
    "horsies_schema_info",
    "Always 1; the labels are the schema revision of the database and the newest one that the exporter's release has.",
    ("revision", "head"),
)
SCHEMA_BEHIND: Final = Metric(
    "horsies_schema_behind", "1 when the database is at an older schema revision than the exporter's release has."
)
QUEUE_READY: Final = Metric("horsies_queue_ready_tasks", "Tasks that are due and wait for a worker.", ("queue",))
QUEUE_DELAYED: Final = Metric(
    "horsies_queue_delayed_tasks",
    "Waiting tasks that are due later (scheduled sends, retries), and those of paused workflows.",
    ("queue",),
)
QUEUE_CLAIMED: Final = Metric(
    "horsies_queue_claimed_tasks", "Tasks that a worker has claimed and not started.", ("queue",)
)
QUEUE_RUNNING: Final = Metric("horsies_queue_running_tasks", "Tasks that run.", ("queue",))
QUEUE_AGE: Final = Metric(
    "horsies_queue_oldest_ready_age_seconds",
    "How long the oldest ready task has been due; 0 when no task is ready.",
    ("queue",),
)
QUEUE_PAUSED: Final = Metric("horsies_queue_paused", "1 when an operator has paused the queue.", ("queue",))
QUEUE_WORKERS: Final = Metric("horsies_queue_workers", "Live workers that serve the queue.", ("queue",))
QUEUE_GROUPED: Final = Metric(
    "horsies_queue_grouped_tasks", "Waiting tasks, ready or delayed, that have a group.", ("queue",)
)
QUEUE_THROTTLED: Final = Metric(
    "horsies_queue_throttled_groups",
    "Groups with ready tasks that wait for a place or a token of their group, among the 100 that were looked at; "
    "absent beyond the 10 queues with the most grouped tasks.",
    ("queue",),
)
GROUP_WAITING: Final = Metric(
    "horsies_group_waiting_tasks",
    "Waiting tasks of the deepest groups of each queue, counted up to 1000; only with --top-groups.",
    ("queue", "group"),
)
LIMIT_RUNNING: Final = Metric(
    "horsies_limit_running_tasks", "Tasks in flight of the queues that share the limit.", ("limit",)
)
LIMIT_MAX: Final = Metric(
    "horsies_limit_max_tasks",
    "How many tasks the limit lets be in flight; absent when it does not limit that.",
    ("limit",),
)
LIMIT_TOKENS: Final = Metric(
    "horsies_limit_tokens", "How many tasks the limit's rate lets start now; absent without a rate.", ("limit",)
)
QUEUE_CAPPED: Final = Metric(
    "horsies_queue_count_capped",
    "1 when ready or delayed tasks were counted up to --count-limit only: there may be more.",
    ("queue",),
)
WORKERS: Final = Metric(
    "horsies_workers",
    "Workers by state: alive, late, dead, as `horsies workers` lists them. A dead one is counted for 10 minutes, and "
    "longer while it holds a task.",
    ("state",),
)
SLOTS: Final = Metric("horsies_slots", "Child processes of the live workers, as their last snapshots say.")
STALE: Final = Metric(
    "horsies_stale_tasks",
    "Tasks without a sign of life from their worker, by state: claimed, running, finalizing.",
    ("state",),
)
SCHEDULES: Final = Metric(
    "horsies_schedules", "Schedules that were made at run time, or that a scheduler has ever served."
)
SCHEDULES_ACTIVE: Final = Metric(
    "horsies_schedules_active", "Schedules that should run: enabled, not paused, not removed."
)
SCHEDULES_OVERDUE: Final = Metric("horsies_schedules_overdue", "Schedules whose slot is due and was not run.")
SCHEDULES_LATENESS: Final = Metric(
    "horsies_schedules_longest_overdue_seconds", "How long the first overdue slot has been due; 0 when none is."
)
SCHEDULES_UNLISTED: Final = Metric(
    "horsies_schedules_unlisted", "Schedules that no live scheduler lists, although one is running."
)
SCHEDULER_UP: Final = Metric(
    "horsies_scheduler_up",
    "1 when a scheduler has confirmed its schedules lately. 0 is bad only while there are active schedules.",
)
WORKFLOWS: Final = Metric(
    "horsies_workflows", "Outermost workflow runs that have not ended, by state: pending, running, paused.", ("state",)
)
ENDED: Final = Metric(
    "horsies_recent_ended_tasks",
    "Tasks that ended lately, by state: completed, failed, cancelled, expired. Divide by "
    "horsies_recent_ended_span_seconds for a rate.",
    ("state",),
)
ENDED_SPAN: Final = Metric(
    "horsies_recent_ended_span_seconds",
    "The span that horsies_recent_ended_tasks covers: 60, and less when more tasks ended than are counted.",
)
CAPPED: Final = Metric(
    "horsies_count_capped",
    "1 when a figure was counted up to its bound only: stale_tasks, workflows, recent_ended_tasks.",
    ("figure",),
)

METRICS: Final[tuple[Metric, ...]] = (
    UP, COLLECTION_DURATION, COLLECTION_AGE, COLLECTIONS, REPLICA_UP, REPLICA_LAG,
    SCHEMA_INFO, SCHEMA_BEHIND,
    QUEUE_READY, QUEUE_DELAYED, QUEUE_CLAIMED, QUEUE_RUNNING, QUEUE_AGE, QUEUE_PAUSED, QUEUE_WORKERS, QUEUE_CAPPED,
    QUEUE_GROUPED, QUEUE_THROTTLED, GROUP_WAITING, LIMIT_RUNNING, LIMIT_MAX, LIMIT_TOKENS,
    WORKERS, SLOTS, STALE,
    SCHEDULES, SCHEDULES_ACTIVE, SCHEDULES_OVERDUE, SCHEDULES_LATENESS, SCHEDULES_UNLISTED, SCHEDULER_UP,
    WORKFLOWS, ENDED, ENDED_SPAN, CAPPED,
)  # fmt: skip
"""In the order of the page."""


def schema_samples(revision: str) -> Iterator[Sample]:
    """Also served when the database cannot be used because of its revision."""
    yield SCHEMA_INFO, (revision, HEAD_REVISION), 1
    yield SCHEMA_BEHIND, (), is_behind(revision)


def replica_samples(state: ReplicaState) -> Iterator[Sample]:
    """Where the figures came from."""
    yield REPLICA_UP, (), state.away is None
    if state.lag is not None:
        yield REPLICA_LAG, (), _seconds(state.lag)


def cluster_samples(figures: ClusterFigures, top_groups: int = 0) -> Iterator[Sample]:
    yield from schema_samples(figures.revision)
    for queue in shown_queues(figures.queues):
        label = (queue.name,)
        yield QUEUE_READY, label, queue.ready
        yield QUEUE_DELAYED, label, queue.delayed
        yield QUEUE_CLAIMED, label, queue.claimed
        yield QUEUE_RUNNING, label, queue.running
        yield QUEUE_AGE, label, _seconds(queue.oldest_ready)
        yield QUEUE_PAUSED, label, queue.paused_at is not None
        yield QUEUE_WORKERS, label, queue.served_by
        yield QUEUE_CAPPED, label, queue.is_bounded
        yield QUEUE_GROUPED, label, queue.grouped
        if not queue.grouped:
            yield QUEUE_THROTTLED, label, 0
    yield from _limit_samples(figures, top_groups)
    states = Counter(worker.liveness for worker in figures.workers)
    for state in (WorkerLiveness.ALIVE, WorkerLiveness.LATE, WorkerLiveness.DEAD):
        yield WORKERS, (state,), states[state]
    yield SLOTS, (), sum(worker.processes for worker in figures.workers if worker.liveness.is_there)
    for kind, count in figures.stale.items():
        yield STALE, (kind,), count
    schedules = figures.schedules
    yield SCHEDULES, (), schedules.known
    yield SCHEDULES_ACTIVE, (), schedules.runs
    yield SCHEDULES_OVERDUE, (), schedules.overdue
    yield SCHEDULES_LATENESS, (), _seconds(schedules.longest)
    yield SCHEDULES_UNLISTED, (), schedules.unlisted
    yield SCHEDULER_UP, (), schedules.has_scheduler
    for status, runs in figures.workflows.items():
        yield WORKFLOWS, (status.lower(),), runs
    for status, tasks in figures.ended.tasks.items():
        yield ENDED, (status.lower(),), tasks
    yield ENDED_SPAN, (), _seconds(figures.ended.span)
    yield CAPPED, ("stale_tasks",), figures.stale_is_bounded
    yield CAPPED, ("workflows",), figures.workflows_are_bounded
    yield CAPPED, ("recent_ended_tasks",), figures.ended.is_bounded


def _limit_samples(figures: ClusterFigures, top_groups: int) -> Iterator[Sample]:
    for queue in figures.groups:
        yield QUEUE_THROTTLED, (queue.queue_name,), queue.throttled
        for group in queue.groups[:top_groups]:
            yield GROUP_WAITING, (queue.queue_name, group.key), group.waiting
    for limit in figures.limits[:MAX_LIMITS]:
        label = (limit.name,)
        yield LIMIT_RUNNING, label, limit.running
        if limit.effective.max_concurrency is not None:
            yield LIMIT_MAX, label, limit.effective.max_concurrency
        if limit.tokens is not None:
            yield LIMIT_TOKENS, label, limit.tokens


def shown_queues(queues: Sequence[QueueStatus]) -> list[QueueStatus]:
    """The queues by name; those beyond the bound as one, whose marks are those of the worst of them."""
    if len(queues) <= MAX_QUEUES:
        return list(queues)
    rest = queues[MAX_QUEUES:]
    other = QueueStatus(
        name=OTHER_QUEUES,
        ready=sum(one.ready for one in rest),
        delayed=sum(one.delayed for one in rest),
        claimed=sum(one.claimed for one in rest),
        running=sum(one.running for one in rest),
        is_bounded=any(one.is_bounded for one in rest),
        oldest_ready=max((one.oldest_ready for one in rest if one.oldest_ready is not None), default=None),
        paused_at=min((one.paused_at for one in rest if one.paused_at is not None), default=None),
        paused_for=max((one.paused_for for one in rest if one.paused_for is not None), default=None),
        served_by=min(one.served_by for one in rest),
        grouped=sum(one.grouped for one in rest),
    )
    return [*queues[:MAX_QUEUES], other]


def families(samples: Iterator[Sample]) -> list[GaugeMetricFamily | CounterMetricFamily]:
    """The samples as prometheus_client wants them: one family for each metric."""
    found: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for metric, labels, value in samples:
        if metric.name not in found:
            kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
            found[metric.name] = kind(metric.name, metric.help, labels=metric.labels)
        found[metric.name].add_metric(labels, value)
    return list(found.values())


def _seconds(span: timedelta | None) -> float:
    return max(span.total_seconds(), 0.0) if span is not None else 0.0
