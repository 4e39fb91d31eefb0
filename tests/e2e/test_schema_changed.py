"""The schema is changed while a worker or a scheduler runs: it stops before its statements do harm, and says why."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from horsies import TaskHandle
from horsies._pg.schema_guard import HEAD_REVISION
from horsies_worker.exit_codes import ExitCode
from tests.support.postgres import Database
from tests.support.scheduler_app import start_scheduler
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, describe, ended, start_worker, tasks_on

LISTENING = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity "
    "WHERE datname = current_database() AND application_name LIKE '%% listen'"
)
WORKERS = "SELECT count(*) FROM horsies_worker_instances WHERE stopped_at IS NULL AND judged_dead_at IS NULL"
NEWER, BREAKING = "9002", "9001"
TOO_NEW = (
    f"the database is at revision {NEWER}, and code that does not know revision {BREAKING} cannot work with it: this "
    f"release knows {HEAD_REVISION}; install a newer release of horsies"
)
TOO_OLD = f"the database is at revision 0022, this release needs {HEAD_REVISION}: run `horsies-migrate up`"


@contextmanager
def at_revision(db: Database, number: str, breaking: str | None) -> Iterator[None]:
    """As `horsies-migrate` of another release leaves the version table. The right revision is put back at the end."""
    before = db.execute("SELECT version_num, breaking FROM horsies_alembic_version")[0]
    change = "UPDATE horsies_alembic_version SET version_num = %s, breaking = %s"
    db.execute(change, number, breaking)
    try:
        yield
    finally:
        db.execute(change, *before)


def status(db: Database, handle: TaskHandle[Any]) -> str:
    return db.value("SELECT status FROM horsies_tasks WHERE id = %s", handle.task_id)


def last_line(process: WorkerProcess) -> str:
    return process.log.splitlines()[-1]


@pytest.mark.parametrize(
    ("number", "breaking", "told"), [(NEWER, BREAKING, TOO_NEW), ("0022", "0022", TOO_OLD)], ids=["newer", "older"]
)
def test_a_worker_stops_after_the_task_that_it_runs(
    db: Database, tmp_path: Path, number: str, breaking: str, told: str
) -> None:
    process = start_worker(describe(db), tmp_path)
    with ended(process, code=None), tasks_on(db) as tasks:
        process.wait_up()
        long = tasks.sleep.send(3.0)
        eventually(lambda: status(db, long) == "RUNNING", timeout=20)
        with at_revision(db, number, breaking):
            # a new connection for notifications asks at once; otherwise it would take up to a minute
            eventually(lambda: db.value(LISTENING) == 1, timeout=20)
            process.wait_for_log(f"the schema was changed while this worker ran: {told}; stopping", timeout=20)
            late = tasks.add.send(1, 2)
            assert process.wait() == ExitCode.SCHEMA
        assert last_line(process) == f"horsies: {told}"
        assert "Traceback" not in process.log
        assert long.get(0).is_ok()
        assert status(db, late) == "PENDING"
        assert db.value(WORKERS) == 0, "it has not recorded that it left"


def test_a_newer_revision_that_breaks_nothing_is_no_reason_to_stop(db: Database, tmp_path: Path) -> None:
    process = start_worker(describe(db), tmp_path)
    with ended(process), tasks_on(db) as tasks:
        process.wait_up()
        with at_revision(db, NEWER, HEAD_REVISION):
            eventually(lambda: db.value(LISTENING) == 1, timeout=20)
            assert tasks.add.send(1, 2).get(20_000).ok_value == 3
            eventually(lambda: db.value(LISTENING) == 1, timeout=20)  # it listens again, and has asked
            assert tasks.add.send(1, 2).get(20_000).ok_value == 3
        assert "schema was changed" not in process.log


@pytest.mark.long
@pytest.mark.timeout(180)
def test_without_a_new_connection_worker_and_scheduler_find_out_within_a_minute(db: Database, tmp_path: Path) -> None:
    (tmp_path / "worker").mkdir()
    worker = start_worker(describe(db), tmp_path / "worker")
    scheduler = start_scheduler(db, {"s": 1}, tmp_path)
    with ended(worker, code=None), ended(scheduler, code=None):
        worker.wait_up()
        scheduler.wait_up()
        eventually(lambda: db.value("SELECT count(*) FROM horsies_tasks") > 0, timeout=20)
        with at_revision(db, NEWER, BREAKING):
            assert worker.wait(100) == ExitCode.SCHEMA
            assert scheduler.wait(100) == ExitCode.SCHEMA
        assert last_line(worker) == last_line(scheduler) == f"horsies: {TOO_NEW}"
        assert "Traceback" not in worker.log + scheduler.log
