"""Two apps on one database and one queue: each worker runs what it knows, and what none knows ends."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import TaskError, TaskResult, TaskStatus, WorkflowStatus, gather
from tests.support import workflow_app
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import build
from tests.support.workers import check_invariants, describe, ended, start_worker, tasks_on, worker

LONG_MS = 30_000


def test_a_worker_that_does_not_know_the_name_leaves_the_task_to_one_that_does(db: Database, tmp_path: Path) -> None:
    """Both polls are far away, and an unknown name would end at once."""
    config: dict[str, Any] = {"resilience": {"notify_poll_interval_ms": 60_000}, "unknown_task_grace_ms": 0}
    (tmp_path / "other").mkdir()
    with (
        ended(start_worker(describe(db, **config), tmp_path / "other", app=workflow_app.APP)) as other,
        # under load, tasks that were handed ahead come back and are claimed again
        worker(db, "--no-run-ahead", folder=tmp_path, **config) as knower,
        tasks_on(db) as tasks,
    ):
        other.wait_up()
        handles = tasks.add.send_many([(k, k) for k in range(300)])
        assert [result.ok for result in gather(handles, timeout_ms=LONG_MS)] == [2 * k for k in range(300)]
        for k in range(10):
            assert tasks.add.send(k, 1).get(LONG_MS).ok == k + 1
        with build(describe(db)) as app:
            assert workflow_app.register(app).number.send(7).get(LONG_MS).ok == 7
        by = dict(
            db.execute("SELECT task_name, array_agg(DISTINCT claimed_by_worker_id) FROM horsies_tasks GROUP BY 1")
        )
        assert by == {"add": [knower.worker_id], "number": [other.worker_id]}
        assert db.value("SELECT max(claim_generation) FROM horsies_tasks") == 1
    check_invariants(db)


def test_a_task_in_a_queue_whose_workers_do_not_know_it_fails_and_names_the_queue_of_those_that_do(
    db: Database, tmp_path: Path
) -> None:
    config: dict[str, Any] = {"queues": {"a": None, "b": None}, "unknown_task_grace_ms": 0}
    (tmp_path / "other").mkdir()
    with (
        ended(start_worker(describe(db, **config), tmp_path / "other", "--queues=b", app=workflow_app.APP)) as other,
        worker(db, "--queues=a", folder=tmp_path, **config),
        tasks_on(db, **config) as tasks,
    ):
        other.wait_up()
        wrong, right = (tasks.add.with_options(queue_name=queue).send(1, 2) for queue in "ba")
        assert right.get(LONG_MS).ok == 3
        error = wrong.get(LONG_MS).err
        assert error is not None
        assert error.error_code == "WORKER_RESOLUTION_ERROR"
        assert "Live workers of 'a' know it" in str(error.message)
    check_invariants(db)


@pytest.mark.long
def test_a_restart_goes_on_with_the_grace_and_a_known_name_waits(db: Database, tmp_path: Path) -> None:
    config: dict[str, Any] = {"unknown_task_grace_ms": 6_000, "recovery": {"worker_state_interval_ms": 1_000}}
    with tasks_on(db) as tasks:
        tasks.add.send(1, 1)
        ghost = tasks.app.send("ghost", 1)
        with worker(db, folder=tmp_path, **config):
            eventually(lambda: db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 1)
            eventually(lambda: db.value("SELECT count(*) FROM horsies_task_names WHERE task_name = 'ghost'"
                                        " AND missing_since < now() - interval '3 s'"), timeout=20)  # fmt: skip
        left = tasks.add.send(2, 2)
        (tmp_path / "other").mkdir()
        with ended(start_worker(describe(db, **config), tmp_path / "other", app=workflow_app.APP)) as other:
            other.wait_up()
            assert ghost.get(LONG_MS).err is not None
            served = db.value(
                "SELECT extract(epoch FROM sum(coalesce(stopped_at, statement_timestamp()) - started_at))::float8"
                " FROM horsies_worker_instances"
            )
            alone = db.value(
                "SELECT extract(epoch FROM t.failed_at - i.started_at)::float8 FROM horsies_tasks t,"
                " horsies_worker_instances i WHERE t.task_name = 'ghost' AND i.stopped_at IS NULL"
            )
            assert served >= 6
            assert alone < 6  # the first worker's time counts
            info = left.info()
            assert info is not None
            assert info.status is TaskStatus.PENDING  # its app may come back within a day
    db.execute("DELETE FROM horsies_tasks WHERE status = 'PENDING'")
    check_invariants(db)


def test_a_node_of_an_unknown_name_ends_its_workflow_at_once(db: Database, tmp_path: Path) -> None:
    """Without the recovery of workflows, which would find it later."""
    config: dict[str, Any] = {"unknown_task_grace_ms": 0, "recovery": {"crashed_worker_recovery_grace_ms": 0}}
    with (
        ended(start_worker(describe(db, **config), tmp_path, app=workflow_app.APP)) as process,
        build(describe(db)) as app,
    ):
        process.wait_up()
        tasks: SimpleNamespace = workflow_app.register(app)

        @app.task("ghost")
        def ghost(n: int) -> TaskResult[int, TaskError]:
            return TaskResult(ok=n)

        first = tasks.number.node(node_id="first")(1)
        lost = ghost.node(node_id="lost", waits_for=[first])(2)
        handle = app.workflow("haunted", [first, lost], output=lost).start()
        began = time.monotonic()
        result = handle.get(LONG_MS)
        assert result.err is not None
        assert handle.status() is WorkflowStatus.FAILED
        ended_after = db.value(
            "SELECT extract(epoch FROM w.completed_at - t.failed_at)::float8 FROM horsies_workflows w, horsies_tasks t"
            " WHERE t.task_name = 'ghost'"
        )
        assert ended_after < 5
        assert time.monotonic() - began < LONG_MS / 1000
        error = handle.result_for(lost).err
        assert error is not None
        assert error.error_code == "WORKER_RESOLUTION_ERROR"
    check_invariants(db)
