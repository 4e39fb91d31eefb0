"""The judge, judged: a good data set passes, and every rule has been seen to fire. A checker that nobody has seen
fail proves nothing."""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psycopg
import pytest

from tests import conftest
from tests.support import factories, invariants, postgres
from tests.support.factories import NOW, ago, ahead
from tests.support.postgres import Database

pytestmark = pytest.mark.breaks("A6")  # the hook of tests/conftest.py does not know which tasks here are async
GIVEN: dict[str, Any] = {"cap": 3, "qcap": {"narrow": 1}, "async_tasks": ["poll"]}

RUN_1, RUN_2 = "00000000-0000-0000-0000-000000000001", "00000000-0000-0000-0000-000000000002"


@pytest.fixture(scope="module")
def good() -> Iterator[Database]:
    """A database with one of everything that may be there."""
    with postgres.database() as db:
        db.execute(invariants.LEDGER_TABLES)
        _tasks(db)
        _attempts(db)
        _workflows(db)
        _ledger(db)
        factories.insert(
            db, "horsies_schedule_state", schedule_name="nightly", last_run_at=ago(hours=1),
            next_run_at=ahead(hours=23), last_task_id="completed", run_count=3,
        )  # fmt: skip
        yield db


def _tasks(db: Database) -> None:
    for status in ("PENDING", "CLAIMED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED"):
        factories.task(db, status, id=status.lower(), created_at=ago(minutes=1))
    factories.task(db, id="future", enqueued_at=ahead(days=1), good_until=ahead(days=2))
    # not yet: these rows are judged for as long as this module takes
    factories.task(db, id="overdue", good_until=ahead(hours=1))
    factories.task(db, "RUNNING", id="staged", finalizing_at=NOW, finalizing_by_worker_id="worker-1", result='{"ok":1}')
    factories.task(
        db, "RUNNING", id="long", enqueued_at=ago(hours=1), claimed_at=ago(hours=1), started_at=ago(hours=1),
        created_at=ago(hours=1),
    )  # fmt: skip
    factories.heartbeat(db, "long", sent_at=ago(seconds=20))
    factories.task(db, id="again", retry_count=2, enqueued_at=ahead(minutes=1), next_retry_at=ahead(minutes=1))
    factories.task(db, "FAILED", id="exhausted", retry_count=1, next_retry_at=ago(seconds=30))
    factories.task(
        db, "CANCELLED", id="stopped", enqueued_at=ago(seconds=3), claimed_at=ago(seconds=2),
        claimed_by_worker_id="worker-1", started_at=ago(seconds=1),
    )  # fmt: skip
    # an operator's retry of a task that had failed for good: its attempt was not one that would be retried
    factories.task(db, id="by hand", retry_count=1, manual_retries=1)
    db.execute("UPDATE horsies_task_attempts SET will_retry = false WHERE task_id = 'by hand'")


def _attempts(db: Database) -> None:
    """Attempts side by side in one child: of async tasks, and one that was cut off by a crash."""
    for name in ("poll 1", "poll 2", "narrow", "crashed"):
        status = "FAILED" if name == "crashed" else "COMPLETED"
        factories.task(db, status, id=name, task_name=name.partition(" ")[0], queue_name=name.partition(" ")[0])
    db.execute("UPDATE horsies_task_attempts SET worker_hostname = 'h', worker_pid = 1 WHERE task_id ~ 'poll|narrow'")
    _shift(db, hours=1, tasks=["narrow"])
    for hours, name in enumerate(("completed", "failed", "exhausted", "stopped"), start=2):
        _shift(db, hours=hours, tasks=[name])
    db.execute(
        "UPDATE horsies_task_attempts SET outcome = 'WORKER_FAILURE', error_code = 'WORKER_CRASHED', worker_pid = 1,"
        " worker_hostname = 'h', started_at = now() - interval '9 hours' WHERE task_id = 'crashed'"
    )


