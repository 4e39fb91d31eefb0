"""Objects with our names elsewhere: functions keep to pg_catalog, and tables in a second schema are refused."""

import asyncio
import json
from collections.abc import Iterator

import asyncpg
import psycopg
import pytest

import horsies_schema
from horsies import AppConfig, PostgresConfig
from horsies.errors import SchemaError
from horsies.operate.doctor import Severity, examine
from horsies_schema import MigrationError
from tests.support import workflow_app
from tests.support.apps import add_task, app_on, async_app_on
from tests.support.postgres import Database
from tests.support.roles import account, accounts

EVIL = """
CREATE SCHEMA evil;
CREATE FUNCTION evil.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $$ BEGIN RAISE 'shadowed pg_notify'; END $$;
CREATE FUNCTION evil.statement_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '2000-01-01'::timestamptz $$;
CREATE FUNCTION evil.yes(varchar, varchar) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$;
CREATE FUNCTION evil.yes(text, text) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$ SELECT true $$;
CREATE OPERATOR evil.~ (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = evil.yes);
CREATE OPERATOR evil.~ (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.yes);
CREATE OPERATOR evil.= (LEFTARG = varchar, RIGHTARG = varchar, FUNCTION = evil.yes);
CREATE OPERATOR evil.= (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.yes);
CREATE FUNCTION evil.set_config(text, text, boolean) RETURNS text LANGUAGE plpgsql AS
    $$ BEGIN RAISE 'shadowed set_config'; END $$;
CREATE FUNCTION evil.clock_timestamp() RETURNS timestamptz LANGUAGE sql AS $$ SELECT '2000-01-01'::timestamptz $$;
CREATE FUNCTION evil.pg_try_advisory_lock(bigint) RETURNS boolean LANGUAGE sql AS $$ SELECT false $$;
CREATE FUNCTION evil.later(timestamptz, interval) RETURNS timestamptz LANGUAGE sql AS
    $$ SELECT '2000-01-01'::timestamptz $$;
CREATE OPERATOR evil.+ (LEFTARG = timestamptz, RIGHTARG = interval, FUNCTION = evil.later);
CREATE OPERATOR evil.<> (LEFTARG = text, RIGHTARG = text, FUNCTION = evil.yes);
GRANT USAGE ON SCHEMA evil TO PUBLIC;
"""
PATH = "SET search_path = evil, public, pg_catalog"


@pytest.fixture
def evil(db: Database) -> Iterator[psycopg.Connection]:
    """A session whose search_path puts other functions and operators before those of the server."""
    db.execute(EVIL)
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute(PATH)
        yield connection


def test_every_function_pins_its_search_path(db: Database) -> None:
    """But for procedures: one that ends a transaction cannot."""
    rows = db.execute(
        "SELECT p.oid::regprocedure::text, p.proconfig FROM pg_proc p WHERE p.pronamespace = 'public'::regnamespace"
        " AND p.proname LIKE 'horsies%%' AND p.prokind = 'f'"
    )
    assert len(rows) >= 10
    assert {name: config for name, config in rows if config != ["search_path=pg_catalog, pg_temp"]} == {}


def test_a_shadowed_function_fails_no_send(evil: psycopg.Connection, db: Database) -> None:
    with psycopg.connect(db.url, autocommit=True) as listening:
        listening.execute("LISTEN task_new")
        evil.execute("INSERT INTO public.horsies_tasks (id, task_name) VALUES ('a', 't'), ('b', 't')")
        told = next(iter(listening.notifies(timeout=10, stop_after=1)))
    assert told.payload == "a"
    evil.execute("UPDATE public.horsies_workflows SET status = 'RUNNING'")


def test_procedures_use_nothing_of_another_schema(evil: psycopg.Connection, db: Database) -> None:
    with psycopg.connect(db.url, autocommit=True) as listening:
        listening.execute("LISTEN task_new")
        evil.execute(
            "CALL public.horsies_send_task('a', NULL, '{}', 'sha', 't', 'default', 100, now(), NULL, interval '0',"
            " NULL, interval '1 hour', 0, NULL)"
        )
        evil.execute(
            "CALL public.horsies_send_tasks('{b,c}', NULL, '{1,2}', '{x,y}', 't', 'default', 100, now(), NULL,"
            " interval '0', NULL, NULL, 0, NULL)"
        )
        told = [one.payload for one in listening.notifies(timeout=10, stop_after=2)]
    assert told == ["a", "b"]
    rows = db.execute(
        "SELECT enqueued_at > now() - interval '1 minute', good_until > now() FROM horsies_tasks ORDER BY id"
    )
    assert rows == [(True, True), (True, None), (True, None)]
    (answer,) = evil.execute(
        "CALL public.horsies_wait_for_duty(512, 1, '{task_new}', '{default}', '{t}', 1, interval '9 s', false, '')"
    )
    assert answer == (False, "duty")


