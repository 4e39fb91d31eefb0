"""The must-show table: each bar, what was measured, and whether it holds. A missed bar is a finding, not an error."""

from dataclasses import dataclass

from bench.compare.results import Results
from bench.compare.table import BARE, HORSIES

RIVALS = ["celery", "dramatiq", "taskiq", "procrastinate"]
ALL = [*RIVALS, "pgqueuer"]
ON_POSTGRESQL = ["procrastinate", "pgqueuer"]
FEW_STATEMENTS, LITTLE_CPU = 5.0, 3.0


@dataclass(frozen=True, slots=True)
class Bar:
    number: str
    what: str
    bar: str
    measured: str
    holds: bool | None
    """None: not measured in this run."""


def bars(results: Results) -> list[Bar]:
    r = results
    return [
        _versus(r, "1", "drain of no-ops, to bare SQL in batches of 100", "drain_noop", BARE, 0.6),
        _best(
            r, "1", "drain of no-ops, to the best of celery, dramatiq, taskiq, procrastinate", "drain_noop", RIVALS, 3.0
        ),
        _versus(r, "1*", "moonshot: drain of no-ops, to pgqueuer", "drain_noop", "pgqueuer", 1.0),
        _versus(r, "2", "drain of async no-ops, to pgqueuer", "drain_async", "pgqueuer", 0.8),
        _versus(r, "2*", "moonshot: drain of async no-ops, to pgqueuer", "drain_async", "pgqueuer", 1.0),
        _best(r, "3", "idle round trip p50, to the best peer", "trip_p50", ALL, 0.8, more=False),
        _best(r, "3", "idle round trip p99, to the best peer", "trip_p99", ALL, 1.2, more=False),
        _versus(r, "4", "bulk enqueue, to pgqueuer", "enqueue_many", "pgqueuer", 1.0),
        _best(r, "4", "single sends, to the best PostgreSQL peer", "enqueue_one", ON_POSTGRESQL, 1.0),
        _own(r, "5", "drain beside 1 million finished tasks, to empty", "adverse_finished", 0.9),
        _own(r, "5", "drain beside 1 million future-dated tasks, to empty", "adverse_future", 0.9),
        _own(r, "5", "drain with xmin pinned for a minute, to normal", "adverse_pinned", 0.6),
        _best(
            r,
            "6",
            "worker memory, to the smaller of celery and dramatiq",
            "memory",
            ["celery", "dramatiq"],
            1.0,
            more=False,
        ),
        _own(r, "6", "idle worker: statements per second", "idle_statements", FEW_STATEMENTS, more=False),
        _own(r, "6", "idle worker: % of a core", "idle_cpu", LITTLE_CPU, more=False),
        _own(r, "7", "50 ms tasks on 8 processes, of ideal", "drain_sleep50", 0.95),
    ]


def _versus(r: Results, number: str, what: str, metric: str, other: str, bar: float, *, more: bool = True) -> Bar:
    mine, theirs = r.median(metric), r.median(metric, other)
    wanted = f"{'≥' if more else '≤'} {bar:g}x"
    if mine is None or not theirs:
        return Bar(number, what, wanted, "not measured", None)
    ratio = mine / theirs
    text = f"{ratio:.2f}x ({figure(mine)} to {figure(theirs)}, {other})"
    return Bar(number, what, wanted, text, ratio >= bar if more else ratio <= bar)


def _best(r: Results, number: str, what: str, metric: str, others: list[str], bar: float, *, more: bool = True) -> Bar:
    best = r.best(metric, others, more_is_better=more)
    return _versus(r, number, what, metric, best[0] if best else "", bar, more=more)


def _rivals(r: Results) -> Bar:
    """Each rival by its better kind of no-op: taskiq and procrastinate run sync ones in threads, which slows them down."""
    mine = r.median("drain_noop")
    what, wanted = "drain of no-ops, to the best of celery, dramatiq, taskiq, procrastinate", "≥ 3x"
    bests = [best for metric in ("drain_noop", "drain_async") if (best := r.best(metric, RIVALS, more_is_better=True))]
    if mine is None or not bests:
        return Bar("1", what, wanted, "not measured", None)
    name, theirs = max(bests, key=lambda best: best[1])
    return Bar(
        "1", what, wanted, f"{mine / theirs:.2f}x ({figure(mine)} to {figure(theirs)}, {name})", mine >= 3 * theirs
    )


def _own(r: Results, number: str, what: str, metric: str, bar: float, *, more: bool = True) -> Bar:
    mine = r.median(metric, HORSIES.name)
    wanted = f"{'≥' if more else '≤'} {bar:g}"
    if mine is None:
        return Bar(number, what, wanted, "not measured", None)
    return Bar(number, what, wanted, f"{mine:.2f}", mine >= bar if more else mine <= bar)


def figure(value: float) -> str:
    """Three digits are as many as such a measurement has."""
    if value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"