def _shift(db: Database, *, hours: int, tasks: list[str]) -> None:
    """Attempts that took place earlier, so that they do not stand beside others."""
    db.execute(
        "UPDATE horsies_task_attempts SET started_at = started_at - %s, finished_at = finished_at - %s"
        " WHERE task_id = ANY (%s)",
        *[timedelta(hours=hours)] * 2,
        tasks,
    )


def _workflows(db: Database) -> None:
    def workflow(id: str, status: str = "RUNNING", **columns: Any) -> None:
        done = {"completed_at": NOW} if status in ("COMPLETED", "FAILED", "CANCELLED") else {}
        factories.insert(db, "horsies_workflows", **{"id": id, "name": "w", "status": status, **done, **columns})

    def node(workflow_id: str, index: int, status: str, task_id: str | None = None, **columns: Any) -> None:
        started = ago(seconds=9 - 2 * index) if status in ("RUNNING", "COMPLETED", "FAILED") else None
        ended = ago(seconds=8 - 2 * index) if status in ("COMPLETED", "FAILED", "SKIPPED") else None
        factories.insert(
            db, "horsies_workflow_tasks",
            **{"id": f"{workflow_id}/{index}", "workflow_id": workflow_id, "task_index": index,
               "node_id": f"n{index}", "task_name": "add", "status": status, "task_id": task_id,
               "started_at": started, "completed_at": ended, **columns},
        )  # fmt: skip

    workflow("live")
    factories.task(db, "COMPLETED", id="n-done", is_workflow_task=True)
    factories.task(db, "FAILED", id="n-failed", is_workflow_task=True)
    factories.task(db, "RUNNING", id="n-running", is_workflow_task=True)
    _shift(db, hours=10, tasks=["n-done", "n-failed"])
    node("live", 0, "COMPLETED", "n-done")
    node("live", 1, "FAILED", "n-failed", dependencies=[0])
    node("live", 2, "RUNNING", "n-running", dependencies=[0, 1], join_type="any")
    node("live", 3, "ENQUEUED", None, kind="workflow", sub_workflow_id="child", dependencies=[0])
    node("live", 4, "PENDING", dependencies=[2, 3])
    node("live", 5, "SKIPPED", dependencies=[1])
    workflow("child", parent_workflow_id="live", parent_task_index=3, root_workflow_id="live", depth=1)
    node("child", 0, "RUNNING", kind="workflow", sub_workflow_id="elsewhere")
    workflow("waits", wake_at=ahead(minutes=1), deadline=ahead(hours=1))
    node("waits", 0, "COMPLETED", kind="signal", signal_name="go", result='{"ok":1}')
    node("waits", 1, "COMPLETED", kind="sleep", ttl=timedelta(seconds=1), result='{"ok":null}')
    node("waits", 2, "WAITING", kind="sleep", ttl=timedelta(hours=1), wake_at=ahead(minutes=1), started_at=NOW)
    node("waits", 3, "SKIPPED", kind="sleep", skip_reason="not_taken", when_index=4, when_value=True)
    node("waits", 4, "COMPLETED", kind="signal", signal_name="ok", result='{"ok":false}')
    node("waits", 5, "PENDING", when_index=2, when_value=True)
    for at, (name, value) in enumerate((("go", "1"), ("ok", "false"))):
        factories.insert(
            db, "horsies_workflow_signals", id=name, workflow_id="waits", name=name, value=value,
            created_at=ago(minutes=1), consumed_by=f"waits/{4 * at}", consumed_at=NOW,
        )  # fmt: skip
    factories.insert(db, "horsies_workflow_signals", id="kept", workflow_id="waits", name="go", value="2")
    workflow("undone", "FAILED")
    undo = {"compensate": "{}", "result": '{"ok":1}', "kind": "sleep", "ttl": timedelta(0)}
    for index in range(2):
        node("undone", index, "COMPLETED", **undo, ended_seq=index + 1)
        node("undone", 2 + index, "COMPLETED", compensates=f"undone/{1 - index}", kind="sleep", ttl=timedelta(0))
    workflow("finished", "COMPLETED")
    factories.task(db, "COMPLETED", id="f-done", is_workflow_task=True)
    _shift(db, hours=11, tasks=["f-done"])
    node("finished", 0, "COMPLETED", "f-done")
    node("finished", 1, "SKIPPED", dependencies=[0])


