"""`horsies stale`, `horsies workers` and `horsies queues`, as an operator uses them."""

import json
import re
from datetime import timedelta

import pytest

from horsies.operate.broker import PostgresBroker
from horsies.operate.reading import liveness
from tests.support import factories, invariants
from tests.support.apps import make_app
from tests.support.factories import NOW, ago, ahead
from tests.support.operator import Operator, Ran
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

LONG_AGO = ago(minutes=30)
RAN_LONG = {"enqueued_at": LONG_AGO, "claimed_at": LONG_AGO, "started_at": LONG_AGO}
HELD_LONG = {"enqueued_at": LONG_AGO, "claimed_at": LONG_AGO}


def instance(db: Database, worker_id: str, **columns: object) -> None:
    factories.insert(db, "horsies_worker_instances", worker_id=worker_id, **{"period_ms": 5_000, **columns})


# -- stale ---------------------------------------------------------------------------------------


@pytest.mark.breaks("T8")
def test_stale_list_is_by_silence(db: Database, operator: Operator) -> None:
    silent, held = factories.task(db, "RUNNING", **RAN_LONG), factories.task(db, "CLAIMED", **HELD_LONG)
    beating = factories.task(db, "RUNNING", **RAN_LONG)
    factories.heartbeat(db, beating)
    factories.task(db, "RUNNING")
    ran = operator("stale", "list")
    assert ran.code == 0
    assert {line[0] for line in ran.lines} == {silent, held}
    assert "30 m" in ran.out
    assert [task["id"] for task in operator.json("stale", "list", "--older-than", "31m")["tasks"]] == []
    assert operator("stale", "list", "--older-than", "1h") == Ran(0, "no stale tasks\n", "")


@pytest.mark.breaks("T8")
def test_the_threshold_is_what_the_live_workers_are_set_to(db: Database, operator: Operator) -> None:
    task_id = factories.task(db, "RUNNING", **RAN_LONG)
    factories.worker_state(db, recovery_config='{"running_stale_threshold_ms": 3600000}')
    assert operator.json("stale", "list")["tasks"] == []
    assert operator("stale", "fail").code == 1
    db.execute("UPDATE horsies_worker_states SET snapshot_at = now() - interval '1 hour'")  # that worker is gone
    assert [task["id"] for task in operator.json("stale", "list")["tasks"]] == [task_id]


def test_stale_fail(db: Database, operator: Operator) -> None:
    ids = [factories.task(db, "RUNNING", **RAN_LONG) for _ in range(3)]
    held, fresh = factories.task(db, "CLAIMED", **HELD_LONG), factories.task(db, "RUNNING")
    dry = operator("stale", "fail", "--dry-run")
    assert dry.code == 0
    assert dry.out.startswith("would fail 3 tasks\n")
    assert operator("stale", "fail").code == 2  # three, without --yes
    one = operator("stale", "fail", ids[0], held, fresh, "missing")
    assert (one.code, one.out) == (1, "failed 1 task\n")
    assert one.err.count("was not failed: it is not RUNNING, or its worker gave a sign of life within 5 m") == 3
    assert operator("stale", "fail", "--yes") == Ran(0, "failed 2 tasks\n", "")
    for task_id in ids:
        row = factories.read(db, task_id)
        assert (row["status"], row["error_code"]) == ("FAILED", "WORKER_CRASHED")
    assert factories.read(db, fresh)["status"] == "RUNNING"
    assert operator("stale", "fail", "--yes") == Ran(1, "no stale task to fail\n", "")
    factories.heartbeat(db, held, role="claimer")
    assert invariants.check(db) == []


@pytest.mark.breaks("T8")
def test_stale_requeue(db: Database, operator: Operator) -> None:
    held, running = factories.task(db, "CLAIMED", **HELD_LONG), factories.task(db, "RUNNING", **RAN_LONG)
    assert operator.json("stale", "requeue", "--dry-run") == {
        "verb": "requeue", "dry_run": True, "matched": 1, "done": 0, "ids": [held], "not_done": [],
        "interrupted": False,
    }  # fmt: skip
    assert operator("stale", "requeue") == Ran(0, "requeued 1 task\n", "")
    assert factories.read(db, held)["status"] == "PENDING"
    assert factories.read(db, running)["status"] == "RUNNING"


