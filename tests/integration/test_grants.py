"""Each role of `horsies-migrate grants` really logs in, can do its job, and nothing more."""

import uuid
from collections.abc import Iterator
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest

import horsies_schema
from horsies import Interval
from horsies._pg.statements import load
from horsies_schema import roles as roles_module
from horsies_schema.models import Base
from tests.support.postgres import Database
from tests.support.schedulers import schedule, scheduling

PASSWORD = "p@ss/word"


@pytest.fixture
def prefix(db: Database) -> Iterator[str]:
    """Roles belong to the server, not to the database: a name of this test's own, removed afterwards."""
    name = f"t{uuid.uuid4().hex[:8]}_"
    yield name
    for role in ("producer", "worker", "viewer", "operator"):
        for kind in (f"{name}{role}_login", f"{name}{role}"):
            if db.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", kind):
                db.execute(f'DROP OWNED BY "{kind}"')
                db.execute(f'DROP ROLE "{kind}"')


def login(db: Database, prefix: str, role: str) -> Database:
    account = f"{prefix}{role}_login"
    db.execute(f'CREATE ROLE "{account}" LOGIN PASSWORD \'{PASSWORD}\' IN ROLE "{prefix}{role}"')
    parts = urlsplit(db.url)
    host = parts.netloc.rpartition("@")[2]
    return Database(db.name, urlunsplit(parts._replace(netloc=f"{account}:{quote(PASSWORD, safe='')}@{host}")))


def may(who: Database, sql: str) -> bool:
    try:
        who.execute(sql)
    except psycopg.errors.InsufficientPrivilege:
        return False
    return True


SEND = "INSERT INTO horsies_tasks (id, task_name) VALUES ('{}', 't') ON CONFLICT DO NOTHING RETURNING id"
CANCEL = "UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now(), result = '{}' WHERE id = 'a'"


@pytest.fixture
def roles(db: Database, prefix: str) -> dict[str, Database]:
    db.execute(horsies_schema.grants(prefix=prefix))
    # a second run changes nothing: the printed SQL can be kept in a deployment script
    db.execute(horsies_schema.grants(prefix=prefix))
    db.execute("INSERT INTO horsies_tasks (id, task_name, kwargs) VALUES ('a', 't', '{\"secret\": 1}')")
    return {role: login(db, prefix, role) for role in ("producer", "worker", "viewer", "operator")}


def test_producer(roles: dict[str, Database]) -> None:
    producer = roles["producer"]
    assert may(producer, SEND.format("b"))
    assert may(producer, "SELECT status, result FROM horsies_tasks")
    assert may(producer, "SELECT version_num FROM horsies_alembic_version")
    assert may(producer, CANCEL)
    assert not may(producer, "UPDATE horsies_tasks SET kwargs = '{}'")
    assert not may(producer, "UPDATE horsies_tasks SET task_name = 'other'")
    assert not may(producer, "DELETE FROM horsies_tasks")
    assert not may(producer, "INSERT INTO horsies_queue_state (queue_name) VALUES ('q')")
    assert not may(producer, "CREATE TABLE mine (x int)")


def test_worker(roles: dict[str, Database]) -> None:
    worker = roles["worker"]
    for table in Base.metadata.tables:
        assert may(worker, f"SELECT * FROM {table}")
        assert may(worker, f"DELETE FROM {table} WHERE false")
    assert may(worker, "INSERT INTO horsies_heartbeats (task_id, sender_id, role) VALUES ('a', 'w', 'runner')")
    assert may(worker, CANCEL)
    assert not may(worker, "DROP TABLE horsies_tasks")
    assert not may(worker, "ALTER TABLE horsies_tasks DISABLE TRIGGER ALL")


def test_viewer(roles: dict[str, Database]) -> None:
    viewer = roles["viewer"]
    assert may(viewer, "SELECT id, status, error_code FROM horsies_tasks")
    assert may(viewer, "SELECT * FROM horsies_worker_states")
    for hidden in ("args", "kwargs", "result", "progress"):
        assert not may(viewer, f"SELECT {hidden} FROM horsies_tasks")
    assert not may(viewer, SEND.format("b"))
    assert not may(viewer, CANCEL)


def test_operator(roles: dict[str, Database]) -> None:
    operator = roles["operator"]
    assert may(operator, "SELECT kwargs, result FROM horsies_tasks")
    assert may(operator, CANCEL)
    assert may(operator, "INSERT INTO horsies_queue_state (queue_name, paused_at) VALUES ('q', now())")
    assert may(operator, "UPDATE horsies_schedule_state SET run_requested_at = now()")
    assert not may(operator, SEND.format("b"))
    assert may(operator, "DELETE FROM horsies_tasks WHERE id = 'a'")
    assert not may(operator, "DELETE FROM horsies_workflows")
    assert not may(operator, "TRUNCATE horsies_tasks CASCADE")
    assert not may(operator, "UPDATE horsies_schedule_state SET next_run_at = now()")


SCHEDULES = load("horsies._pg", "schedules.sql")


async def test_who_may_steer_schedules(db: Database, roles: dict[str, Database]) -> None:
    """Looking is everybody's but the producer's; pausing and running is the operator's; all of it is the worker's."""
    async with scheduling(roles["worker"], schedule("s", Interval(hours=1))) as scheduler:
        for role, looks, acts in (
            ("producer", False, False), ("viewer", True, False), ("operator", True, True), ("worker", True, True),
        ):  # fmt: skip
            for name, allowed in (
                ("list_schedules", looks), ("request_run", acts), ("pause_schedule", acts), ("resume_schedule", acts),
            ):  # fmt: skip
                sql = SCHEDULES[name].sql.replace("$1::varchar", "'s'")
                assert may(roles[role], sql) == allowed, (role, name)
        assert not may(roles["operator"], "INSERT INTO horsies_schedule_state (schedule_name) VALUES ('mine')")
        assert not may(roles["operator"], "UPDATE horsies_schedule_state SET run_count = 7")
        # and the worker's role fires what the operator's has asked for
        await scheduler.run_once()
    assert db.value("SELECT run_count FROM horsies_schedule_state") == 1


def test_in_a_schema_of_its_own(empty_db: Database, prefix: str) -> None:
    horsies_schema.upgrade(empty_db.url, schema="jobs")
    empty_db.execute(horsies_schema.grants(schema="jobs", prefix=prefix))
    producer = login(empty_db, prefix, "producer")
    try:
        assert may(producer, SEND.format("b").replace("horsies_tasks", "jobs.horsies_tasks"))
    finally:
        for role in ("producer_login", "producer", "worker", "viewer", "operator"):
            empty_db.execute(f'DROP OWNED BY "{prefix}{role}"')


def test_every_column_that_grants_name_exists() -> None:
    for table, columns in roles_module._PRIVATE.items():
        assert columns <= set(Base.metadata.tables[table].columns.keys())
    assert set(roles_module._CANCEL_COLUMNS) <= set(Base.metadata.tables["horsies_tasks"].columns.keys())