def _ledger(db: Database) -> None:
    for k, id in enumerate(("completed", "exhausted", "cancelled", "expired"), start=1):
        factories.insert(db, "chaos_sent", k=k, task_id=id, kind="sleep", acked=True)
    factories.insert(db, "chaos_sent", k=9, task_id="never arrived", kind="sleep", acked=False)
    for k, run, phase, at in (
        (1, RUN_1, "start", ago(seconds=2)), (1, RUN_1, "end", ago(seconds=1)),
        (2, RUN_1, "start", ago(seconds=9)), (2, RUN_1, "end", ago(seconds=8)), (2, RUN_2, "start", ago(seconds=7)),
    ):  # fmt: skip
        factories.insert(db, "chaos_ledger", k=k, run=run, phase=phase, at=at)


def test_a_good_data_set_breaks_no_rule(good: Database) -> None:
    assert invariants.check(good, **GIVEN) == []
    assert invariants.check(good, **GIVEN, settled=False) == []


def test_an_encoded_bool_that_decides_is_stored_decoded(good: Database) -> None:
    with psycopg.connect(good.url) as connection:
        connection.execute(ENCODED.format("signal:go"))  # type: ignore[call-overload]
        connection.execute(NODE.format("decides = '{5}', result = '{\"ok\":true}'", "waits/0"))  # type: ignore[call-overload]
        found = invariants.check(connection, **GIVEN)
        connection.rollback()
    assert [one for one in found if one.rule == "G1"] == []


def test_an_empty_database_breaks_no_rule(db: Database) -> None:
    assert invariants.check(db) == []


TASK = "UPDATE horsies_tasks SET {} WHERE id = '{}'"
ATTEMPT = "UPDATE horsies_task_attempts SET {} WHERE task_id = '{}'"
NODE = "UPDATE horsies_workflow_tasks SET {} WHERE id = '{}'"
WORKFLOW = "UPDATE horsies_workflows SET {} WHERE id = '{}'"
ENCODED = (
    'UPDATE horsies_workflow_signals SET value = \'{{"horsies.encoded":"c","of":"{}","data":"eA=="}}\''
    " WHERE id = 'go'"
)
OLD = "updated_at = now() - interval '1 hour'"

