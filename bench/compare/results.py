"""Samples by metric and system, and what is said about them: median, spread, ratio to horsies."""

import json
import os
import platform
import statistics
import subprocess
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.compare import observe
from bench.compare.table import BARE, HORSIES, PEERS


@dataclass(frozen=True, slots=True)
class Metric:
    title: str
    unit: str
    more_is_better: bool = True


METRICS = {
    "enqueue_one": Metric("enqueue, one by one", "tasks/s"),
    "enqueue_many": Metric("enqueue in bulk", "tasks/s"),
    "enqueue_transaction": Metric("a business row and a task in one transaction", "tasks/s"),
    "drain_noop": Metric("drain of no-ops, 2 processes", "tasks/s"),
    "drain_async": Metric("drain of async no-ops, 2 processes", "tasks/s"),
    "drain_sleep1": Metric("drain of 1 ms tasks, 2 processes, 1 slot each", "tasks/s"),
    "drain_sleep50": Metric("50 ms tasks, 8 processes, 1 slot each: share of ideal", "of ideal"),
    "trip_p50": Metric("idle round trip, p50", "ms", False),
    "trip_p99": Metric("idle round trip, p99", "ms", False),
    "late_p50": Metric("delayed start: lateness, p50", "ms", False),
    "late_p99": Metric("delayed start: lateness, worst of the round", "ms", False),
    "cold_start": Metric("worker started to first task done", "s", False),
    "memory": Metric("memory of the worker tree, PSS, 2 processes", "MB", False),
    "connections": Metric("connections of one worker, 2 processes", "", False),
    "idle_cpu": Metric("idle worker: CPU", "% of a core", False),
    "idle_statements": Metric("idle worker: statements", "per s", False),
    "cpu_worker": Metric("CPU of the worker tree per no-op", "µs", False),
    "cpu_server": Metric("CPU of PostgreSQL or Redis per no-op", "µs", False),
    "cost_statements": Metric("statements per task", "", False),
    "cost_commits": Metric("commits per task", "", False),
    "cost_fsyncs": Metric("WAL fsyncs per task", "", False),
    "cost_wal": Metric("WAL per task", "bytes", False),
}

SCALES = [(processes, 1) for processes in range(1, 9)] + [(1, 2), (1, 3)]
"""Child processes per worker, and workers."""


def scale_title(processes: int, copies: int) -> str:
    return (
        f"{copies} workers with {processes} process each"
        if copies > 1
        else f"1 worker, {processes} process{'es' if processes > 1 else ''}"
    )


for _processes, _copies in SCALES:
    METRICS[f"scale_{_copies}x{_processes}"] = Metric(f"drain of no-ops, {scale_title(_processes, _copies)}", "tasks/s")


@dataclass(slots=True)
class Results:
    mode: str
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    samples: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    absent: dict[str, str] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    versions: dict[str, list[str]] = field(default_factory=dict)
    loads: list[float] = field(default_factory=list)
    settings: dict[str, float] = field(default_factory=dict)

    def add(self, metric: str, system: str, value: float | None) -> None:
        if value is not None:
            self.samples.setdefault(metric, {}).setdefault(system, []).append(value)

    def median(self, metric: str, system: str = HORSIES.name) -> float | None:
        values = self.samples.get(metric, {}).get(system)
        return statistics.median(values) if values else None

    def ratio(self, metric: str, other: str, system: str = HORSIES.name) -> float | None:
        mine, theirs = self.median(metric, system), self.median(metric, other)
        return None if mine is None or not theirs else mine / theirs

    def best(self, metric: str, systems: list[str], *, more_is_better: bool) -> tuple[str, float] | None:
        found = [(name, value) for name in systems if (value := self.median(metric, name)) is not None]
        return (max if more_is_better else min)(found, key=lambda pair: pair[1]) if found else None

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        content = {
            "mode": self.mode,
            "began": self.began.isoformat(timespec="seconds"),
            "ended": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "settings": self.settings,
            "load_average_before_each_round": self.loads,
            "versions": self.versions,
            "left_out": self.absent,
            "failures": self.failures,
            "samples": {
                metric: {name: [round(value, 5) for value in values] for name, values in systems.items()}
                for metric, systems in self.samples.items()
            },
        }
        path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> Results:
    content: dict[str, Any] = json.loads(path.read_text())
    return Results(
        content["mode"], datetime.fromisoformat(content["began"]), content["samples"], content["left_out"],
        content["failures"], content["versions"], content["load_average_before_each_round"], content["settings"],
    )  # fmt: skip


def machine() -> dict[str, Any]:
    """What a reader needs to compare: no names of hosts, no paths."""
    model = ""
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return {
        "cores": os.cpu_count(),
        "cpu": model or platform.machine(),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.release().split('-')[0]}",
        "python": platform.python_version(),
        "commit": commit.stdout.strip(),
        "load_average": observe.load_average(),
    }


def order(systems: dict[str, Any]) -> list[str]:
    known = [HORSIES.name, BARE, *(peer.name for peer in PEERS)]
    return [name for name in known if name in systems] + [name for name in systems if name not in known]