@pytest.mark.parametrize("queue", ["a b", "", "q" * 60, "no/pe"])
def test_a_shadowed_operator_lets_no_bad_row_in(evil: psycopg.Connection, queue: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        evil.execute("INSERT INTO public.horsies_tasks (id, task_name, queue_name) VALUES ('a', 't', %s)", (queue,))
    with pytest.raises(psycopg.errors.CheckViolation):
        evil.execute("INSERT INTO public.horsies_tasks (id, task_name, status) VALUES ('a', 't', 'COMPLETED')")


def test_the_functions_that_run_as_the_owner_trust_no_caller(db: Database) -> None:
    """A producer with operators, functions and temporary tables of its own in front of ours."""
    db.execute(EVIL)
    db.execute("INSERT INTO horsies_tasks (id, task_name) VALUES ('mine', 't'), ('other', 't')")
    node = {
        "id": "n", "node_id": "n", "task_name": "t", "queue_name": "default", "priority": 100, "dependencies": [],
        "dependents": [], "join_type": "all", "allow_failed": False, "max_retries": 0, "task_id": "task-n",
    }  # fmt: skip
    run = {"id": "w", "name": "w", "on_error": "fail", "sent_at": "2026-01-01T00:00:00+00:00", "nodes": [node]}
    with accounts(db) as found:
        db.execute(f'GRANT CREATE ON SCHEMA evil TO "{account(found["producer"])}"')
        db.execute(f'GRANT TEMPORARY ON DATABASE "{db.name}" TO "{account(found["producer"])}"')
        with psycopg.connect(found["producer"].url, autocommit=True) as connection:
            for table in ("horsies_tasks", "horsies_workflows", "horsies_workflow_tasks"):
                connection.execute(f"CREATE TEMPORARY TABLE {table} (LIKE public.{table})")  # type: ignore[call-overload]
            connection.execute("SET search_path = pg_temp, evil, public, pg_catalog")
            cancelled = connection.execute("SELECT * FROM public.horsies_cancel_tasks(ARRAY['mine'])").fetchall()
            assert cancelled == [("mine", "CANCELLED")]
            started = connection.execute(
                "SELECT public.horsies_start_workflow(%s::pg_catalog.jsonb)", (json.dumps(run),)
            )
            assert started.fetchall() == [("w",)]
            assert connection.execute("SELECT public.horsies_cancel_workflow('w')").fetchone() == (True,)
            assert connection.execute("SELECT count(*) FROM pg_temp.horsies_tasks").fetchone() == (0,)
    states = dict(db.execute("SELECT id, status FROM public.horsies_tasks"))
    assert states == {"mine": "CANCELLED", "other": "PENDING", "task-n": "CANCELLED"}
    assert db.value("SELECT min(terminal_at) > now() - interval '1 hour' FROM public.horsies_tasks")


# -- tables in two places ------------------------------------------------------------------------


@pytest.fixture
def shadowed(db: Database) -> Iterator[str]:
    """The URL of an account for which `"$user"` is a schema with a horsies_tasks of its own."""
    with accounts(db) as found:
        name = account(found["producer"])
        db.execute(f'CREATE SCHEMA "{name}" AUTHORIZATION "{name}"')
        db.execute(f'CREATE TABLE "{name}".horsies_tasks (LIKE public.horsies_tasks INCLUDING ALL)')
        db.execute(f'ALTER TABLE "{name}".horsies_tasks OWNER TO "{name}"')
        yield found["producer"].url


async def test_a_task_table_in_the_users_schema_swallows_no_send(db: Database, shadowed: str) -> None:
    name = account(Database("", shadowed))
    found = rf"horsies_tasks is found in schema '{name}', but .* are in schema 'public'.*PostgresConfig\(schema="
    async with async_app_on(shadowed) as app:
        add, tasks = add_task(app), workflow_app.register(app)
        spec = app.workflow("mine", [tasks.number.node()(1)])
        for send in (add.send_async(1), add.send_many_async([(1,)]), spec.start_async(), add.with_options(
            unique_key="k").send_async(1)):  # fmt: skip
            with pytest.raises(SchemaError, match=found):
                await send
        connection = await asyncpg.connect(shadowed)
        with pytest.raises(SchemaError, match=found):
            await add.with_options(connection=connection).send_async(1)
        with pytest.raises(SchemaError, match=found):
            await spec.start_async(connection=connection)
        await connection.close()
        with psycopg.connect(shadowed) as plain, pytest.raises(SchemaError, match=found):
            await asyncio.to_thread(lambda: add.with_options(connection=plain).send(1))
    async with async_app_on(shadowed, broker={"schema": "public"}) as app:  # named, it is no question
        sent = await add_task(app).send_async(1)
    assert db.execute("SELECT id FROM public.horsies_tasks") == [(sent.task_id,)]
    assert db.value(f'SELECT count(*) FROM "{name}".horsies_tasks') == 0


def test_the_doctor_names_both(shadowed: str) -> None:
    findings = asyncio.run(examine(AppConfig(PostgresConfig(shadowed))))
    told = next(one for one in findings if one.check == "schema")
    assert told.severity is Severity.PROBLEM
    assert account(Database("", shadowed)) in told.what
    assert "'public'" in told.what
    assert "schema=" in told.fix


def test_two_whole_installations_in_one_path(empty_db: Database) -> None:
    for name in ("one", "two"):
        horsies_schema.upgrade(empty_db.url, schema=name)
    both = f"{empty_db.url}&options=-csearch_path%3Dtwo,one"
    with app_on(both) as app, pytest.raises(SchemaError, match="the schemas 'two' and 'one' both hold horsies tables"):
        add_task(app).send(1)
    with pytest.raises(MigrationError, match=r"the schemas 'two' and 'one' both hold horsies tables.*--schema"):
        horsies_schema.upgrade(both)
    with app_on(both, broker={"schema": "one"}) as app:
        add_task(app).send(1)
    assert empty_db.value("SELECT count(*) FROM one.horsies_tasks") == 1


def test_a_copy_that_comes_later_in_the_path_is_no_installation(db: Database) -> None:
    db.execute("CREATE SCHEMA archive; CREATE TABLE archive.horsies_tasks (LIKE public.horsies_tasks)")
    with app_on(f"{db.url}&options=-csearch_path%3Dpublic,archive") as app:
        add_task(app).send(1)
    assert db.value("SELECT count(*) FROM public.horsies_tasks") == 1


def test_an_upgrade_works_where_the_tables_are(empty_db: Database) -> None:
    """Not in the schema that the migrating role's search_path names first, where later revisions' tables would be."""
    horsies_schema.upgrade(empty_db.url, "0007")
    empty_db.execute("CREATE SCHEMA mine")
    horsies_schema.upgrade(f"{empty_db.url}&options=-csearch_path%3Dmine,public")
    assert empty_db.execute("SELECT DISTINCT schemaname FROM pg_tables WHERE tablename LIKE 'horsies%%'") == [
        ("public",)
    ]
    horsies_schema.check(empty_db.url)


# -- tables that are not ours --------------------------------------------------------------------

THEIRS = """
CREATE TABLE horsies_tasks (id varchar(36) PRIMARY KEY, task_name varchar(255), status varchar(20));
CREATE TABLE horsies_heartbeats (id serial PRIMARY KEY);
INSERT INTO horsies_tasks VALUES ('theirs', 't', 'PENDING');
"""


def test_tables_of_another_project_are_left_alone_and_the_way_out_is_named(empty_db: Database) -> None:
    empty_db.execute(THEIRS)
    words = (
        r"schema 'public' holds tables of these names.*horsies_heartbeats, horsies_tasks.*--schema NAME.*schema=NAME"
    )
    for verb in (horsies_schema.upgrade, horsies_schema.check):
        with pytest.raises(MigrationError, match=words) as refused:
            verb(empty_db.url)
        assert refused.value.code == 3
    with app_on(empty_db) as app, pytest.raises(SchemaError, match=words):
        add_task(app).send(1)
    told = asyncio.run(examine(AppConfig(PostgresConfig(empty_db.url))))
    assert "--schema NAME" in next(one for one in told if one.check == "schema").fix
    horsies_schema.upgrade(empty_db.url, schema="jobs")
    with app_on(empty_db, broker={"schema": "jobs"}) as app:
        add_task(app).send(1)
    assert empty_db.execute("SELECT id FROM public.horsies_tasks") == [("theirs",)]