# (rule, who is named, how it is broken); every constraint that would refuse it is dropped first
SEEDS = [
    ("T1", "pending", TASK.format("status = 'LOST'", "pending")),
    ("T2", "completed", TASK.format("failed_at = now()", "completed")),
    ("T2", "failed", TASK.format("completed_at = now()", "failed")),
    ("T2", "expired", TASK.format("failed_at = NULL", "expired")),
    ("T2", "cancelled", TASK.format("completed_at = now()", "cancelled")),
    ("T2", "running", TASK.format("failed_at = now()", "running")),
    ("T3", "completed", TASK.format("result = NULL", "completed")),
    ("T3", "failed", TASK.format("error_code = NULL", "failed")),
    ("T3", "pending", TASK.format("error_code = 'X'", "pending")),
    ("T3", "expired", TASK.format("result = NULL", "expired")),
    ("T3", "running", TASK.format("result = '{{}}'", "running")),
    ("T4", "claimed", TASK.format("claimed = false", "claimed")),
    ("T4", "pending", TASK.format("claimed_by_worker_id = 'worker-1'", "pending")),
    ("T4", "claimed", TASK.format("claim_expires_at = NULL", "claimed")),
    ("T4", "running", TASK.format("started_at = NULL", "running")),
    ("T5", "running", TASK.format("claimed_at = enqueued_at - interval '1 s'", "running")),
    ("T5", "running", TASK.format("started_at = claimed_at - interval '1 s'", "running")),
    ("T5", "completed", TASK.format("completed_at = started_at - interval '1 s'", "completed")),
    ("T5", "staged", TASK.format("finalizing_at = started_at - interval '1 s'", "staged")),
    ("T5", "pending", TASK.format("updated_at = created_at - interval '1 s'", "pending")),
    ("T6", "running", TASK.format("good_until = started_at", "running")),
    ("T6", "exhausted", TASK.format("next_retry_at = started_at + interval '1 s'", "exhausted")),
    ("T6", "exhausted", TASK.format("max_retries = 0", "exhausted")),
    ("T7", "overdue", TASK.format("good_until = now() - interval '41 s'", "overdue")),
    ("T8", "long", "UPDATE horsies_heartbeats SET sent_at = now() - interval '336 s' WHERE task_id = 'long'"),
    ("T8", "long", "UPDATE horsies_heartbeats SET role = 'claimer' WHERE task_id = 'long'"),
    ("T8", "claimed", TASK.format("claim_expires_at = now() - interval '156 s'", "claimed")),
    ("A1", "again", "DELETE FROM horsies_task_attempts WHERE task_id = 'again' AND attempt = 1"),
    ("A2", "completed", "DELETE FROM horsies_task_attempts WHERE task_id = 'completed'"),
    ("A2", "stopped", "DELETE FROM horsies_task_attempts WHERE task_id = 'stopped'"),
    ("A2", "pending", TASK.format("retry_count = 1, max_retries = 1", "pending")),
    ("A3", "again", ATTEMPT.format("will_retry = false", "again")),
    ("A3", "failed", ATTEMPT.format("will_retry = true", "failed")),
    ("A3", "completed", ATTEMPT.format("outcome = 'FAILED', error_code = 'X'", "completed")),
    ("A3", "failed", ATTEMPT.format("outcome = 'COMPLETED', error_code = NULL", "failed")),
    ("A4", "again", ATTEMPT.format("finished_at = now()", "again")),
    ("A4", "failed", ATTEMPT.format("finished_at = started_at - interval '1 s'", "failed")),
    ("A5", "failed", ATTEMPT.format("error_code = NULL", "failed")),
    ("A5", "completed", ATTEMPT.format("error_code = 'X'", "completed")),
    ("A6", "poll 1", "UPDATE horsies_tasks SET task_name = 'add' WHERE id IN ('poll 1', 'poll 2')"),
    ("A7", "narrow", "UPDATE horsies_tasks SET queue_name = 'narrow' WHERE id IN ('poll 1', 'poll 2')"),
    ("A7", "default", ATTEMPT.format("started_at = now() - interval '1 day'", "failed") + ";"
        "UPDATE horsies_task_attempts SET started_at = now() - interval '1 day' WHERE task_id IN "
        "('completed', 'n-done', 'f-done')"),
    ("W1", "finished", NODE.format("status = 'READY'", "finished/1")),
    ("W1", "finished", WORKFLOW.format("completed_at = NULL", "finished")),
    ("W2", "child", WORKFLOW.format(OLD, "child") + ";" + NODE.format("status = 'COMPLETED'", "child/0")),
    ("W3", "live/0", NODE.format("status = 'READY'", "live/0") + ";" + TASK.format(OLD, "n-done")),
    ("W3", "live/2", NODE.format("status = 'SKIPPED'", "live/2")),
    ("W3", "live/2", NODE.format("status = 'COMPLETED', completed_at = now()", "live/2")),
    ("W3", "live/1", NODE.format("task_id = NULL", "live/2") + ";" + NODE.format("task_id = 'n-running'", "live/1")),
    ("W3", "live/0", TASK.format("is_workflow_task = false", "n-done")),
    ("W3", "live/0", TASK.format("withdrawn = true", "n-done")),
    ("W4", "live/2", NODE.format("task_id = 'nobody'", "live/2")),
    ("W4", "live/3", NODE.format("sub_workflow_id = NULL", "live/3")),
    ("W4", "n-done", NODE.format("task_id = NULL", "live/0")),
    ("W5", "live/2", NODE.format("join_type = 'all'", "live/2")),
    ("W5", "live/2", NODE.format("join_type = 'quorum', min_success = 2", "live/2")),
    ("W5", "live/2", NODE.format("dependencies = '{1,4}'", "live/2")),
    ("W5", "live/2", NODE.format("allow_failed_deps = true, dependencies = '{0,4}'", "live/2")),
    ("W5", "live/1", NODE.format("started_at = now() - interval '1 hour'", "live/1")),
    ("W6", "live/4", WORKFLOW.format(OLD, "live") + ";" + NODE.format("dependencies = '{0}'", "live/4")),
    ("W5", "waits/2", NODE.format("dependencies = '{3,5}'", "waits/2")),
    ("W5", "waits/2", NODE.format("when_index = 4, when_value = true", "waits/2")),
    ("W6", "waits/5", WORKFLOW.format(OLD, "waits") + ";" + NODE.format("when_index = 4", "waits/5")),
    ("G1", "go", NODE.format("result = '{{\"ok\":2}}'", "waits/0")),
    ("G1", "go", NODE.format("status = 'FAILED'", "waits/0")),
    ("G1", "ok", NODE.format("signal_name = 'other'", "waits/4")),
    ("G1", "go", ENCODED.format("signal:go") + ";" + NODE.format("result = '{\"ok\":true}'", "waits/0")),
    ("G1", "go", ENCODED.format("signal:ok") + ";"
        + NODE.format("decides = '{5}', result = '{\"ok\":true}'", "waits/0")),
    ("G1", "go", ENCODED.format("signal:go") + ";"
        + NODE.format("decides = '{5}', result = '{\"ok\":[true}'", "waits/0")),
    ("G1", "waits/0", "DELETE FROM horsies_workflow_signals WHERE id = 'go'"),
    ("G2", "waits/1", NODE.format("ttl = interval '1 hour'", "waits/1")),
    ("G2", "waits/1", NODE.format("good_until = now()", "waits/1")),
    ("G3", "undone/3", NODE.format("status = 'FAILED'", "undone/0")),
    ("G3", "undone/3", NODE.format("started_at = now() - interval '1 hour'", "undone/3")),
    ("G3", "undone/2", NODE.format("ended_seq = 9", "undone/0")),
    ("G3", "undone/3", "DROP INDEX uq_horsies_workflow_tasks_compensates;"
        + NODE.format("compensates = 'undone/1'", "undone/3")),
    ("G4", "undone", WORKFLOW.format("wake_at = now()", "undone")),
    ("G4", "undone", WORKFLOW.format("ends_as = 'FAILED'", "undone")),
    ("G4", "undone", NODE.format("status = 'WAITING'", "undone/1")),
    ("G5", "waits", WORKFLOW.format("wake_at = NULL", "waits")),
    ("G5", "waits", WORKFLOW.format("wake_at = now() + interval '2 minutes'", "waits")),
    ("G5", "waits", WORKFLOW.format("deadline = now() + interval '40 s', wake_at = now() + interval '60 s'", "waits")),
    ("W7", "live", NODE.format("dependencies = '{4}'", "live/2") + ";" + NODE.format("dependencies = '{2}'", "live/4")),
    ("W7", "live", NODE.format("dependencies = '{77}'", "live/4")),
    ("W8", "child", WORKFLOW.format("depth = 5", "child")),
    ("W8", "child", NODE.format("sub_workflow_id = 'another'", "live/3")),
    ("W8", "child", WORKFLOW.format("parent_workflow_id = 'nobody'", "child")),
    ("W8", "child", WORKFLOW.format(f"status = 'COMPLETED', completed_at = now(), {OLD}", "child")),
    ("S1", "nightly", "UPDATE horsies_schedule_state SET next_run_at = last_run_at"),
    ("S1", "nightly", "UPDATE horsies_schedule_state SET last_task_id = NULL"),
    ("S1", "nightly", "UPDATE horsies_schedule_state SET last_run_at = NULL"),
    ("S1", "nightly", "UPDATE horsies_schedule_state SET run_count = -1"),
    ("L1", "1", "UPDATE chaos_sent SET task_id = 'gone' WHERE k = 1"),
    ("L2", "1", "UPDATE chaos_sent SET task_id = 'pending' WHERE k = 1; DELETE FROM chaos_ledger WHERE k = 1"),
    ("L3", "1", "DELETE FROM chaos_ledger WHERE phase = 'end'"),
    ("L4", "1", f"INSERT INTO chaos_ledger (k, run, phase, at) VALUES (1, '{RUN_2}', 'start', now())"),
    ("L5", "1", f"INSERT INTO chaos_ledger (k, run, phase, at) VALUES (1, '{RUN_2}', 'start', now())"),
    ("L6", "2", f"UPDATE chaos_ledger SET at = now() WHERE k = 2 AND run = '{RUN_1}' AND phase = 'end'"),
    ("L7", "3", f"INSERT INTO chaos_ledger (k, run, phase, at) VALUES (3, '{RUN_1}', 'start', now())"),
    ("L8", '{"a":1,"b":2}', "UPDATE horsies_tasks SET task_name = 'chaos' WHERE id IN ('pending', 'future')"),
]  # fmt: skip

