"""`max_crashes` in the database: what a crash does to the row, who counts it, and what operators do afterwards."""

from datetime import timedelta
from typing import Any

import pytest

from horsies import ConfigurationError, RetryPolicy, RetryResult, TaskFilter
from horsies.codec import encode_error
from horsies.events import Event, TaskQuarantined
from horsies.options import TaskOptions
from horsies.result import TaskError
from horsies.snoozing import Snooze
from horsies_worker.child.outcome import Outcome, OutcomeKind
from horsies_worker.database.queries import Queries
from horsies_worker.database.transition import Transition
from horsies_worker.events.bus import EventBus
from horsies_worker.finish.decide import decide
from horsies_worker.identity import Identity
from horsies_worker.liveness.recovery import Recovery
from tests.support import factories
from tests.support.apps import add_task, async_app_on, make_app
from tests.support.factories import ago, ahead
from tests.support.hands import Hands, attempts, running
from tests.support.operator import Operator
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

POLICY = RetryPolicy.fixed(30, 1, auto_retry_for=["DOWN"], max_crashes=3)
OPTIONS = TaskOptions(retry_policy=POLICY)
QUARANTINED = {"error_code": "CRASH_LIMIT", "crash_count": 3}


def crashed(
    row: dict[str, Any],
    kind: OutcomeKind = OutcomeKind.CRASHED,
    code: str = "WORKER_CRASHED",
    policy: RetryPolicy = POLICY,
    **fields: Any,
) -> Transition:
    text = encode_error(TaskError(code, "killed by signal 9"))
    outcome = Outcome(kind, text, code, "killed by signal 9", "killed by signal 9", **fields)
    return decide(
        task_id=row["id"], generation=row["claim_generation"], attempt=row["retry_count"] + 1,
        options=TaskOptions(retry_policy=policy), budget=row["max_retries"], outcome=outcome,
        started=1_704_067_200.0, finished=1_704_067_201.0, random=lambda: 0.5,
    )  # fmt: skip


