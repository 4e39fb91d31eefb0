"""The samples of a run by metric and system, and the machine that they were taken on."""

import json
import os
import platform
import statistics
import subprocess
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.compare.systems import HORSIES


class Metric(NamedTuple):
    title: str
    unit: str = ""
    more_is_better: bool = False

    def __str__(self) -> str:
        return f"{self.title}, {self.unit}" if self.unit else self.title


METRICS = {
    "enqueue_one": Metric("enqueue, one by one", "tasks/s", True),
    "enqueue_many": Metric("enqueue in bulk", "tasks/s", True),
    "drain_noop": Metric("drain of no-ops, 2 processes", "tasks/s", True),
    "drain_async": Metric("drain of async no-ops, 2 processes", "tasks/s", True),
    "drain_sleep50": Metric("50 ms tasks, 8 processes, 1 slot each: share of ideal", "of ideal", True),
    "trip_p50": Metric("idle round trip, p50", "ms"),
    "trip_p99": Metric("idle round trip, p99", "ms"),
    "cold_start": Metric("worker started to first task done", "s"),
    "memory": Metric("memory of the worker tree, PSS, 2 processes", "MB"),
    "connections": Metric("connections of one worker, 2 processes"),
    "idle_cpu": Metric("idle worker: CPU", "% of a core"),
    "idle_statements": Metric("idle worker: statements", "per s"),
    "cpu_worker": Metric("CPU of the worker tree per no-op", "µs"),
    "cpu_server": Metric("CPU of PostgreSQL or Redis per no-op", "µs"),
    "cost_statements": Metric("statements per task"),
    "cost_wal": Metric("WAL per task", "bytes"),
    "adverse_finished": Metric("drain beside 1 million finished tasks: ratio to normal", "of normal", True),
    "adverse_future": Metric("drain beside 1 million future-dated tasks: ratio to normal", "of normal", True),
    "adverse_pinned": Metric("drain while a transaction pins xmin: ratio to normal", "of normal", True),
    "adverse_normal": Metric("drain of no-ops by a warm worker", "tasks/s", True),
}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@dataclass(slots=True)
class Results:
    mode: str
    began: str = field(default_factory=_now)
    settings: dict[str, float] = field(default_factory=dict)
    load_average_before_each_round: list[float] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)

    def add(self, metric: str, system: str, value: float | None) -> None:
        if value is not None:
            self.samples.setdefault(metric, {}).setdefault(system, []).append(round(value, 5))

    def median(self, metric: str, system: str = HORSIES.name) -> float | None:
        values = self.samples.get(metric, {}).get(system)
        return statistics.median(values) if values else None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**asdict(self), "ended": _now(), "machine": machine()}, indent=1) + "\n")


def read(path: Path) -> Results:
    content: dict[str, Any] = json.loads(path.read_text())
    return Results(**{key: value for key, value in content.items() if key in Results.__slots__})


def machine() -> dict[str, Any]:
    """What a reader needs to judge the figures: no host names, no paths."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 2**30),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
    }
