"""The app of the scheduler processes in the end-to-end tests: the task `add`, and schedules from the environment."""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from horsies import Horsies, Interval
from tests.support.postgres import Database
from tests.support.schedulers import schedule, scheduled_app
from tests.support.workers import ROOT, WorkerProcess, ended

VARIABLE = "HORSIES_TEST_SCHEDULES"
POLL = {"notify_poll_interval_ms": 1_000}


def build(described: Mapping[str, Any]) -> Horsies:
    """`schedules`: names and seconds. Each calls add(a=<its number>) and owes every slot that it missed."""
    schedules = [
        schedule(name, Interval(seconds=seconds), kwargs={"a": number}, catch_up_missed=True, max_catch_up_runs=1_000)
        for number, (name, seconds) in enumerate(described["schedules"].items())
    ]
    return scheduled_app(
        described["url"], schedules, resilience=described["resilience"], broker=described.get("broker")
    )


app = build(json.loads(os.environ[VARIABLE])) if VARIABLE in os.environ else None


def start_scheduler(
    where: Database | str,
    schedules: Mapping[str, int],
    folder: Path,
    *arguments: str,
    sync_points: Mapping[str, Path] | None = None,
    command: Sequence[str] = ("horsies.cli", "scheduler"),
    resilience: Mapping[str, Any] = POLL,
    broker: Mapping[str, Any] | None = None,
) -> WorkerProcess:
    """Start one and return at once; the caller ends it."""
    described = {
        "url": where if isinstance(where, str) else where.url, "schedules": schedules, "resilience": resilience,
        "broker": broker,
    }  # fmt: skip
    points = ",".join(f"{name}={path}" for name, path in (sync_points or {}).items())
    environment = {
        **os.environ, VARIABLE: json.dumps(described), "HORSIES_SYNC_POINTS": points, "PYTHONUNBUFFERED": "1",
    }  # fmt: skip
    line = [sys.executable, "-m", *command, "tests.support.scheduler_app:app", f"--health-file={folder / 'health'}"]
    return WorkerProcess([*line, *arguments], environment, folder, cwd=ROOT)


@contextmanager
def scheduler(
    where: Database | str, schedules: Mapping[str, int], folder: Path, *arguments: str, **more: Any
) -> Iterator[WorkerProcess]:
    """A scheduler process, up and looking; ended with the block, and it must end well."""
    process = start_scheduler(where, schedules, folder, *arguments, **more)
    with ended(process):
        process.wait_up()
        yield process