DROP_CONSTRAINTS = """
DO $$ DECLARE c record; BEGIN
    FOR c IN SELECT conrelid::regclass AS place, conname FROM pg_constraint
              WHERE contype IN ('c', 'f') AND connamespace = 'public'::regnamespace LOOP
        EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', c.place, c.conname);
    END LOOP;
END $$
"""


@pytest.mark.parametrize(("rule", "who", "harm"), SEEDS, ids=[f"{rule}-{at}" for at, (rule, _, _) in enumerate(SEEDS)])
def test_a_seeded_violation_fires_its_rule(good: Database, rule: str, who: str, harm: str) -> None:
    with psycopg.connect(good.url) as connection:
        connection.execute(DROP_CONSTRAINTS)
        connection.execute(harm)  # type: ignore[call-overload]
        found = invariants.check(connection, **GIVEN)
        connection.rollback()
    assert who in {
        violation.id.partition(" ")[0] if rule == "A7" else violation.id
        for violation in found
        if violation.rule == rule
    }


def test_every_rule_has_been_seen_to_fire() -> None:
    assert {rule for rule, _, _ in SEEDS} == invariants.rules().keys()
    assert list(invariants.rules()) == [
        *(f"T{n}" for n in range(1, 9)), *(f"A{n}" for n in range(1, 8)), *(f"W{n}" for n in range(1, 9)),
        *(f"G{n}" for n in range(1, 6)), "S1", *(f"L{n}" for n in range(1, 9)),
    ]  # fmt: skip


