"""The judge of the soak, judged: a good run passes, and a planted loss, double run or overlap is found."""

import json
import random
import time
import uuid
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from tests.soak import logs, recovery, settings
from tests.soak.app import BUSINESS, f
from tests.soak.clock_steps import unexplained
from tests.soak.ledger import Line
from tests.soak.nemesis import Struck
from tests.soak.plan import WEIGHTS, make_plan
from tests.soak.report import Verdict
from tests.soak.rules import Finding, judge
from tests.soak.workload import Call, draw
from tests.support import factories
from tests.support.chaosproxy import ChaosProxy
from tests.support.factories import NOW, ago
from tests.support.postgres import Database

START = time.time() - 1_000
pytestmark = pytest.mark.shared_database
EVERYTHING = ("namespace", "small_disk", "faketime", "older_release")


@dataclass
class World:
    """What a run has left: rows, sends, the ledger and the faults."""

    db: Database
    sends: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    lines: list[Line] = field(default_factory=list[Line])
    struck: list[Struck] = field(default_factory=list[Struck])

    def sent(self, k: int, task_id: str, kind: str = "steady", **more: Any) -> None:
        self.sends.append({"k": k, "kind": kind, "phase": "ok", "id": task_id, "at": START, **more})

    def ran(self, k: int, start: float, end: float | None, *, pid: int = 1, group: str = "-") -> None:
        run = str(uuid.uuid4())
        self.lines.append(Line(k, run, "start", pid, START + start, group))
        if end is not None:
            self.lines.append(Line(k, run, "end", pid, START + end, group))

    def task(self, k: int, status: str = "COMPLETED", kind: str = "steady", **columns: Any) -> str:
        given = {"task_name": kind, "queue_name": "main", "kwargs": json.dumps({"k": k})}
        if status == "COMPLETED":
            given["result"] = json.dumps({"ok": f(k)})
        task_id = factories.task(self.db, status, **{**given, **columns})
        self.sent(k, task_id, kind)
        return task_id

    def judge(self) -> list[Finding]:
        return judge(self.db, self.sends, self.lines, self.struck)[0]

    def rules(self) -> set[str]:
        return {finding.rule for finding in self.judge()}


@pytest.fixture
def world(db: Database) -> World:
    """A task that completed, one that crashed once, a workflow, and one slot of each schedule."""
    db.execute(f"DROP TABLE IF EXISTS business, chaos_sent, chaos_ledger; {BUSINESS}")
    made = World(db)
    made.task(1)
    made.ran(1, 0.0, 0.1)
    made.task(2, retry_count=1, max_retries=20)
    made.ran(2, 0.0, None)
    made.ran(2, 5.0, 5.1)
    for name in {**settings.SCHEDULES, **settings.STORED_SCHEDULES}:
        factories.task(db, "CANCELLED", task_name="tick", kwargs=json.dumps({"name": name}), sent_at=ago(minutes=1))
    run = factories.workflow(db, "COMPLETED", result='{"ok":5}')
    made.sent(3, run, "wf:diamond", status="COMPLETED", value=5, undone=0)
    return made


def test_a_good_run(world: World) -> None:
    assert world.judge() == []


@pytest.mark.breaks("L1")
def test_a_lost_task(world: World) -> None:
    world.sent(9, "00000000-0000-0000-0000-000000000009")
    assert world.rules() == {"L1"}


def test_a_send_without_an_answer_may_be_lost(world: World) -> None:
    world.sent(9, "00000000-0000-0000-0000-000000000009", phase="unknown")
    assert world.judge() == []


def test_a_task_of_a_transaction_that_was_rolled_back(world: World) -> None:
    world.sent(9, "00000000-0000-0000-0000-000000000009", "transactional", phase="rolled_back")
    assert world.judge() == []
    world.sent(10, factories.task(world.db, "CANCELLED"), "transactional", phase="rolled_back")
    assert world.rules() == {"N1"}