@pytest.mark.breaks("T8")
def test_what_a_dead_worker_holds_is_stale_at_once(db: Database, operator: Operator) -> None:
    """The remedy that the doctor names for the tasks of a dead only worker works when the doctor names it."""
    lately = {"enqueued_at": ago(seconds=60), "claimed_at": ago(seconds=60), "claimed_by_worker_id": "gone"}
    running = factories.task(db, "RUNNING", **lately, started_at=ago(seconds=60))
    claimed = factories.task(db, "CLAIMED", **lately)
    factories.worker_state(db, "gone", snapshot_at=ago(seconds=59))
    other = factories.task(db, "RUNNING", **{**lately, "claimed_by_worker_id": "alive"}, started_at=ago(seconds=60))
    factories.worker_state(db, "alive")
    doctor = operator("doctor")
    assert "`horsies stale list`" in doctor.out
    assert {task["id"] for task in operator.json("stale", "list")["tasks"]} == {running, claimed}
    assert operator("stale", "requeue") == Ran(0, "requeued 1 task\n", "")
    assert operator("stale", "fail") == Ran(0, "failed 1 task\n", "")
    assert factories.read(db, other)["status"] == "RUNNING"
    assert operator.json("stale", "list")["tasks"] == []


@pytest.mark.breaks("T8")
def test_every_worker_has_its_own_thresholds(db: Database, operator: Operator) -> None:
    held = {"started_at": ago(seconds=60), "claimed_at": ago(seconds=60), "enqueued_at": ago(seconds=61)}
    for worker, seconds in (("quick", 10), ("slow", 1_000)):
        config = {f"{kind}_stale_threshold_ms": seconds * 1000 for kind in ("claimed", "running", "finalizing")}
        factories.worker_state(db, worker, recovery_config=json.dumps(config))
    stale = factories.task(db, "RUNNING", claimed_by_worker_id="quick", **held)
    slow = factories.task(db, "RUNNING", claimed_by_worker_id="slow", **held)
    unknown = factories.task(db, "RUNNING", claimed_by_worker_id="unheard of", **held)
    assert [task["id"] for task in operator.json("stale", "list")["tasks"]] == [stale]
    db.execute("DELETE FROM horsies_worker_states WHERE worker_id = 'slow'")
    assert {task["id"] for task in operator.json("stale", "list")["tasks"]} == {stale, slow, unknown}, (
        "by the live worker's"
    )


# -- workers -------------------------------------------------------------------------------------


def test_workers_by_the_age_of_their_snapshot(db: Database, operator: Operator) -> None:
    for name, seconds in (("alive", 1), ("late", 20), ("dead", 100), ("gone", 3_600), ("gone-holding", 7_200)):
        factories.worker_state(db, name, snapshot_at=ago(seconds=seconds))
    factories.worker_state(db, "alive", snapshot_at=ago(days=2), tasks_running=99)  # older ones do not count
    factories.worker_state(db, "judged", snapshot_at=ago(seconds=1))
    instance(db, "judged", judged_dead_at=NOW, judged_by="alive")
    factories.worker_state(db, "left", snapshot_at=ago(seconds=1))
    instance(db, "left", stopped_at=NOW)
    factories.worker_state(db, "slow", snapshot_at=ago(seconds=100))
    instance(db, "slow", period_ms=60_000)
    factories.task(db, "RUNNING", claimed_by_worker_id="gone-holding")
    found = {one["worker_id"]: one for one in operator.json("workers")["workers"]}
    assert {name: one["liveness"] for name, one in found.items()} == {
        "alive": "alive", "late": "late", "dead": "dead", "judged": "dead", "left": "stopped", "slow": "alive",
        "gone-holding": "dead",
    }  # fmt: skip
    assert found["gone-holding"]["holds_running"] == 1
    assert found["alive"]["tasks_running"] == 0
    ran = operator("workers")
    assert ran.code == 0
    assert "gone-holding is dead and still holds 1 task: " in ran.out
    assert {line[0] for line in operator("workers", "--all").lines} >= {"gone", "alive"}


def test_a_workers_line(db: Database, operator: Operator) -> None:
    factories.worker_state(
        db, "w", queues=["mail", "default"], memory_usage_mb=100.4, children_memory_mb=1000.0, cpu_percent=12.6,
        processes=8, worker_started_at=ago(hours=2, minutes=30, seconds=30),
    )  # fmt: skip
    factories.task(db, "CLAIMED", claimed_by_worker_id="w")
    ran = operator("workers")
    assert re.search(
        r"^w +alive +[\d.]+ m?s ago +host-1 +4711 +2 h 30 m +8 +0 +1 +1,100 MB +13 % +mail, default$", ran.out, re.M
    )


def test_no_workers(operator: Operator) -> None:
    assert operator("workers") == Ran(0, "no worker was seen lately\n", "")
    assert operator.json("workers", "--all") == {"workers": []}


# -- queues --------------------------------------------------------------------------------------


