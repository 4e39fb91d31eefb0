"""The metrics of one worker (`horsies worker --metrics-port`): counted from its events, read by each scrape.

Counted in plain numbers and turned into samples when Prometheus asks: the counters of prometheus_client take 2 µs each,
and a worker ends ten thousand tasks per second. The event loop's thread counts, the endpoint's threads read.
"""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from horsies import __version__
from horsies.events import (
    AttemptFailed,
    AttemptSnoozed,
    AttemptStarted,
    AttemptSucceeded,
    ChildExited,
    DatabaseLost,
    DropReason,
    ExitReason,
    RecoveryAction,
    ResultDropped,
    RowsPruned,
    ScheduleFired,
    TaskQuarantined,
    TaskRecovered,
    TasksClaimed,
    TasksReturned,
    WorkerDeclaredDead,
    WorkflowEnded,
)
from horsies.status import WorkflowStatus
from horsies_worker.events.bus import EventBus
from horsies_worker.metrics.cluster import Metric

WAITS: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
RUNS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500)

CLAIMS: Final = Metric("horsies_worker_claims_total", "Claims that took at least one task.")
CLAIMED: Final = Metric("horsies_worker_claimed_tasks_total", "Tasks that this worker has claimed.")
BATCH: Final = Metric("horsies_worker_claim_batch_size", "Tasks per claim.")
STARTED: Final = Metric(
    "horsies_worker_attempts_started_total",
    "Attempts that were handed to a child process. Some come back unstarted (returned_tasks).",
    ("task", "queue"),
)
ENDED: Final = Metric(
    "horsies_worker_attempts_ended_total",
    "Attempts that ended, by outcome: ok, error, timeout, cancelled, crashed, interrupted, snoozed.",
    ("task", "queue", "outcome"),
)
RETRIES: Final = Metric(
    "horsies_worker_retries_total", "Failed attempts that are followed by another one.", ("task", "queue")
)
WAIT: Final = Metric(
    "horsies_worker_queue_wait_seconds",
    "From when a task could have started to the start of user code; observed when the attempt ends.",
    ("queue",),
)
RUN: Final = Metric("horsies_worker_run_seconds", "How long attempts ran.", ("task",))
RETURNED: Final = Metric("horsies_worker_returned_tasks_total", "Claimed tasks that went back without a start.")
DROPPED: Final = Metric(
    "horsies_worker_dropped_results_total",
    "Results that were not written: claim_lost (another worker owns the task), refused (by the database).",
    ("reason",),
)
EXITS: Final = Metric(
    "horsies_worker_child_exits_total",
    "Child processes that ended: requested, killed, crashed, start_failed.",
    ("reason",),
)
RECOVERED: Final = Metric(
    "horsies_worker_recovered_tasks_total",
    "Tasks that this worker took from dead or silent ones (requeued, ended), or found expired.",
    ("action",),
)
QUARANTINED: Final = Metric(
    "horsies_worker_quarantined_tasks_total", "Tasks that crashed as often as the max_crashes of their policy allows."
)
DEAD: Final = Metric("horsies_worker_declared_dead_total", "Other workers that this one declared dead.")
PRUNED: Final = Metric("horsies_worker_pruned_rows_total", "Old rows that this worker deleted.", ("table",))
FIRED: Final = Metric("horsies_worker_schedules_fired_total", "Runs that schedules started here.")
WORKFLOWS: Final = Metric(
    "horsies_worker_workflows_ended_total",
    "Workflow runs whose end this worker wrote: completed, failed, cancelled.",
    ("status",),
)
OUTAGES: Final = Metric("horsies_worker_database_outages_total", "How often a session lost the database.")
EVENTS_DROPPED: Final = Metric(
    "horsies_worker_events_dropped_total", "Events that the app's handlers were too slow for."
)
CHILDREN: Final = Metric("horsies_worker_children", "Child processes by state: starting, ready, retiring.", ("state",))
MEMORY: Final = Metric("horsies_worker_child_memory_bytes", "Resident memory of all child processes together.")
RUNNING: Final = Metric("horsies_worker_running_tasks", "Tasks that child processes have.")
BACKLOG: Final = Metric("horsies_worker_unwritten_results", "Results that are not in the database yet.")
CONNECTED: Final = Metric(
    "horsies_worker_database_connected", "0 while claims or heartbeats have no database, and until the worker is up."
)
CLAIMING: Final = Metric("horsies_worker_claiming", "0 while the worker is drained, or starts or stops.")
INFO: Final = Metric("horsies_worker_info", "Always 1.", ("worker_id", "version"))