def counted(stored: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(stored[name] for name in ("status", "retry_count", "max_retries", "crash_count", "error_code"))


# -- the statement ---------------------------------------------------------------------------------


async def test_crashes_are_retried_until_the_last(db: Database, hands: Hands) -> None:
    row = running(db, max_retries=1)
    assert await hands.finalize([crashed(row)]) == {row["id"]: "PENDING"}
    stored = factories.read(db, row["id"])
    assert counted(stored) == ("PENDING", 1, 2, 1, None)
    assert stored["enqueued_at"] - stored["updated_at"] == timedelta(seconds=30)
    (attempt,) = attempts(db, row["id"])
    assert (attempt["outcome"], attempt["error_code"], attempt["will_retry"]) == (
        "WORKER_FAILURE", "WORKER_CRASHED", True,
    )  # fmt: skip

    row = running(db, max_retries=2, retry_count=1, crash_count=1)
    assert await hands.finalize([crashed(row, apart_ms=5_000)]) == {row["id"]: "PENDING"}
    stored = factories.read(db, row["id"])
    assert counted(stored) == ("PENDING", 2, 3, 2, None)
    assert stored["enqueued_at"] - stored["updated_at"] == timedelta(seconds=35), "apart from others"

    row = running(db, max_retries=3, retry_count=2, crash_count=2)
    written = await hands.queries.finalize_own(hands.connection, [crashed(row)])
    assert (written, written.quarantined) == ({row["id"]: "FAILED"}, [row["id"]])
    stored = factories.read(db, row["id"])
    assert counted(stored) == ("FAILED", 2, 3, 3, "CRASH_LIMIT")
    assert '"crashes":3' in stored["result"]
    assert "killed by signal 9" in stored["result"]
    assert stored["failed_reason"] == "killed by signal 9"
    assert attempts(db, row["id"])[-1]["error_code"] == "WORKER_CRASHED", "the attempt keeps how it ended"


async def test_errors_keep_their_own_budget(db: Database, hands: Hands) -> None:
    row = running(db, max_retries=2, retry_count=1, crash_count=1)  # one crash so far
    end = crashed(row, OutcomeKind.ERR, "DOWN")
    assert await hands.finalize([end]) == {row["id"]: "PENDING"}
    assert counted(factories.read(db, row["id"])) == ("PENDING", 2, 2, 1, None)
    row = running(db, max_retries=2, retry_count=2, crash_count=1)
    assert await hands.finalize([crashed(row, OutcomeKind.ERR, "DOWN")]) == {row["id"]: "FAILED"}
    assert counted(factories.read(db, row["id"])) == ("FAILED", 2, 2, 1, "DOWN")


@pytest.mark.parametrize("fields", [{"kind": OutcomeKind.INTERRUPTED}, {"is_counted": False}], ids=["shutdown", "kill"])
async def test_what_does_not_count(db: Database, hands: Hands, fields: dict[str, Any]) -> None:
    row = running(db, max_retries=2, retry_count=2, crash_count=2)
    assert await hands.finalize([crashed(row, **fields)]) == {row["id"]: "PENDING"}
    assert counted(factories.read(db, row["id"])) == ("PENDING", 3, 3, 2, None)


async def test_the_row_may_change_the_decision(db: Database, hands: Hands) -> None:
    cancelled = running(db, cancel_requested_at=ago(seconds=1), crash_count=2, max_retries=1)
    late = running(db, good_until=ahead(seconds=10), max_retries=1)
    once = running(db)
    ends = [crashed(row) for row in (cancelled, late)]
    ends.append(crashed(once, policy=RetryPolicy.crashes(1)))
    await hands.finalize(ends)
    assert counted(factories.read(db, cancelled["id"]))[0] == "CANCELLED"
    assert counted(factories.read(db, late["id"])) == ("FAILED", 0, 1, 1, "WORKER_CRASHED")
    assert counted(factories.read(db, once["id"])) == ("FAILED", 0, 0, 1, "CRASH_LIMIT")


@pytest.mark.breaks("A1", "A2")
async def test_the_number_of_attempts_has_an_end(db: Database, hands: Hands) -> None:
    row = running(db)
    db.execute("UPDATE horsies_tasks SET retry_count = 10000, max_retries = 10000 WHERE id = %s", row["id"])
    end = crashed({**row, "retry_count": 10_000, "max_retries": 10_000}, is_counted=False)
    assert await hands.finalize([end]) == {row["id"]: "FAILED"}
    assert counted(factories.read(db, row["id"])) == ("FAILED", 10_000, 10_000, 0, "WORKER_CRASHED")


# -- the tasks of a dead worker ----------------------------------------------------------------------


async def test_a_dead_workers_tasks_count_and_run_apart(db: Database, hands: Hands) -> None:
    options = {"task_options": OPTIONS.to_json(), "claimed_at": ago(seconds=60), "enqueued_at": ago(seconds=61)}
    first = factories.task(db, "RUNNING", started_at=ago(seconds=20), **options)
    second = factories.task(db, "RUNNING", started_at=ago(seconds=20), crash_count=1, **options)
    longest = factories.task(db, "RUNNING", started_at=ago(seconds=50), crash_count=1, **options)
    last = factories.task(db, "RUNNING", started_at=ago(seconds=20), crash_count=2, **options)
    staged = factories.task(
        db, "RUNNING", started_at=ago(seconds=20), finalizing_at=ago(seconds=1), finalizing_by_worker_id="worker-1",
        result=encode_error(Snooze(60_000)), **options,
    )  # fmt: skip
    heard: list[Event] = []
    bus = EventBus()
    bus.subscribe(TaskQuarantined, heard.append)
    app = make_app(db)
    add_task(app)
    recovery = Recovery(Queries(None, Identity("reaper-1", "host-9", 1)), app.registry, bus=bus)
    async with hands.connection.transaction():
        rows = await hands.connection.fetch(
            hands.queries.sql("stale_running"), timedelta(seconds=1), timedelta(seconds=0.1), 100
        )
        ended = await recovery.end(hands.connection, rows, "its worker died")
    assert len(ended) == 5
    assert not heard, "not before the commit"
    recovery.tell("ended", ended)
    assert [counted(factories.read(db, task))[0] for task in (first, second, longest, last, staged)] == [
        "PENDING", "PENDING", "PENDING", "FAILED", "PENDING",
    ]  # fmt: skip
    assert factories.read(db, staged)["snoozes"] == 1

    def delay(task: str) -> float:
        stored = factories.read(db, task)
        return (stored["enqueued_at"] - stored["updated_at"]).total_seconds()

    assert max(delay(first), delay(second)) < delay(longest) <= 30 + 60, "the longest after the others"
    assert abs(delay(first) - delay(second)) >= 10, "never together"
    (event,) = heard
    assert isinstance(event, TaskQuarantined)
    assert (event.task_id, event.crashes) == (last, 3)
    assert "its worker died (worker worker-1" in event.reason


# -- operators -------------------------------------------------------------------------------------


@pytest.mark.breaks("W4")
async def test_the_brokers_verbs(db: Database) -> None:
    held = [factories.task(db, "FAILED", task_name=name, **QUARANTINED) for name in ("bad", "bad", "worse")]
    node = factories.task(db, "FAILED", is_workflow_task=True, **QUARANTINED)
    other = factories.task(db, "FAILED", error_code="DOWN")
    async with async_app_on(db) as app:
        quarantine = app.get_broker().quarantine
        assert {task.id for task in (await quarantine.list()).tasks} == {*held, node}
        assert await quarantine.count(TaskFilter(task_names=["bad"])) == 2
        with pytest.raises(ConfigurationError, match="all FAILED with CRASH_LIMIT"):
            await quarantine.count(TaskFilter(error_codes=["DOWN"]))
        assert await quarantine.release([held[0], node, other, "missing"]) == {
            held[0]: RetryResult.RETRIED, node: RetryResult.IN_WORKFLOW, other: RetryResult.NOT_QUARANTINED,
            "missing": RetryResult.NOT_FOUND,
        }  # fmt: skip
        assert counted(factories.read(db, held[0]))[3:] == (0, None)
        assert await quarantine.release(held[1]) == {held[1]: RetryResult.RETRIED}, "one id, not its characters"
        assert await quarantine.purge(TaskFilter(task_names=["bad", "worse"])) == 1
        assert await quarantine.count() == 1
    assert factories.read(db, other)["status"] == "FAILED"


def test_the_command(db: Database, operator: Operator) -> None:
    assert operator("quarantine", "list").out == "no task is in quarantine\n"
    held = [factories.task(db, "FAILED", task_name=name, **QUARANTINED) for name in ("bad", "worse", "worst")]
    other = factories.task(db, "FAILED", error_code="DOWN")
    assert {line[0] for line in operator("quarantine", "list").lines} == set(held)
    assert [line[0] for line in operator("quarantine", "list", "--task", "bad").lines] == [held[0]]
    assert len(operator.json("quarantine", "list")["tasks"]) == 3

    refused = operator("quarantine", "release")
    assert (refused.code, refused.out) == (2, "")
    assert "--all for every one" in refused.err
    assert operator("quarantine", "release", held[0], "--all").code == 2
    dry = operator("quarantine", "release", held[0], other, "--dry-run")
    assert dry.out.startswith("would release 1 task\n")
    assert f"task {other} would not be released: it is not in quarantine: it is FAILED with DOWN" in dry.err
    ran = operator("quarantine", "release", held[0], other)
    assert (ran.code, ran.out) == (1, "released 1 task\n")
    assert counted(factories.read(db, held[0])) == ("PENDING", 1, 1, 0, None)
    assert operator("quarantine", "purge", other).code == 1
    assert operator("quarantine", "purge", "--task", "worse", "--yes").out == "purged 1 task\n"
    assert operator("quarantine", "release", "--all", "--dry-run").out == f"would release 1 task\n  {held[2]}\n"
    assert operator("quarantine", "release", "--all", "--yes").out == "released 1 task\n"
    assert operator("quarantine", "purge", "--all", "--yes").out == "no task matches\n"
    assert factories.read(db, other)["status"] == "FAILED"


@pytest.mark.breaks("W4")
def test_the_doctor_names_them(db: Database, operator: Operator) -> None:
    for _ in range(2):
        factories.task(db, "FAILED", task_name="resize images", **QUARANTINED)
    factories.task(db, "FAILED", task_name="node", is_workflow_task=True, **QUARANTINED)
    said = operator("doctor").out
    assert "2 tasks named 'resize images' in quarantine" in said
    assert "horsies quarantine release --task 'resize images'" in said
    assert "`horsies workflows retry` with their runs; where a run has completed all the same" in said


def test_show_tells_the_counts(db: Database, operator: Operator) -> None:
    task = factories.task(db, "FAILED", snoozes=4, **QUARANTINED)
    said = operator("tasks", "show", task).out
    told = dict(line.split(maxsplit=1) for line in said.splitlines() if line.startswith(("crashes", "snoozes")))
    assert told == {"crashes": "3", "snoozes": "4"}