def test_the_last_of_sends_that_replace_each_other(world: World) -> None:
    for k in (30, 31):
        world.sent(k, "00000000-0000-0000-0000-000000000009", "replaced", key="r0")
    world.ran(31, 0.0, 0.1)
    assert world.judge() == []
    world.sent(32, "00000000-0000-0000-0000-000000000009", "replaced", key="r0")
    assert world.rules() == {"V1"}


@pytest.mark.breaks("L4")
def test_a_run_that_no_attempt_knows_of(world: World) -> None:
    world.ran(2, 8.0, 8.1)
    assert world.rules() == {"L4"}


@pytest.mark.breaks("L4", "L5")
def test_a_second_run_of_a_task_that_must_not_be_repeated(world: World) -> None:
    world.task(9, kind="once")
    world.ran(9, 0.0, 0.1)
    world.ran(9, 1.0, 1.1)
    assert world.rules() == {"L4", "L5"}


@pytest.mark.breaks("L3")
def test_a_success_without_a_run(world: World) -> None:
    world.task(9)
    assert world.rules() == {"L3"}


def test_a_task_that_was_taken_from_a_worker_that_lived(world: World) -> None:
    world.db.execute(
        "UPDATE horsies_task_attempts SET outcome = 'WORKER_FAILURE', error_code = 'WORKER_CRASHED',"
        " failed_reason = 'no sign of life' WHERE will_retry"
    )
    assert world.rules() == {"Z1"}
    world.struck.append(Struck("freeze", "worker-0", START, START + 1, worker_id="worker-1"))
    assert world.judge() == []


class TestOverlaps:
    """Two runs of one task at the same time: allowed only if the first one's worker was frozen or cut off."""

    @pytest.fixture
    def world(self, world: World) -> World:
        world.task(9, retry_count=1, max_retries=20)
        world.ran(9, 10.0, 20.0, pid=7)
        world.ran(9, 15.0, 15.1, pid=8)
        return world

    @pytest.mark.breaks("L6")
    def test_without_a_window(self, world: World) -> None:
        assert world.rules() == {"L6"}

    @pytest.mark.breaks("L6")
    def test_in_the_window_of_its_worker(self, world: World) -> None:
        world.struck.append(Struck("freeze", "worker-0", START + 11, START + 19, pids=[7]))
        found, overlaps = judge(world.db, world.sends, world.lines, world.struck)
        assert (found, overlaps) == ([], 1)

    @pytest.mark.breaks("L6")
    def test_in_the_window_of_another_worker(self, world: World) -> None:
        world.struck.append(Struck("freeze", "worker-1", START + 11, START + 19, pids=[6]))
        assert world.rules() == {"L6"}

    @pytest.mark.breaks("L6")
    def test_after_the_window(self, world: World) -> None:
        world.struck.append(Struck("blackhole", "worker-0", START + 2, START + 10.5, pids=[7]))
        assert world.rules() == {"L6"}

    @pytest.mark.breaks("L6")
    def test_beside_another_fault(self, world: World) -> None:
        world.struck.append(Struck("server_crash", "server", START + 11, START + 19, pids=[7]))
        assert world.rules() == {"L6"}


def test_a_wrong_result(world: World) -> None:
    world.task(9, result='{"ok":1}')
    world.ran(9, 0.0, 0.1)
    assert world.rules() == {"E1"}


def test_a_task_that_failed_although_its_policy_retries(world: World) -> None:
    world.task(9, "FAILED", error_code="WORKER_CRASHED")
    assert world.rules() == {"K1"}


def test_a_workflow_with_another_end_or_value(world: World) -> None:
    for k, (status, result) in enumerate({"FAILED": None, "COMPLETED": '{"ok":6}'}.items(), start=10):
        run = factories.workflow(world.db, status, result=result)
        world.sent(k, run, "wf:diamond", status="COMPLETED", value=5, undone=0)
    assert world.rules() == {"F1", "F2"}