@pytest.mark.breaks("W2")
def test_rules_that_lack_their_input_are_left_out(db: Database) -> None:
    """No caps, no chaos tables; and rules that hold only after the drain are not asked while work goes on."""
    factories.task(db, task_name="chaos")
    factories.task(db, task_name="chaos")
    for _ in range(2):
        factories.task(db, "COMPLETED")
    factories.insert(db, "horsies_workflows", id="w", name="w", status="RUNNING", updated_at=ago(hours=1))
    assert invariants.check(db) == [("W2", "w")]
    assert invariants.check(db, settled=False) == []
    assert {violation.rule for violation in invariants.check(db, cap=1)} == {"A7", "W2"}
    assert {violation.rule for violation in invariants.check(db, qcap=1)} == {"A7", "W2"}


def test_the_rules_are_run_after_every_integration_test() -> None:
    """By a hook of tests/conftest.py, which spares only what a test says that it plants."""

    def tear_down(db: Database, *planted: str) -> None:
        marks = [pytest.mark.breaks(*planted).mark]
        item = SimpleNamespace(path=Path(__file__), funcargs={"db": db}, iter_markers=lambda _: marks)
        steps = conftest.pytest_runtest_teardown(cast("Any", item))
        next(steps)  # judged; now the fixtures go
        with contextlib.suppress(StopIteration):
            next(steps)

    with postgres.database() as db:
        factories.task(db, good_until=ago(hours=1))
        node = factories.task(db, is_workflow_task=True)
        with pytest.raises(AssertionError, match=rf"T7.*W4.*{node}"):
            tear_down(db)
        with pytest.raises(AssertionError, match="W4"):
            tear_down(db, "T7")
        tear_down(db, "T7", "W4")
