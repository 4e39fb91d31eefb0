"""SIGKILL of children, parents and whole workers while tasks complete themselves: business rows equal ends, always.

At each named moment first, then at random ones. The suite strikes 25 times; `just completion-kills` strikes 500 times
at random, or as often as it is told, and at each named moment with every kind of blow.
"""

import os
import random
import sys
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from horsies import TaskHandle, gather
from tests.support import completing_app
from tests.support.apps import app_on
from tests.support.completing_app import APP, BUSINESS, disagreements
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import BOUND_S, build
from tests.support.workers import WorkerProcess, check_invariants, describe, ended, start_worker

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
KILLS_VARIABLE = "HORSIES_TEST_COMPLETION_KILLS"
IS_LONG = KILLS_VARIABLE in os.environ
KILLS = int(os.environ.get(KILLS_VARIABLE, "17"))
IN_FLIGHT = 12
LONGEST_S = 0.03

STEPS = {
    "before_write": ["wait", "write", "complete", "commit"],
    "before_completing": ["write", "complete", "commit"],  # the moments of the code itself are sync points
    "completing": ["write", "complete", "commit"],
    "before_commit": ["write", "complete", "wait", "commit"],
    "after_commit": ["write", "complete", "commit", "wait"],
    "before_finalize": ["write", "complete", "commit"],
    "before_explain": ["write", "complete", "commit"],
    "completed_found": ["write", "complete", "commit"],
}
IS_COMMITTED = {"after_commit", "before_finalize", "before_explain", "completed_found"}
POINTS = {"before_completing", "completing", "before_finalize", "before_explain", "completed_found"}
IN_PARENT = {"before_finalize", "before_explain", "completed_found"}
CONFIG: dict[str, Any] = {"queues": dict.fromkeys(STEPS)}
# While its worker waits at a point, a task has no heartbeats: only the rescuer, which comes last, may recover it.
INNOCENT = {"auto_fail_stale_running": False, "auto_requeue_stale_claimed": False}


@dataclass
class Victim:
    moment: str
    at: Path
    process: WorkerProcess
    handles: list[TaskHandle[Any]] = field(default_factory=list)

    def release(self) -> None:
        self.at.with_name(self.at.name + ".go").touch()


@pytest.mark.long
@pytest.mark.parametrize("blow", ["child", "parent", "both"] if IS_LONG else ["both"])
def test_at_every_moment(db: Database, tmp_path: Path, blow: str) -> None:
    db.execute(BUSINESS)
    with ExitStack() as stack:
        app = stack.enter_context(build(describe(db, **CONFIG)))
        tasks = completing_app.register(app)
        victims: list[Victim] = []
        for k, (moment, steps) in enumerate(STEPS.items()):
            at = tmp_path / moment
            points = {moment: at} if moment in POINTS else {}
            described = describe(db, **CONFIG, recovery=INNOCENT)
            process = start_worker(described, tmp_path, f"--queues={moment}", app=APP, processes=1, sync_points=points)
            stack.enter_context(ended(process, code=None))
            victim = Victim(moment, at, process)
            told = [f"wait:{at}" if step == "wait" else step for step in steps]
            victim.handles = [tasks.work_again.with_options(queue_name=moment).send(k, told)]
            victims.append(victim)
        for victim in victims:
            eventually(victim.at.exists, timeout=40, describe=f"{victim.moment} is reached")
        rescuer = start_worker(describe(db, **CONFIG), tmp_path, app=APP)
        stack.enter_context(ended(rescuer))
        rescuer.wait_up()

        before = {victim.moment: status(db, victim.handles[0]) for victim in victims}
        assert before == {moment: "COMPLETED" if moment in IS_COMMITTED else "RUNNING" for moment in STEPS}
        for victim in victims:
            if blow == "child":
                assert victim.process.kill_children()
                if victim.moment in IN_PARENT:
                    victim.release()
            elif blow == "parent":
                victim.process.kill()
            else:
                victim.process.kill_all()
        if blow == "child":
            for victim in victims:
                # its next child is not to wait at the same moment
                victim.release()
        left = "SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NULL"
        eventually(lambda: db.value(left) == 0, timeout=BOUND_S + 10, describe="everything has ended")
        for victim in victims:
            task_id = victim.handles[0].task_id
            assert status(db, victim.handles[0]) == "COMPLETED", victim.moment
            history = db.execute(
                "SELECT outcome FROM horsies_task_attempts WHERE task_id = %s ORDER BY attempt", task_id
            )
            crashes = [] if victim.moment in IS_COMMITTED else [("WORKER_FAILURE",)]
            assert history == [*crashes, ("COMPLETED",)], (victim.moment, victim.process.log[-3000:])
            assert "CLAIM_LOST" not in victim.process.log
        assert disagreements(db) == []
    check_invariants(db)