def test_queues(db: Database, operator: Operator) -> None:
    for priority in (1, 1, 100):
        factories.task(db, queue_name="mail", priority=priority, enqueued_at=ago(minutes=priority))
    for _ in range(2):
        factories.task(db, queue_name="mail", enqueued_at=ahead(hours=1))
    factories.task(db, "CLAIMED", queue_name="mail")
    factories.task(db, "RUNNING", queue_name="other")
    factories.task(db, "COMPLETED", queue_name="ended")
    factories.worker_state(db, "a", queues=["mail", "idle"])
    factories.worker_state(db, "b", queues=["mail"])
    factories.worker_state(db, "c", queues=["other"], snapshot_at=ago(hours=1))
    factories.insert(db, "horsies_queue_state", queue_name="marked", paused_at=ago(minutes=5))
    found = {one["name"]: one for one in operator.json("queues")["queues"]}
    assert list(found) == ["idle", "mail", "marked", "other"]
    mail = found["mail"]
    assert (mail["ready"], mail["delayed"], mail["claimed"], mail["running"]) == (3, 2, 1, 0)
    assert mail["served_by"] == 2
    assert mail["is_bounded"] is False
    assert 6_000 <= mail["oldest_ready"] < 6_100
    assert (found["other"]["running"], found["other"]["served_by"]) == (1, 0)
    assert found["marked"]["paused_for"] >= 300
    ran = operator("queues")
    assert ran.code == 0
    assert re.search(r"^mail +3 +2 +1 +0 +1 h 40 m +no +2$", ran.out, re.MULTILINE)
    assert re.search(r"^marked +0 +0 +0 +0 +- +5 m.* +none$", ran.out, re.MULTILINE)
    assert operator("queues", "list").out.splitlines()[0].split() == ran.out.splitlines()[0].split()


def test_counting_stops_at_a_bound(db: Database, operator: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(5):
        factories.task(db)

    async def bounded() -> None:
        async with make_app(db) as app:
            (queue,) = await app.get_broker().get_queues(bound=3)
            assert (queue.ready, queue.is_bounded) == (3, True)
            assert await app.get_broker().count_tasks(bound=2) == 2

    import asyncio

    asyncio.run(bounded())
    monkeypatch.setattr(PostgresBroker.get_queues, "__defaults__", (3,))
    assert re.search(r"^default +≥ 3 +0 ", operator("queues").out, re.MULTILINE)


PAUSED = "SELECT queue_name FROM horsies_queue_state WHERE paused_at IS NOT NULL ORDER BY 1"


def test_pause_and_resume(db: Database, operator: Operator) -> None:
    factories.task(db, queue_name="mail")
    ran = operator("queues", "pause", "mail", "default")
    assert (ran.code, ran.err, ran.out) == (0, "", "paused mail\npaused default\n")
    assert db.execute(PAUSED) == [("default",), ("mail",)]
    assert operator.json("queues", "resume", "mail") == {"verb": "resume", "done": ["mail"], "problems": []}
    assert db.execute(PAUSED) == [("default",)]
    db.execute("DELETE FROM horsies_tasks")
    assert operator("queues", "pause", "mail").code == 0, "its row is known"


def test_a_queue_that_is_not_known_is_not_paused(db: Database, operator: Operator) -> None:
    factories.task(db, queue_name="mail")
    ran = operator("queues", "pause", "typo", "mail")
    assert (ran.code, ran.out) == (1, "paused mail\n")
    assert (
        "queue 'typo' is not paused: no task and no worker has it so far (known are default, mail); --force" in ran.err
    )
    ran = operator("queues", "resume", "typo")
    assert (ran.code, ran.out) == (1, "")
    assert "queue 'typo' is not paused: there is nothing to resume" in ran.err
    assert db.execute("SELECT queue_name FROM horsies_queue_state") == [("mail",)]
    assert operator("queues", "pause", "--force", "typo").code == 0
    assert db.execute(PAUSED) == [("mail",), ("typo",)]


def test_a_name_that_no_queue_can_have(db: Database, operator: Operator) -> None:
    ran = operator("queues", "pause", "--force", "no such queue!", "fine")
    assert (ran.code, ran.out) == (1, "paused fine\n")
    assert "'no such queue!' (str) is not a queue name: use 1 to 52 of" in ran.err
    assert "'no such queue!' (str) is not a queue name" in operator("queues", "pause", "no such queue!").err
    assert operator("queues", "pause").code == 2


def test_liveness_needs_no_absolute_times() -> None:
    def state(**row: object) -> str:
        return liveness(
            {"age": timedelta(), "period_ms": None, "stopped_at": None, "judged_dead_at": None, **row}
        ).value

    assert state(age=timedelta(seconds=15)) == "alive"
    assert state(age=timedelta(seconds=16)) == "late"
    assert state(age=timedelta(seconds=45)) == "late"
    assert state(age=timedelta(seconds=46)) == "dead"
    assert state(age=timedelta(seconds=46), period_ms=20_000) == "alive"