@pytest.mark.parametrize(("seconds", "rule"), [(0, "S2"), (3, "S3")])
def test_a_slot_with_two_tasks_and_one_without(world: World, seconds: int, rule: str) -> None:
    name, every_s = next(iter(settings.SCHEDULES.items()))
    of_schedule = {"task_name": "tick", "kwargs": json.dumps({"name": name})}
    first = world.db.value("SELECT sent_at FROM horsies_tasks WHERE task_name = 'tick' AND kwargs LIKE %s", f"%{name}%")
    factories.task(world.db, "CANCELLED", **of_schedule, sent_at=first + timedelta(seconds=seconds * every_s))
    assert world.rules() == {rule}


@pytest.mark.breaks("L2")
def test_a_row_that_was_not_drained(world: World) -> None:
    world.task(9, "PENDING")
    assert world.rules() == {"D1", "K1", "L2"}


def test_more_starts_than_the_rate(world: World) -> None:
    limit, seconds = settings.RATE
    for n in range(limit + 1):
        world.ran(100 + n, n * seconds / (limit + 2), None, group="rated:")
    assert world.rules() == {"R1"}


def test_a_start_in_a_paused_queue(world: World) -> None:
    paused, resumed = world.db.execute(f"SELECT {ago(seconds=10)}::text, {NOW}::text")[0]
    world.struck.append(
        Struck("pause_queue", "server", 0.0, detail={"queue": "main", "paused": paused, "resumed": resumed})
    )
    assert world.rules() == {"P1"}
    # started before the clock was set back, and before the pause
    step = Struck("clock", "server", time.time() - 4, time.time() - 3)
    assert unexplained(world.db, world.judge(), [*world.struck, step]) == []
    # claimed before the pause, and started behind another task
    times = ("sent_at", "created_at", "enqueued_at", "claimed_at")
    before = world.db.execute(f"SELECT {', '.join(times)}, id FROM horsies_tasks")
    changes = ", ".join(f"{name} = %s::timestamptz" for name in times)
    early = world.db.value("SELECT (%s::timestamptz - interval '1 ms')::text", paused)
    world.db.execute(f"UPDATE horsies_tasks SET {changes}", *[early] * len(times))
    assert world.rules() == set()
    for row in before:
        world.db.execute(f"UPDATE horsies_tasks SET {changes} WHERE id = %s", *row)
    # the resume of an earlier pause has ended this one too
    earlier = world.db.value("SELECT (%s::timestamptz + interval '1 ms')::text", paused)
    first = {"queue": "main", "paused": paused, "resumed": earlier}
    world.struck.append(Struck("pause_queue", "server", 0.0, detail=first))
    assert world.rules() == set()


def test_tasks_of_a_group_side_by_side(world: World) -> None:
    for k in (20, 21):
        world.task(k, kind="in_group", queue_name="grouped", group_key="g1")
        world.ran(k, 0.0, 0.1)
    assert world.rules() == {"A8"}


def test_an_end_without_its_transaction(world: World) -> None:
    world.task(9, kind="completes")
    world.ran(9, 0.0, 0.1)
    assert world.rules() == {"C1"}


@pytest.mark.breaks("T5")
def test_times_out_of_order_near_a_step_of_the_clock(world: World) -> None:
    world.db.execute(
        "UPDATE horsies_tasks SET updated_at = created_at - interval '1 second' WHERE task_name = 'steady'"
    )
    found = world.judge()
    assert {finding.rule for finding in found} == {"T5"}
    step = Struck("clock", "server", time.time() - 1, time.time())
    assert unexplained(world.db, found, [step]) == []
    assert unexplained(world.db, found, [replace(step, began=START, ended=START + 4)]) == found
    assert unexplained(world.db, found, []) == found


class TestLogs:
    def test_good_ones(self) -> None:
        assert logs.of_processes({"worker-0": "INFO all is well"}) == []
        assert logs.of_server("LOG: ready", []) == []

    def test_a_traceback_a_secret_and_a_deadlock(self) -> None:
        text = 'ERROR\nTraceback (most recent call last):\n  File "x", line 1\nValueError: no\nmore'
        assert [finding.rule for finding in logs.of_processes({"worker-0": text})] == ["X4"]
        assert [finding.rule for finding in logs.of_processes({"worker-0": settings.SECRET})] == ["X5"]
        assert [finding.rule for finding in logs.of_server("ERROR:  deadlock detected", [])] == ["X2"]