def status(db: Database, handle: TaskHandle[Any]) -> str:
    return db.value("SELECT status FROM horsies_tasks WHERE id = %s", handle.task_id)


@pytest.mark.long
def test_at_random_moments(db: Database, tmp_path: Path) -> None:
    """Two workers under constant load; every blow hits a process that runs tasks."""
    seed = int(os.environ.get("HORSIES_TEST_SEED", time.time_ns() % 2**32))
    chance = random.Random(seed)
    db.execute(BUSINESS)
    with ExitStack() as stack:
        app = stack.enter_context(build(describe(db)))
        tasks = completing_app.register(app)
        fleet = [Replaced(db, tmp_path, stack) for _ in range(2)]
        sent: list[TaskHandle[Any]] = []
        blows = dict.fromkeys(("child", "parent", "both"), 0)
        open_tasks = "SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NULL"
        for _ in range(KILLS):
            missing = IN_FLIGHT - db.value(open_tasks)
            if missing > 0:
                calls = [(len(sent) + n, LONGEST_S) for n in range(missing)]
                sent += tasks.work_at_risk.send_many(calls)
            one = chance.choice(fleet)
            one.wait_busy()
            time.sleep(chance.random() * 3 * LONGEST_S)
            blow = chance.choices(("child", "parent", "both"), (10, 1, 1))[0]
            one.strike(blow, chance)
            blows[blow] += 1
        eventually(lambda: db.value(open_tasks) == 0, timeout=60, describe="everything has ended")
        crashes = db.value("SELECT count(*) FROM horsies_task_attempts WHERE outcome = 'WORKER_FAILURE'")
        saved = sum(one.log().count("stays COMPLETED") for one in fleet)
        report = (
            f"seed {seed}: {sum(blows.values())} kills {blows}, {len(sent)} tasks, {crashes} crashed attempts, "
            f"{saved} children killed after their commit, {len(disagreements(db))} disagreements"
        )
        print(report)  # noqa: T201
        assert disagreements(db) == [], report
        ends = dict(db.execute("SELECT status, count(*) FROM horsies_tasks GROUP BY 1"))
        assert set(ends) <= {"COMPLETED", "FAILED"}, report
        assert crashes > 0, report
    check_invariants(db)


class Replaced:
    """A worker that is started again when it was killed."""

    def __init__(self, db: Database, folder: Path, stack: ExitStack) -> None:
        self._db = db
        self._folder = folder
        self._stack = stack
        self._former: list[WorkerProcess] = []
        self._start()

    def _start(self) -> None:
        self._process = start_worker(describe(self._db), self._folder, app=APP, processes=3)
        self._stack.enter_context(ended(self._process))
        self._process.wait_up()

    def wait_busy(self) -> None:
        mine = "SELECT count(*) FROM horsies_tasks WHERE status = 'RUNNING' AND claimed_by_worker_id = %s"
        worker_id = self._process.worker_id
        deadline = time.monotonic() + 1.0  # the other one may have taken all
        while time.monotonic() < deadline and not self._db.value(mine, worker_id):
            time.sleep(0.002)

    def strike(self, blow: str, chance: random.Random) -> None:
        if blow == "child":
            children = self._process.children()
            if children:
                try:
                    chance.choice(children).kill()
                except psutil.NoSuchProcess:
                    pass
            return
        if blow == "parent":
            self._process.kill()
        else:
            self._process.kill_all()
        self._former.append(self._process)
        self._start()

    def log(self) -> str:
        return "".join(process.log for process in (*self._former, self._process))


def test_the_example(db: Database, tmp_path: Path) -> None:
    """docs/examples/exactly_once.py, while its children are killed."""
    db.execute("CREATE TABLE payments (id serial PRIMARY KEY, order_id int, cents int)")
    command = [sys.executable, "-m", "horsies_worker", "exactly_once:app", "--processes=2"]
    command.append(f"--health-file={tmp_path / 'health'}")
    url = db.url.replace("postgresql://", "postgresql+psycopg://")
    variables = {**os.environ, "HORSIES_DATABASE_URL": db.url, "DATABASE_URL": url, "PYTHONUNBUFFERED": "1"}
    process = WorkerProcess(command, variables, tmp_path, cwd=EXAMPLES)
    with ended(process), app_on(db) as app:
        process.wait_up()
        handles = [app.send("pay", order, 100) for order in range(40)]
        for _ in range(3):
            for child in process.children()[:1]:
                child.kill()
            time.sleep(0.05)
        results = gather(handles, timeout_ms=60_000)
        assert all(result.is_ok() for result in results), results
        paid = db.execute("SELECT id, order_id FROM payments ORDER BY order_id")
        assert [(result.ok, order) for order, result in enumerate(results)] == paid
        receipts = "SELECT count(*) FROM horsies_tasks WHERE task_name = 'receipt'"
        assert db.value(receipts) == 40
