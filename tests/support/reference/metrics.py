"""worker-metrics.md and exporter-metrics.md: the tables of metrics in `horsies_worker/metrics`."""

from collections.abc import Callable, Sequence

from horsies_worker.metrics import cluster, worker
from tests.support.reference import markdown as md

WORKER = """\
# Metrics of a worker

`horsies worker --metrics-port PORT` serves these at `/metrics`, in the text format of Prometheus or as OpenMetrics,
with the usual figures of the process (`process_resident_memory_bytes`, `process_cpu_seconds_total`, ...). It needs
`pip install 'horsies-worker[metrics]'`. They are counted from the [events](events.md) of this worker alone, since its
start; the [exporter](exporter-metrics.md) has the figures of queues and of the whole installation.

Labels have bounds: `task` and `queue` are names of the app that the worker runs, never names of rows that it does not
know.

| Path | Answer |
|---|---|
| `/metrics` | the figures; while the event loop does not answer within 2 s, the counters without the gauges |
| `/healthz` | 200, or 503 when the event loop does not answer within 2 s: restart it |
| `/readyz` | 200, or 503 with the reason: starting or stopping, no database, drained, no child process ready |

A probe needs a time-out of its own: for a process that is stopped (SIGSTOP) the kernel still accepts connections. A
port that is in use ends the worker with [exit code 3](../guides/workers.md#stopping). The endpoint has no password, so
let only Prometheus reach it, or give `--metrics-host 127.0.0.1`.
"""

EXPORTER = """\
# Metrics of the exporter

`horsies exporter` serves these at `/metrics`: the figures of the whole installation, which only the database knows.
They are collected at an interval, and every scrape gets the last ones. [Monitoring](../operations/monitoring.md) says
how to run it, what is bounded, and which alerts go with it; the [metrics of a worker](worker-metrics.md) say what
each worker does.

Labels have bounds, too: at most 500 queues (the others are added up as `(other)`) and 100 shared limits; groups are
labels only with `--top-groups`. After a failed collection all but the first four are absent until one succeeds; those
of the schema stay where its revision is the reason. "Stale", "late" and "dead" mean what [`horsies
stale`](cli.md#horsies-stale) and [`horsies workers`](cli.md#horsies-workers) mean by them.

"""


def worker_metrics_page() -> str:
    note = md.note("`METRICS` in `horsies_worker/metrics/worker.py`")
    return note + WORKER + "\n" + _table(worker.METRICS, worker.type_of)


def exporter_metrics_page() -> str:
    note = md.note("`METRICS` in `horsies_worker/metrics/cluster.py`")
    return (
        note
        + EXPORTER
        + _table(cluster.METRICS, lambda metric: "counter" if metric.is_counter else "gauge")
        + "\nThe usual figures of the exporter's own process (`process_resident_memory_bytes`, ...) come on top.\n"
    )


def _table(metrics: Sequence[cluster.Metric], type_of: Callable[[cluster.Metric], str]) -> str:
    return md.table(
        ("Metric", "Type", "Labels", "Meaning"),
        (
            (f"`{metric.name}`", type_of(metric), ", ".join(f"`{label}`" for label in metric.labels), metric.help)
            for metric in metrics
        ),
    )
