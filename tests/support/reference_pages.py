"""Writes the generated pages of docs/reference: events and worker metrics. `just reference` runs it, and
tests/architecture/test_reference.py compares the committed pages with these."""

import ast
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from horsies import events
from horsies_worker.metrics import worker as worker_metrics

FOLDER = Path(__file__).parents[2] / "docs/reference"
NOTE = "<!-- Written by `just reference`: edit {source} instead. -->\n\n"

EVENTS = """\
# Events

What `app.on_event` can tell you of ([how to use it](../guides/workers.md#react-to-events)). Import the classes from
`horsies.events`. Each is a frozen dataclass; times are in seconds. A worker creates events in its parent process, so
they also tell of child processes that crash. `horsies scheduler` has `ScheduleFired`, `DatabaseLost` and
`DatabaseRegained`.

An event tells what a worker has seen, once, when it has seen it. It is not a record: a worker that is killed tells
nothing of what it was doing, and a slow handler loses events. What became of a task is in its row.
"""

METRICS = """\
# Metrics of a worker

`horsies worker --metrics-port PORT` serves these at `/metrics`, in the text format of Prometheus or as OpenMetrics,
with the usual figures of the process (`process_resident_memory_bytes`, `process_cpu_seconds_total`, ...). It needs
`pip install 'horsies-worker[metrics]'`. They are counted from the [events](events.md) of this worker alone, since its
start; `horsies exporter` has the figures of queues and of the whole installation.

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

| Metric | Type | Labels | Meaning |
|---|---|---|---|
"""


def events_page() -> str:
    """Sections and classes in the order of the module, each with its docstring and a table of its fields."""
    source = inspect.getsource(events)
    tree = ast.parse(source)
    aliases = dict(_aliases(tree))
    sections = {
        number: match[1]
        for number, line in enumerate(source.splitlines(), 1)
        if (match := re.fullmatch(r"# -- (.+?) -+", line))
    }
    parts = [NOTE.format(source="`horsies/events.py`"), EVENTS]
    for node in tree.body:
        if not isinstance(node, ast.ClassDef):
            continue
        for number in [number for number in sections if number < node.lineno]:
            heading = sections.pop(number)
            parts.append(f"\n## {heading[0].upper()}{heading[1:]}\n")
        parts.append(f"\n### {node.name}\n\n{_told(ast.get_docstring(node))}\n")
        fields = list(_fields(node, aliases))
        if fields:
            parts.append("\n| Field | Type | Meaning |\n|---|---|---|\n")
            parts += [f"| `{name}` | {kind} | {meaning} |\n" for name, kind, meaning in fields]
    return "".join(parts)


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """The words of each Literal that has a name."""
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript):
            words = ast.literal_eval(node.value.slice)
            yield ast.unparse(node.targets[0]), ", ".join(f'`"{word}"`' for word in words)


def _fields(node: ast.ClassDef, aliases: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Name, type and meaning: a string after a field documents it."""
    for place, line in enumerate(node.body):
        if not isinstance(line, ast.AnnAssign):
            continue
        after = node.body[place + 1] if place + 1 < len(node.body) else None
        meaning = ""
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            meaning = _told(str(after.value.value))
        kind = ast.unparse(line.annotation)
        yield ast.unparse(line.target), aliases.get(kind, "`" + kind.replace("|", r"\|") + "`"), meaning


def _told(text: str | None) -> str:
    return " ".join((text or "").split())


def metrics_page() -> str:
    rows = [
        f"| `{metric.name}` | {worker_metrics.type_of(metric)} | "
        f"{', '.join(f'`{label}`' for label in metric.labels)} | {metric.help} |\n"
        for metric in worker_metrics.METRICS
    ]
    return NOTE.format(source="`METRICS` in `horsies_worker/metrics/worker.py`") + METRICS + "".join(rows)


PAGES = {"events.md": events_page, "worker-metrics.md": metrics_page}


def main() -> None:
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())


if __name__ == "__main__":
    main()
