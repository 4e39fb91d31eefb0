"""An app for releases that take turns on one database: its tasks leave lines in the ledger of the soak.

Only what all of these releases have. `python -m tests.support.rolling_app NUMBER` is a producer, which notes every
answer that it got, until the file `enough` is in the ledger's folder.
"""

import itertools
import os
import sys
import time
import uuid
from pathlib import Path

from horsies import AppConfig, Horsies, PostgresConfig, RecoveryConfig, RetryPolicy, TaskError, TaskResult, from_node
from tests.soak.ledger import FOLDER_VARIABLE, note_run, note_send

Number = TaskResult[int, TaskError]
AGAIN = RetryPolicy.fixed(0.1, 20, auto_retry_for=["WORKER_CRASHED"])
RECOVERY = {
    "worker_state_interval_ms": 1_000, "check_interval_ms": 1_000, "runner_heartbeat_interval_ms": 1_000,
    "claimer_heartbeat_interval_ms": 1_000, "running_stale_threshold_ms": 10_000, "claimed_stale_threshold_ms": 10_000,
    "finalizing_stale_threshold_ms": 10_000, "crashed_worker_recovery_grace_ms": 1_000,
}  # fmt: skip
PER_SECOND = 12

app = Horsies(
    AppConfig(
        PostgresConfig(os.environ.get("HORSIES_DATABASE_URL", "postgresql://localhost/none")),
        auto_migrate=False,
        recovery=RecoveryConfig(**RECOVERY),
    )
)


def _worked(k: int, seconds: float) -> Number:
    run = str(uuid.uuid4())
    note_run(k, run, "start")
    time.sleep(seconds)
    note_run(k, run, "end")
    return TaskResult(ok=7 * k + 3)


@app.task("once")
def once(k: int, seconds: float) -> Number:
    """Never repeated."""
    return _worked(k, seconds)


@app.task("steady", retry_policy=AGAIN)
def steady(k: int, seconds: float) -> Number:
    return _worked(k, seconds)


@app.task("number", retry_policy=AGAIN)
def number(n: int, seconds: float) -> Number:
    time.sleep(seconds)
    return TaskResult(ok=n)


first = number.node(node_id="first")(1, 0.3)
left = number.node(node_id="left")(from_node(first), 1.0)
right = number.node(node_id="right")(from_node(first), 0.1)
flow = app.workflow("flow", [first, left, right, number.node(node_id="last", waits_for=[right])(from_node(left), 0.1)])


def produce(part: int) -> None:
    enough = Path(os.environ[FOLDER_VARIABLE]) / "enough"
    for n in itertools.count():
        if enough.exists():
            return
        k = part * 1_000_000 + n
        kind = ("once", "steady", "delayed", "once", "steady", "long", "flow")[n % 7]
        if kind == "flow":
            note_send(k=k, kind=kind, id=flow.start().workflow_id)
        elif kind == "delayed":
            note_send(k=k, kind=kind, id=steady.schedule(3 + n % 5, k, 0.02).task_id)
        elif kind == "long":
            note_send(k=k, kind=kind, id=(once if n % 2 else steady).send(k, 1.0).task_id)
        else:
            note_send(k=k, kind=kind, id=(once if kind == "once" else steady).send(k, 0.02).task_id)
        time.sleep(1 / PER_SECOND)


if __name__ == "__main__":
    produce(int(sys.argv[1]))