METRICS: Final[tuple[Metric, ...]] = (
    CLAIMS, CLAIMED, BATCH, STARTED, ENDED, RETRIES, WAIT, RUN, RETURNED, DROPPED, EXITS, RECOVERED,
    QUARANTINED, DEAD, PRUNED,
    FIRED, WORKFLOWS, OUTAGES, EVENTS_DROPPED, CHILDREN, MEMORY, RUNNING, BACKLOG, CONNECTED, CLAIMING, INFO,
)  # fmt: skip
"""In the order of the page."""
_HISTOGRAMS: Final[Mapping[Metric, Sequence[float]]] = {BATCH: SIZES, WAIT: WAITS, RUN: RUNS}
_VALUES: Final[Mapping[Metric, Sequence[str]]] = {
    DROPPED: get_args(DropReason), EXITS: get_args(ExitReason), RECOVERED: get_args(RecoveryAction),
    WORKFLOWS: [status.value.lower() for status in WorkflowStatus if status.is_terminal],
}  # fmt: skip
"""The labels whose values are known from the start."""


@dataclass(frozen=True, slots=True)
class Gauges:
    """What the worker is at this moment."""

    worker_id: str
    children: Mapping[str, int]
    memory_bytes: int
    running: int
    unwritten: int
    is_connected: bool
    is_claiming: bool
    events_dropped: int


def type_of(metric: Metric) -> Literal["counter", "gauge", "histogram"]:
    return "counter" if metric.is_counter else "histogram" if metric in _HISTOGRAMS else "gauge"


class _Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def buckets(self) -> list[tuple[str, float]]:
        """Cumulative counts by upper bound, as Prometheus wants them."""
        found: list[tuple[str, float]] = []
        below = 0
        for bound, count in zip((*self.bounds, float("inf")), list(self.counts), strict=True):
            below += count
            found.append(("+Inf" if bound == float("inf") else repr(float(bound)), below))
        return found


def _observe(
    known: dict[tuple[str, ...], _Histogram], labels: tuple[str, ...], value: float, bounds: Sequence[float]
) -> None:
    histogram = known.get(labels)
    if histogram is None:
        histogram = known[labels] = _Histogram(bounds)
    histogram.observe(value)