class TestRecovery:
    def test_a_recovery_that_takes_too_long(self) -> None:
        fault = Struck("kill_worker", "worker-0", START, START, worker_id="w")
        tasks = [recovery.Task(START + 1, START + 1.1)]
        good = recovery.longest([fault], tasks, {"w": [START + 5]})
        assert (good["late"], good["takeover"]) == ([], {"kill_worker": pytest.approx(5)})
        assert recovery.longest([fault], tasks, {"w": [START + settings.BOUND_S + 1]})["late"]
        assert recovery.longest([fault], [recovery.Task(START + 1, START + settings.BOUND_S + 1)], {})["late"]

    def test_an_outage_meanwhile_is_not_counted(self) -> None:
        fault = Struck("kill_worker", "worker-0", START, START, worker_id="w")
        outage = Struck("server_crash", "server", START + 2, START + 6)
        tasks = [recovery.Task(START + 7, START + 7.1)]
        assert not recovery.longest([fault, outage], tasks, {"w": [START + settings.BOUND_S + 4]})["late"]

    def test_a_fleet_that_stays_slow(self) -> None:
        fault = Struck("lock", "server", START + 10, START + 12, solo=True)
        steady = [recovery.Task(START + n / 10, START + n / 10 + 0.1) for n in range(300)]
        verdict = Verdict(make_plan(1, 10, ()))
        verdict.baseline = recovery.rate_in(steady, START, START + 9)
        verdict.rates = recovery.rates_after(steady, [fault])
        assert (verdict.slow, verdict.exit_code(with_rates=True)) == ([], 0)
        slow = [task._replace(ended=task.sent + (0.1 if n % 10 else 50)) for n, task in enumerate(steady)]
        verdict.rates = recovery.rates_after(slow, [fault])
        assert (verdict.slow, verdict.exit_code(with_rates=True)) == (["lock"], 2)


class TestPlan:
    def test_the_same_seed_makes_the_same_plan(self) -> None:
        assert make_plan(5, 10, EVERYTHING) == make_plan(5, 10, EVERYTHING)
        assert make_plan(5, 10, EVERYTHING) != make_plan(6, 10, EVERYTHING)

    def test_ten_minutes_have_about_seventy_faults_of_every_kind(self) -> None:
        plan = make_plan(5, 10, EVERYTHING)
        assert 60 <= len(plan.faults) <= 90
        kinds = [fault.kind for fault in plan.faults]
        assert all(kinds.count(kind) >= 2 for kind in WEIGHTS)
        assert {fault.kind for fault in plan.faults if fault.solo} == set(WEIGHTS)

    def test_what_the_machine_cannot_do_is_said(self) -> None:
        plan = make_plan(5, 10, ())
        assert set(plan.skipped) == {"blackhole", "disk_full", "clock", "deploy"}
        assert not {fault.kind for fault in plan.faults} & set(plan.skipped)
        assert any("skipped: clock" in line for line in plan.lines())

    def test_sends_follow_from_the_seed(self) -> None:
        def first(seed: int) -> list[Call]:
            chance = random.Random(seed)
            return [draw(chance, k) for k in range(50)]

        assert first(1) == first(1)
        assert first(1) != first(2)


def test_the_proxy_holds_only_the_connection_that_listens(empty_db: Database) -> None:
    with (
        ChaosProxy(empty_db.url) as proxy,
        psycopg.connect(proxy.url) as plain,
        psycopg.connect(proxy.url) as listening,
    ):
        plain.autocommit = listening.autocommit = True
        listening.execute("LISTEN news")
        proxy.hold("^LISTEN")
        assert plain.execute("NOTIFY news").statusmessage == "NOTIFY"
        assert list(listening.notifies(timeout=0.3)) == []
        proxy.hold(None)
        assert [note.channel for note in listening.notifies(timeout=20, stop_after=1)] == ["news"]
