"""Batches with real workers: also when one of them is killed in the middle."""

import os
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from horsies import BatchHandle, WorkflowStatus
from tests.support import workflow_app
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import BOUND_S, build
from tests.support.workers import WorkerProcess, check_invariants, describe, ended, start_worker

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def has_ended(batch: BatchHandle[Any], share: int) -> bool:
    progress = batch.progress()
    return progress is not None and progress.ended >= share


def test_a_batch_while_workers_are_killed(db: Database, tmp_path: Path) -> None:
    """Two workers; one is killed with its children when a part of the members has ended, and again later."""
    with ExitStack() as stack:
        app = stack.enter_context(build(describe(db)))
        t = workflow_app.register(app)

        def start() -> WorkerProcess:
            return stack.enter_context(ended(start_worker(describe(db), tmp_path, app=workflow_app.APP), code=None))

        workers = [start(), start()]
        for process in workers:
            process.wait_up()
        calls = [t.traced.call(f"m{n}", 0.01) for n in range(390)] + [t.fail.call() for _ in range(10)]
        batch = app.batch(calls, then=t.tally)
        for share in (50, 200):
            eventually(lambda share=share: has_ended(batch, share), timeout=BOUND_S)
            workers.pop(0).kill_all()
            workers.append(start())
        assert batch.get(30_000).ok == [400, 390, 10, 0]
        assert batch.status() is WorkflowStatus.COMPLETED
        progress = batch.progress()
        assert progress is not None
        assert (progress.ended, progress.failed, progress.waiting) == (400, 10, 0)
        results = list(batch.results())
        assert [result.ok for result in results[:390]] == [f"m{n}" for n in range(390)]
        assert {result.err_value.error_code for result in results[390:]} == {"BROKEN"}
        assert db.value("SELECT count(*) FROM horsies_tasks WHERE task_name = 'tally'") == 1
        lines = Counter(line for file in (tmp_path / "ledger").glob("trace-*") for line in file.read_text().split())
        assert lines.keys() >= {f"m{n}" for n in range(390)} | {f"tally-{batch.batch_id}"}
    check_invariants(db, slack_s=0)


def test_then_is_claimed_after_a_death_between_the_last_end_and_its_step(db: Database, tmp_path: Path) -> None:
    """The worker that wrote the last end is killed before it told the batch: the reaper of another one does."""
    innocent = {"crashed_worker_recovery_grace_ms": 0}
    with ExitStack() as stack:
        app = stack.enter_context(build(describe(db)))
        t = workflow_app.register(app)
        point = tmp_path / "point"
        victim = stack.enter_context(
            ended(
                start_worker(
                    describe(db, recovery=innocent), tmp_path, app=workflow_app.APP, processes=1,
                    sync_points={"before_workflow_phase": point},
                ),
                code=None,
            )
        )  # fmt: skip
        victim.wait_up()
        batch = app.batch([t.number.call(1)], then=t.tally)
        eventually(point.exists, timeout=40, describe="the victim is about to move the batch on")
        victim.kill_all()
        rescuer = stack.enter_context(ended(start_worker(describe(db), tmp_path, app=workflow_app.APP)))
        rescuer.wait_up()
        assert batch.get(30_000).ok == [1, 1, 0, 0]
    check_invariants(db, slack_s=0)


def test_the_example_of_the_guide(db: Database, tmp_path: Path) -> None:
    environment = {**os.environ, "HORSIES_DATABASE_URL": db.url, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "horsies_worker", "thumbnails:app", "--processes=2"]
    process = WorkerProcess([*command, f"--health-file={tmp_path / 'health'}"], environment, tmp_path, cwd=EXAMPLES)
    with ended(process):
        process.wait_up()
        script = subprocess.run(
            [sys.executable, "thumbnails.py"],
            cwd=EXAMPLES,
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert script.returncode == 0, script.stderr
    assert script.stdout.splitlines() == [
        "album: 180 of 200 pictures, 20 failed", "broken: [9, 19, 29] and 17 more",
    ]  # fmt: skip
