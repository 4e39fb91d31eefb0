"""An app with limits, whose tasks write a ledger of real starts and ends: one line each, in a file per process.

Times are of the monotonic clock, which all processes of one machine share and no step of a clock changes.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from horsies import (
    AppConfig,
    CustomQueueConfig,
    GroupPolicy,
    Horsies,
    Limit,
    PostgresConfig,
    QueueMode,
    Rate,
    RecoveryConfig,
    ResilienceConfig,
    RetryPolicy,
    TaskError,
    TaskResult,
    current_task,
)

# `worker_app` has the same, and would build an app of its own
VARIABLE, LEDGER_VARIABLE = "HORSIES_TEST_APP", "HORSIES_TEST_LEDGER"
FAST_RECOVERY: Mapping[str, int] = {
    "runner_heartbeat_interval_ms": 1_000,
    "claimer_heartbeat_interval_ms": 1_000,
    "running_stale_threshold_ms": 3_000,
    "claimed_stale_threshold_ms": 3_000,
    "finalizing_stale_threshold_ms": 3_000,
    "check_interval_ms": 1_000,
    "crashed_worker_recovery_grace_ms": 1_000,
}
FAST_RESILIENCE: Mapping[str, int] = {"reconnect_initial_ms": 20, "reconnect_max_ms": 500}


class Run(NamedTuple):
    queue: str
    group: str
    number: int
    started: float
    ended: float | None
    """None: it was killed."""


def build(described: Mapping[str, Any]) -> Horsies:
    """`url`; `queues`: arguments of CustomQueueConfig by name, `groups` those of GroupPolicy; `limits` likewise."""
    queues = []
    for name, given in described["queues"].items():
        options = dict(given)
        if "groups" in options:
            options["groups"] = GroupPolicy(**_with_rate(options["groups"]))
        queues.append(CustomQueueConfig(name, **options))
    return Horsies(
        AppConfig(
            PostgresConfig(described["url"], **described.get("broker", {})),
            queue_mode=QueueMode.CUSTOM,
            custom_queues=queues,
            limits=[Limit(name, **_with_rate(given)) for name, given in described.get("limits", {}).items()],
            recovery=RecoveryConfig(**FAST_RECOVERY),
            resilience=ResilienceConfig(**{**FAST_RESILIENCE, **described.get("resilience", {})}),
        )
    )


def _with_rate(given: Mapping[str, Any]) -> dict[str, Any]:
    rate = given.get("rate")
    return {**given, "rate": Rate(*rate) if rate else None}


app = build(json.loads(os.environ.get(VARIABLE, '{"url": "postgresql:///none", "queues": {"default": {}}}')))
_ledger: int | None = None


def _write(*fields: object) -> None:
    global _ledger
    if _ledger is None:
        path = Path(os.environ[LEDGER_VARIABLE]) / f"runs-{os.getpid()}"
        _ledger = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_ledger, ("\t".join(map(str, fields)) + "\n").encode())


@app.task(
    "work",
    queue_name=app.config.queue_names[0],
    retry_policy=RetryPolicy.fixed(0.05, 3, auto_retry_for=["WORKER_CRASHED"]),
)
def work(number: int, seconds: float = 0.0) -> TaskResult[int, TaskError]:
    started = time.monotonic()
    task = current_task()
    _write("start", task.queue_name, task.group or "", number, task.fencing_token, started)
    if seconds:
        time.sleep(seconds)
    _write("end", task.queue_name, task.group or "", number, task.fencing_token, time.monotonic())
    return TaskResult(ok=number)


def read_ledger(folder: Path) -> list[Run]:
    starts: dict[tuple[str, ...], float] = {}
    ends: dict[tuple[str, ...], float] = {}
    for path in folder.glob("ledger/runs-*"):
        for line in path.read_text().splitlines():
            what, queue, group, number, token, at = line.split("\t")
            (starts if what == "start" else ends)[queue, group, number, token] = float(at)
    return [Run(key[0], key[1], int(key[2]), at, ends.get(key)) for key, at in starts.items()]


def most_in_window(times: Sequence[float], seconds: float) -> int:
    """The most times in any window of this length, its end excluded."""
    most, first, ordered = 0, 0, sorted(times)
    for last, at in enumerate(ordered):
        while ordered[first] <= at - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


def most_at_once(runs: Sequence[Run]) -> int:
    """The most runs at the same time; one that was killed counts until the next of its group that started later, which
    is as long as anyone can tell."""
    changes = sorted(
        [(run.started, 1) for run in runs] + [(run.ended, -1) for run in runs if run.ended is not None]
    )  # fmt: skip
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def by_group(runs: Sequence[Run]) -> dict[str, list[Run]]:
    found = defaultdict[str, list[Run]](list)
    for run in runs:
        found[run.group].append(run)
    return found
