"""The table of targets: what was measured, and whether it holds. A missed target is a finding, not an error."""

from typing import NamedTuple

from bench.compare.results import METRICS, Results
from bench.compare.systems import BARE_SQL

RIVALS = ("celery", "dramatiq", "taskiq", "procrastinate")


class Target(NamedTuple):
    number: str
    what: str
    metric: str
    limit: float  # a lower limit where more is better, else an upper one
    peers: tuple[str, ...] = ()  # the limit is a ratio to the best of these; none: it is the figure itself

    @property
    def bar(self) -> str:
        sign = "≥" if METRICS[self.metric].more_is_better else "≤"
        return f"{sign} {self.limit:g}{'x' if self.peers else ''}"


TARGETS = (
    Target("1", "drain of no-ops, to bare SQL in batches of 100", "drain_noop", 0.6, (BARE_SQL,)),
    Target("1", f"drain of no-ops, to the best of {', '.join(RIVALS)}", "drain_noop", 3.0, RIVALS),
    Target("1*", "moonshot: drain of no-ops, to pgqueuer", "drain_noop", 1.0, ("pgqueuer",)),
    Target("2", "drain of async no-ops, to pgqueuer", "drain_async", 0.8, ("pgqueuer",)),
    Target("2*", "moonshot: drain of async no-ops, to pgqueuer", "drain_async", 1.0, ("pgqueuer",)),
    Target("3", "idle round trip p50, to the best peer", "trip_p50", 0.8, (*RIVALS, "pgqueuer")),
    Target("3", "idle round trip p99, to the best peer", "trip_p99", 1.2, (*RIVALS, "pgqueuer")),
    Target("4", "bulk enqueue, to pgqueuer", "enqueue_many", 1.0, ("pgqueuer",)),
    Target("4", "single sends, to the best PostgreSQL peer", "enqueue_one", 1.0, ("procrastinate", "pgqueuer")),
    Target("5", "drain beside 1 million finished tasks, to empty", "adverse_finished", 0.9),
    Target("5", "drain beside 1 million future-dated tasks, to empty", "adverse_future", 0.9),
    Target("5", "drain with xmin pinned for a minute, to normal", "adverse_pinned", 0.6),
    Target("6", "worker memory, to the smaller of celery and dramatiq", "memory", 1.0, ("celery", "dramatiq")),
    Target("6", "idle worker: statements per second", "idle_statements", 5.0),
    Target("6", "idle worker: % of a core", "idle_cpu", 3.0),
    Target("7", "50 ms tasks on 8 processes, of ideal", "drain_sleep50", 0.95),
)


def check(target: Target, results: Results) -> tuple[str, bool | None]:
    """The measured figure in words, and whether the target holds; None: not measured in this run."""
    more = METRICS[target.metric].more_is_better
    ours = results.median(target.metric)
    others = [(value, name) for name in target.peers if (value := results.median(target.metric, name))]
    if ours is None or (target.peers and not others):
        return "not measured", None
    if not others:
        return f"{ours:.2f}", ours >= target.limit if more else ours <= target.limit
    value, name = max(others) if more else min(others)
    words = f"{ours / value:.2f}x ({figure(ours)} to {figure(value)}, {name})"
    return words, ours / value >= target.limit if more else ours / value <= target.limit


def figure(value: float) -> str:
    """Three digits: such a measurement has no more."""
    decimals = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    return f"{value:,.{decimals}f}"