class WorkerMetrics(Collector):
    """Subscribes to the bus. `gauges` reads the worker, in any thread; None while it cannot answer."""

    def __init__(self, bus: EventBus, gauges: Callable[[], Gauges | None]) -> None:
        self._gauges = gauges
        self._counts: dict[Metric, Counter[tuple[str, ...]]] = {
            metric: Counter() for metric in METRICS if metric.is_counter
        }
        for metric in self._counts:
            # a counter that is absent until its first event has no rate: Prometheus would miss the first crash
            if not metric.labels:
                self._counts[metric][()] = 0
            for value in _VALUES.get(metric, ()):
                self._counts[metric][(value,)] = 0
        self._histograms: dict[Metric, dict[tuple[str, ...], _Histogram]] = {
            metric: {} if metric.labels else {(): _Histogram(bounds)} for metric, bounds in _HISTOGRAMS.items()
        }
        # of each task: looking them up by their Metric would take as long as the rest
        self._starts, self._ends = self._counts[STARTED], self._counts[ENDED]
        self._runs, self._waits = self._histograms[RUN], self._histograms[WAIT]
        self._reading = threading.Lock()
        bus.subscribe(TasksClaimed, self._claimed)
        bus.subscribe(AttemptStarted, self._started)
        bus.subscribe(AttemptSucceeded, self._succeeded)
        bus.subscribe(AttemptFailed, self._failed)
        bus.subscribe(AttemptSnoozed, self._snoozed)
        bus.subscribe(TaskQuarantined, lambda _: self._add(QUARANTINED, ()))
        bus.subscribe(TasksReturned, lambda event: self._add(RETURNED, (), event.count))
        bus.subscribe(ResultDropped, lambda event: self._add(DROPPED, (event.reason,)))
        bus.subscribe(ChildExited, lambda event: self._add(EXITS, (event.reason,)))
        bus.subscribe(TaskRecovered, lambda event: self._add(RECOVERED, (event.action,)))
        bus.subscribe(WorkerDeclaredDead, lambda _: self._add(DEAD, ()))
        bus.subscribe(RowsPruned, lambda event: self._add(PRUNED, (event.table,), event.count))
        bus.subscribe(ScheduleFired, lambda _: self._add(FIRED, ()))
        bus.subscribe(WorkflowEnded, lambda event: self._add(WORKFLOWS, (event.status.lower(),)))
        bus.subscribe(DatabaseLost, lambda _: self._add(OUTAGES, ()))

    # -- counting --------------------------------------------------------------------------------

    def _add(self, metric: Metric, labels: tuple[str, ...], count: int = 1) -> None:
        self._counts[metric][labels] += count

    def _claimed(self, event: TasksClaimed) -> None:
        self._add(CLAIMS, ())
        self._add(CLAIMED, (), event.count)
        _observe(self._histograms[BATCH], (), event.count, SIZES)

    def _started(self, event: AttemptStarted) -> None:
        self._starts[event.task_name, event.queue_name] += 1

    def _succeeded(self, event: AttemptSucceeded) -> None:
        self._ends[event.task_name, event.queue_name, "ok"] += 1
        _observe(self._runs, (event.task_name,), event.duration_s, RUNS)
        _observe(self._waits, (event.queue_name,), event.wait_s, WAITS)

    def _snoozed(self, event: AttemptSnoozed) -> None:
        self._ends[event.task_name, event.queue_name, "snoozed"] += 1
        _observe(self._runs, (event.task_name,), event.duration_s, RUNS)
        _observe(self._waits, (event.queue_name,), event.wait_s, WAITS)

    def _failed(self, event: AttemptFailed) -> None:
        self._ends[event.task_name, event.queue_name, event.kind] += 1
        if event.will_retry:
            self._add(RETRIES, (event.task_name, event.queue_name))
        if event.duration_s is not None and event.wait_s is not None:
            _observe(self._runs, (event.task_name,), event.duration_s, RUNS)
            _observe(self._waits, (event.queue_name,), event.wait_s, WAITS)

    # -- reading ---------------------------------------------------------------------------------

    def collect(self) -> Iterable[Family]:
        with self._reading:
            yield from self._collected()

    def _collected(self) -> Iterator[Family]:
        gauges = self._gauges()
        if gauges is not None:
            self._counts[EVENTS_DROPPED][()] = gauges.events_dropped
        for metric, counts in self._counts.items():
            counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels)
            # a copy in one step: the event loop's thread may add an entry at any time
            for labels, count in list(counts.items()):
                counter.add_metric(labels, count)
            yield counter
        for metric, histograms in self._histograms.items():
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, histogram in list(histograms.items()):
                family.add_metric(labels, histogram.buckets(), sum_value=histogram.total)
            yield family
        if gauges is not None:
            yield from _gauge_families(gauges)


def _gauge_families(gauges: Gauges) -> Iterator[Family]:
    plain = {
        MEMORY: gauges.memory_bytes, RUNNING: gauges.running, BACKLOG: gauges.unwritten,
        CONNECTED: gauges.is_connected,
        CLAIMING: gauges.is_claiming,
    }  # fmt: skip
    for metric, value in plain.items():
        yield GaugeMetricFamily(metric.name, metric.help, value=float(value))
    children = GaugeMetricFamily(CHILDREN.name, CHILDREN.help, labels=CHILDREN.labels)
    for state, count in gauges.children.items():
        children.add_metric((state,), count)
    yield children
    info = GaugeMetricFamily(INFO.name, INFO.help, labels=INFO.labels)
    info.add_metric((gauges.worker_id, __version__), 1)
    yield info
