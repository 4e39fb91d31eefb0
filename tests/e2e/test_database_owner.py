"""What the owner of a database does while workers run: settings, maintenance, cancelled statements, triggers."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest

from tests.support.postgres import Database
from tests.support.refusals import refusing
from tests.support.waiting import eventually
from tests.support.workers import Chaos, tasks_on, worker

LONG_MS = 30_000
THRESHOLD_S = 3.0
ALL_ENDED = "SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NULL"
SETTINGS: Mapping[str, Mapping[str, str]] = {
    "formats": {
        "timezone": "Asia/Kathmandu", "datestyle": "SQL, DMY", "intervalstyle": "iso_8601", "bytea_output": "escape",
        "extra_float_digits": "-15", "standard_conforming_strings": "off", "client_encoding": "LATIN1",
        "transform_null_equals": "on", "array_nulls": "off", "quote_all_identifiers": "on",
    },
    "limits": {
        "statement_timeout": "2s", "lock_timeout": "500ms", "idle_session_timeout": "300ms",
        "idle_in_transaction_session_timeout": "200ms",
    },
    "plans": {
        "enable_indexscan": "off", "enable_indexonlyscan": "off", "work_mem": "64kB", "jit_above_cost": "0",
        "plan_cache_mode": "force_custom_plan",
    },
    "transactions": {
        "default_transaction_isolation": "serializable", "default_transaction_deferrable": "on",
        "synchronous_commit": "off", "session_replication_role": "replica", "row_security": "off",
    },
}  # fmt: skip
OTHERS = "FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@contextmanager
def meanwhile(db: Database, action: Callable[[psycopg.Connection], object]) -> Iterator[list[int]]:
    """Repeat the action on a connection of its own; the list has how often it was done."""
    over, done = threading.Event(), [0]

    def repeat() -> None:
        with psycopg.connect(db.url, autocommit=True) as connection:
            while not over.wait(0.02):
                try:
                    action(connection)
                except psycopg.errors.DeadlockDetected:
                    continue  # it is the maintenance that gives way
                done[0] += 1

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        yield done
    finally:
        over.set()
        thread.join()


@pytest.mark.parametrize("kind", SETTINGS)
def test_settings_that_change_under_a_worker(db: Database, tmp_path: Path, kind: str) -> None:
    """New sessions have them at once, because all others are terminated."""
    chaos = Chaos(db, tmp_path)
    with worker(db, folder=tmp_path), tasks_on(db) as tasks:
        handles = chaos.send(tasks.chaos, 4, 1.0)
        eventually(lambda: any(chaos.starts(handle) for handle in handles))
        for name, value in SETTINGS[kind].items():
            db.execute(f"ALTER DATABASE \"{db.name}\" SET {name} = '{value}'")
        db.execute(f"SELECT pg_terminate_backend(pid) {OTHERS}")
        for seconds in (0.0, 0.4, 0.0):  # with pauses in which sessions are idle
            handles += chaos.send(tasks.chaos, 5, seconds)
            assert all(handle.get(LONG_MS).is_ok() for handle in handles)
    db.execute(f'ALTER DATABASE "{db.name}" RESET ALL')
    chaos.check()


MAINTENANCE = {
    "vacuum full": ["VACUUM FULL horsies_tasks"],
    "reindex": ["REINDEX TABLE CONCURRENTLY horsies_tasks", "REINDEX TABLE horsies_task_attempts"],
    "columns": [
        "ALTER TABLE horsies_tasks ADD COLUMN mine int DEFAULT 5",
        "ALTER TABLE horsies_tasks DROP COLUMN mine",
    ],
    "liveness": ["TRUNCATE horsies_heartbeats, horsies_worker_states"],
    "cancels": [f"SELECT pg_cancel_backend(pid) {OTHERS} AND application_name LIKE 'horsies worker%'"],
}


@pytest.mark.parametrize("kind", MAINTENANCE)
def test_maintenance_while_tasks_run(db: Database, tmp_path: Path, kind: str) -> None:
    chaos = Chaos(db, tmp_path)

    def maintain(connection: psycopg.Connection) -> None:
        for statement in MAINTENANCE[kind]:
            connection.execute(statement)  # pyright: ignore[reportArgumentType] # texts of this module

    with worker(db, folder=tmp_path), tasks_on(db) as tasks:
        handles = chaos.send(tasks.chaos, 10, 0.2)
        with meanwhile(db, maintain) as done:
            eventually(lambda: done[0] >= 10, timeout=60)
            eventually(lambda: db.value(ALL_ENDED) == 0, timeout=60)
        assert all(handle.get(LONG_MS).is_ok() for handle in handles)
    chaos.check()


def test_a_trigger_of_the_owner_that_raises(db: Database, tmp_path: Path) -> None:
    """Nothing starts while it is there; the log says why, with one traceback; then all run once."""
    chaos = Chaos(db, tmp_path)
    with worker(db, folder=tmp_path) as process, tasks_on(db) as tasks:
        with refusing(db, "BEFORE UPDATE ON horsies_tasks FOR EACH ROW", code="P0001"):
            handles = chaos.send(tasks.chaos, 5)
            process.wait_for_log("claim failed unexpectedly once more: RaiseError: no", times=2)
            assert not any(chaos.starts(handle) for handle in handles)
            assert process.log.count("Traceback") <= 3, process.log  # one for each service that writes to tasks
        assert all(handle.get(LONG_MS).is_ok() for handle in handles)
    chaos.check()


@pytest.mark.parametrize("table", ["horsies_heartbeats", "horsies_tasks"])
def test_a_table_that_is_missing_for_longer_than_the_threshold(db: Database, tmp_path: Path, table: str) -> None:
    """No heartbeat can be written meanwhile. When it is back, silence is no sign that a worker is dead, although other
    services wait for long by then."""
    chaos = Chaos(db, tmp_path)
    waits = {"resilience": {"reconnect_initial_ms": 500, "reconnect_max_ms": 30_000}}
    with worker(db, folder=tmp_path, **waits), worker(db, folder=tmp_path, **waits), tasks_on(db) as tasks:
        handles = chaos.send(tasks.chaos, 3, 12.0)
        eventually(lambda: all(chaos.starts(handle) for handle in handles))
        eventually(lambda: db.value("SELECT count(*) FROM horsies_heartbeats") >= 3)
        beats = "elsewhere" if table == "horsies_heartbeats" else "horsies_heartbeats"
        db.execute(f"ALTER TABLE {table} RENAME TO elsewhere")
        silence = f"SELECT extract(epoch FROM now() - max(sent_at)) > {2 * THRESHOLD_S} FROM {beats}"
        eventually(lambda: db.value(silence), timeout=30)
        db.execute(f"ALTER TABLE elsewhere RENAME TO {table}")
        assert [handle.get(LONG_MS).is_ok() for handle in handles] == [True] * 3
        assert all(len(handle.attempts()) == 1 for handle in handles)
    chaos.check()
