"""Each role of `horsies-migrate grants` really logs in, can do its job, and nothing more."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy import JSON, Text

import horsies_schema
from horsies import Interval, OutcomeCode, TaskError, WorkflowStatus, from_node
from horsies._pg.statements import load
from horsies.codec import encode_error
from horsies.errors import BrokerError
from horsies.status import CancelResult
from horsies_schema import roles as printed
from horsies_schema.models import Base
from tests.support import factories, workflow_app
from tests.support.apps import add_task, async_app_on, make_app
from tests.support.postgres import Database
from tests.support.roles import ROLES, account, accounts, allowed, login, may
from tests.support.schedulers import schedule, scheduling

SEND = "INSERT INTO horsies_tasks (id, task_name) VALUES ('{}', 't') ON CONFLICT DO NOTHING RETURNING id"
CANCEL = "UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now(), result = '{}' WHERE id = 'a'"
TABLES = sorted(Base.metadata.tables)


def written(table: str) -> list[str]:
    """The columns that an UPDATE can name: not the generated ones."""
    return [column.name for column in Base.metadata.tables[table].columns if column.computed is None]


@pytest.fixture
def roles(db: Database) -> Iterator[dict[str, Database]]:
    db.execute("INSERT INTO horsies_tasks (id, task_name, kwargs) VALUES ('a', 't', '{\"secret\": 1}')")
    with accounts(db) as found:
        yield found


# -- producer ------------------------------------------------------------------------------------


def test_producer(roles: dict[str, Database]) -> None:
    producer = roles["producer"]
    assert may(producer, SEND.format("b"))
    assert may(producer, "SELECT status, result FROM horsies_tasks")
    assert may(producer, "SELECT version_num FROM horsies_alembic_version")
    assert not may(producer, "INSERT INTO horsies_queue_state (queue_name) VALUES ('q')")
    # before PostgreSQL 15 everyone may create tables in `public`, which docs/guides/database.md advises against
    everyone_may = producer.value("SELECT current_setting('server_version_num')::int") < 150_000
    assert may(producer, "CREATE TABLE mine (x int)") is everyone_may


def test_a_producer_reads_every_column_of_five_tables_and_no_other_table(roles: dict[str, Database]) -> None:
    """docs/operations/security.md and docs/guides/database.md name the five."""
    read = {"horsies_tasks", "horsies_task_attempts", "horsies_workflows", "horsies_workflow_tasks",
            "horsies_workflow_signals"}  # fmt: skip
    columns = {
        f"SELECT {column.name} FROM {name}": name for name in TABLES for column in Base.metadata.tables[name].columns
    }
    assert allowed(roles["producer"], columns) == [sql for sql, name in columns.items() if name in read]
    assert not may(roles["producer"], "SELECT 1 FROM horsies_queue_load")


@pytest.mark.parametrize("role", ["producer", "viewer", "stranger"])
def test_who_may_not_change_rows(roles: dict[str, Database], role: str) -> None:
    attacks = ["UPDATE horsies_alembic_version SET version_num = '0001'"]
    for name in TABLES:
        attacks += [f"UPDATE {name} SET {one} = {one}" for one in written(name)]
        attacks += [
            f"DELETE FROM {name}", f"TRUNCATE {name} CASCADE", f"SELECT 1 FROM {name} FOR UPDATE",
            f"SELECT 1 FROM {name} FOR KEY SHARE", f"LOCK TABLE {name} IN ACCESS EXCLUSIVE MODE",
            f"ALTER TABLE {name} DISABLE TRIGGER ALL", f"DROP TABLE {name} CASCADE", f"COMMENT ON TABLE {name} IS 'x'",
        ]  # fmt: skip
    assert allowed(roles[role], attacks) == []


def test_a_producer_forges_no_task(db: Database, roles: dict[str, Database]) -> None:
    """A new task is PENDING and has no owner, no outcome and no workflow, whoever sends it."""
    forged = {column.name for column in Base.metadata.tables["horsies_tasks"].columns} - set(printed.SENT_COLUMNS)
    assert {"status", "result", "claimed_by_worker_id", "is_workflow_task", "retry_count", "created_at"} <= forged
    attacks = [f"INSERT INTO horsies_tasks (id, task_name, {one}) VALUES ('f', 't', DEFAULT)" for one in forged]
    attacks += [f"INSERT INTO {table} DEFAULT VALUES" for table in TABLES if table != "horsies_tasks"]
    attacks += [
        "INSERT INTO horsies_tasks (id, task_name) VALUES ('a', 't') ON CONFLICT (id) DO UPDATE SET kwargs = '{}'"
    ]
    assert allowed(roles["producer"], attacks) == []
    assert db.execute("SELECT id, status FROM horsies_tasks") == [("a", "PENDING")]


async def test_what_a_producer_does_works(db: Database, roles: dict[str, Database]) -> None:
    async with async_app_on(roles["producer"]) as app:
        add, tasks = add_task(app), workflow_app.register(app)
        sent = await add.send_async(1)
        assert (await add.with_options(task_id=sent.task_id).send_async(1)).task_id == sent.task_id
        await add.send_many_async([(2,), (3,)])
        unique = await add.with_options(unique_key="k").send_async(4)
        assert (await add.with_options(unique_key="k").send_async(4)).is_duplicate
        factories.finish(db, sent.task_id, 1)
        assert (await sent.get_async(10_000)).ok_value == 1
        assert await unique.cancel_async() is CancelResult.CANCELLED
        assert await app.handle(factories.task(db, "RUNNING")).cancel_async() is CancelResult.REQUESTED
        assert await sent.cancel_async() is CancelResult.ALREADY_ENDED
        assert (await sent.info_async()).status == "COMPLETED"  # type: ignore[union-attr]
        assert [one.outcome for one in await sent.attempts_async()] == ["COMPLETED"]
        one = tasks.number.node()(1)
        spec = app.workflow("mine", [one, tasks.plus.node()(from_node(one), 2)])
        run = await spec.start_async()
        assert (await spec.start_async(workflow_id=run.workflow_id)).workflow_id == run.workflow_id
        assert [node.status for node in await run.tasks_async()] == ["ENQUEUED", "PENDING"]
        assert await run.results_async() == {}
        for refused in (run.pause_async(), run.resume_async(), run.retry_async(), app.get_broker().retry(sent.task_id)):
            with pytest.raises(BrokerError, match=r"permission denied.*horsies-migrate grants"):
                await refused
        assert await run.cancel_async()
        assert not await run.cancel_async()
        assert await run.status_async() is WorkflowStatus.CANCELLED


async def test_a_producer_sends_on_a_connection_of_its_own(roles: dict[str, Database]) -> None:
    url = roles["producer"].url
    async with async_app_on(url) as app:
        add, tasks = add_task(app), workflow_app.register(app)
        spec = app.workflow("mine", [tasks.number.node()(1)])
        with psycopg.connect(url) as connection:
            mine = add.with_options(connection=connection)
            await asyncio.to_thread(lambda: (mine.send(1), spec.start(connection=connection)))
        engine = sqlalchemy.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
        with engine.begin() as bound:
            theirs = add.with_options(connection=bound)
            await asyncio.to_thread(lambda: (theirs.send(2), spec.start(connection=bound)))
        engine.dispose()
        session = await asyncpg.connect(url)
        await add.with_options(connection=session).send_async(3)
        await spec.start_async(connection=session)
        await session.close()
    assert roles["producer"].value("SELECT count(*) FROM horsies_tasks WHERE is_workflow_task") == 3
    assert roles["producer"].value("SELECT count(*) FROM horsies_tasks WHERE NOT is_workflow_task") == 4


def test_a_start_by_hand_cannot_forge_a_run(roles: dict[str, Database]) -> None:
    """What the function is given describes nodes; states, owners and outcomes in it are ignored."""
    node = {
        "id": "n", "node_id": "n", "task_name": "t", "queue_name": "default", "priority": 100, "dependencies": [],
        "dependents": [], "join_type": "all", "allow_failed": False, "max_retries": 0, "task_id": "task-n",
        "status": "COMPLETED", "result": '{"ok":1}', "claimed_by_worker_id": "me",
    }  # fmt: skip
    run = {"id": "w", "name": "w", "on_error": "fail", "sent_at": "2026-01-01T00:00:00+00:00", "status": "COMPLETED",
           "result": '{"ok":1}', "parent_workflow_id": "x", "nodes": [node]}  # fmt: skip
    producer = roles["producer"]
    start = "SELECT * FROM horsies_start_workflow(%s::jsonb)"
    assert producer.execute(start, json.dumps(run)) == [("w",)]
    assert producer.execute(start, json.dumps(run)) == []
    kept = producer.execute("SELECT status, result, parent_workflow_id, nodes_left FROM horsies_workflows")
    assert kept == [("RUNNING", None, None, 1)]
    assert producer.execute("SELECT status, result FROM horsies_workflow_tasks") == [("ENQUEUED", None)]
    assert producer.execute(
        "SELECT id, status, result, claimed_by_worker_id FROM horsies_tasks WHERE is_workflow_task"
    ) == [("task-n", "PENDING", None, None)]
    with pytest.raises(psycopg.errors.UniqueViolation):  # another task's id is not taken over
        producer.execute(start, json.dumps({**run, "id": "w2", "nodes": [{**node, "id": "n2", "task_id": "a"}]}))


# -- what the functions write, and who may call them ---------------------------------------------


async def test_cancelling_writes_what_the_client_would(db: Database) -> None:
    async with make_app(db) as app:
        add, tasks = add_task(app), workflow_app.register(app)
        task = await add.send_async(1)
        await task.cancel_async()
        run = await app.workflow("mine", [tasks.number.node()(1)]).start_async()
        await run.cancel_async()
    told = {
        task.task_id: (OutcomeCode.TASK_CANCELLED, "cancelled before it started"),
        run.workflow_id: (OutcomeCode.WORKFLOW_CANCELLED, "the workflow was cancelled"),
    }
    for one, (code, message) in told.items():
        stored = db.value(
            "SELECT result FROM horsies_tasks WHERE id = %s UNION SELECT error FROM horsies_workflows WHERE id = %s",
            one, one,
        )  # fmt: skip
        assert stored == encode_error(TaskError(code, message))
    inside = db.execute("SELECT result, failed_reason FROM horsies_tasks WHERE is_workflow_task")
    message = "its workflow was cancelled before it started"
    assert inside == [(encode_error(TaskError(OutcomeCode.TASK_CANCELLED, message)), None)]


def test_only_granted_roles_call_the_functions(roles: dict[str, Database]) -> None:
    calls = {
        "SELECT horsies_start_workflow('{\"nodes\": []}')": {"producer", "worker"},
        "SELECT horsies_cancel_tasks('{}')": {"producer", "worker", "operator"},
        "SELECT horsies_cancel_workflow('none')": {"producer", "worker", "operator"},
    }
    for call, callers in calls.items():
        for role in (*ROLES, "stranger"):
            try:
                assert may(roles[role], call) == (role in callers), (role, call)
            except psycopg.errors.NotNullViolation:  # it was let in, and refused what it was given
                assert role in callers, (role, call)


def test_public_has_nothing(db: Database, roles: dict[str, Database]) -> None:
    for name in (*TABLES, "horsies_alembic_version"):
        assert not may(roles["stranger"], f"SELECT 1 FROM {name}")
    definers = """SELECT proname FROM pg_proc
        WHERE proname LIKE 'horsies%%' AND prosecdef AND has_function_privilege({}, oid, 'EXECUTE')"""
    assert db.execute(definers.format("'public'")) == []
    assert db.execute(definers.format(f"'{account(roles['stranger'])}'")) == []


CALLED_BY_ALL: dict[str, str] = {
    "horsies_is_count": "reads its arguments only",
    "horsies_moment_problem": "reads its arguments only",
    "horsies_policy_is_sound": "reads its arguments only",
    "horsies_rate_room": "reads its arguments only",
    "horsies_task_is_sound": "reads its arguments only; every INSERT and UPDATE of the table calls it",
    "horsies_notify_sent": "notifies, which every account may",
    "horsies_notify_groups_sent": "notifies, which every account may",
    "horsies_notify_task_changes": "a trigger's",
    "horsies_notify_workflow_changes": "a trigger's",
    "horsies_fall_asleep": "takes advisory locks, which every account may",
    "horsies_leave_duty": "takes advisory locks, which every account may",
    "horsies_set_awake": "takes advisory locks, which every account may",
    "horsies_wait_for_duty": "takes advisory locks, which every account may; reads with the rights of its caller",
    "horsies_has_late_task": "reads with the rights of its caller",
    "horsies_claim_grouped": "reads and writes with the rights of its caller",
    "horsies_send_task": "writes with the rights of its caller",
    "horsies_send_tasks": "writes with the rights of its caller",
    "horsies_send_calls": "writes with the rights of its caller",
}
"""What PUBLIC may call, and why that gives it nothing (docs/operations/security.md). A new one needs a reason."""


def test_what_public_may_call_runs_with_the_rights_of_its_caller(db: Database, roles: dict[str, Database]) -> None:
    found = db.execute(
        "SELECT proname::text, prosecdef FROM pg_proc WHERE proname LIKE 'horsies%%'"
        " AND has_function_privilege('public', oid, 'EXECUTE')"
    )
    assert dict(found) == dict.fromkeys(CALLED_BY_ALL, False)
    nulls = ", ".join(["NULL"] * 11)
    denied = [
        f"CALL horsies_send_task('f', 't', '[]', '{{}}', {nulls}, NULL)",
        f"CALL horsies_send_tasks(ARRAY['f'], ARRAY['t'], ARRAY['[]'], ARRAY['{{}}'], {nulls}, ARRAY['g'])",
        "SELECT horsies_has_late_task(ARRAY['default'], ARRAY['t'], 0)",
    ]
    for role in ("stranger", "viewer"):
        may_read = role == "viewer"
        assert len(allowed(roles[role], denied)) == int(may_read), role  # the last one reads what a viewer may see
    assert db.execute("SELECT id FROM horsies_tasks") == [("a",)]


def test_functions_that_only_granted_roles_may_call_at_all(db: Database, roles: dict[str, Database]) -> None:
    """A database whose owner has taken EXECUTE from PUBLIC: the grants name what an INSERT and an UPDATE call."""
    db.execute("REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA public FROM PUBLIC")
    for role in ("producer", "worker"):
        assert may(roles[role], SEND.format(role))
    assert may(roles["operator"], "UPDATE horsies_tasks SET updated_at = now() WHERE id = 'a'")


def test_functions_belong_to_the_owner_of_the_tables(empty_db: Database) -> None:
    """Migrated by a superuser, they must not run as one."""
    owner = f"owner_{empty_db.name[-8:]}"
    login(empty_db, owner)
    try:
        horsies_schema.upgrade(empty_db.url, "0012")
        for (name,) in empty_db.execute("SELECT tablename FROM pg_tables WHERE tablename LIKE 'horsies%%'"):
            empty_db.execute(f'ALTER TABLE {name} OWNER TO "{owner}"')
        horsies_schema.upgrade(empty_db.url)
        owners = "SELECT DISTINCT proowner::regrole::text FROM pg_proc WHERE proname LIKE 'horsies%%' AND prosecdef"
        assert empty_db.execute(owners) == [(owner,)]
    finally:
        empty_db.execute(f'DROP OWNED BY "{owner}" CASCADE')
        empty_db.execute(f'DROP ROLE "{owner}"')


# -- the other roles -----------------------------------------------------------------------------


def test_worker(roles: dict[str, Database]) -> None:
    worker = roles["worker"]
    for table in TABLES:
        assert may(worker, f"SELECT * FROM {table}")
        assert may(worker, f"DELETE FROM {table} WHERE false")
    assert may(worker, "INSERT INTO horsies_heartbeats (task_id, sender_id, role) VALUES ('a', 'w', 'runner')")
    assert may(worker, CANCEL)
    assert not may(worker, "DROP TABLE horsies_tasks")
    assert not may(worker, "ALTER TABLE horsies_tasks DISABLE TRIGGER ALL")


def test_operator(roles: dict[str, Database]) -> None:
    operator = roles["operator"]
    assert may(operator, "SELECT kwargs, result FROM horsies_tasks")
    assert may(operator, CANCEL)
    assert may(operator, "INSERT INTO horsies_queue_state (queue_name, paused_at) VALUES ('q', now())")
    assert may(operator, "UPDATE horsies_schedule_state SET run_requested_at = now()")
    assert not may(operator, SEND.format("b"))
    assert not may(operator, "DELETE FROM horsies_tasks WHERE id = 'a'")
    assert not may(operator, "DELETE FROM horsies_workflows")
    assert not may(operator, "TRUNCATE horsies_tasks CASCADE")
    assert not may(operator, "UPDATE horsies_schedule_state SET next_run_at = now()")


def test_an_operator_rewrites_nothing_that_its_verbs_do_not_write(roles: dict[str, Database]) -> None:
    """Not what a task is and was given, nor what fences workers off; and it cannot make a task COMPLETED."""
    attacks = {
        f"UPDATE {table} SET {column} = {column}"
        for table in TABLES
        for column in written(table)
        if column not in printed.OPERATED_COLUMNS.get(table, ())
    }
    for column in ("task_name", "args", "kwargs", "queue_name", "priority", "claim_generation", "completed_at"):
        assert f"UPDATE horsies_tasks SET {column} = {column}" in attacks
    for column in ("parent_workflow_id", "depth", "name"):
        assert f"UPDATE horsies_workflows SET {column} = {column}" in attacks
    for column in ("task_name", "args", "kwargs", "args_from"):
        assert f"UPDATE horsies_workflow_tasks SET {column} = {column}" in attacks
    attacks |= {f"DELETE FROM {table}" for table in TABLES if table != "horsies_schedules"}
    assert allowed(roles["operator"], sorted(attacks)) == []


def test_a_purge_deletes_only_what_has_ended(db: Database, roles: dict[str, Database]) -> None:
    ended = factories.task(db, "FAILED")
    purge = "SELECT id FROM horsies_purge_tasks(ARRAY['a', %s])"
    assert roles["operator"].execute(purge, ended) == [(ended,)]
    assert db.execute("SELECT id FROM horsies_tasks") == [("a",)]
    for role in ("producer", "viewer", "stranger"):
        assert not may(roles[role], "SELECT horsies_purge_tasks('{}')"), role


@pytest.mark.breaks("W1", "W2", "W3", "W4", "W6", "W8")
async def test_a_purge_by_function_keeps_the_tasks_of_a_live_run(db: Database, roles: dict[str, Database]) -> None:
    async with make_app(db) as app:
        tasks = workflow_app.register(app)
        one = tasks.number.node()(1)
        await app.workflow("mine", [one, tasks.plus.node()(from_node(one), 2)]).start_async()
    (task_id,) = db.execute("SELECT id FROM horsies_tasks WHERE is_workflow_task")[0]
    factories.finish(db, task_id, 1)
    assert roles["operator"].execute("SELECT id FROM horsies_purge_tasks(ARRAY[%s])", task_id) == []
    db.execute("UPDATE horsies_workflows SET status = 'CANCELLED', completed_at = now(), error = '{}'")
    assert roles["operator"].execute("SELECT id FROM horsies_purge_tasks(ARRAY[%s])", task_id) == [(task_id,)]


WORKERS_ONLY = {"start_workflow", "stop_workflows"}


@pytest.mark.parametrize(
    "file", ["batches.sql", "control.sql", "operate.sql", "recover.sql", "schedules.sql", "workflows.sql"]
)
def test_an_operator_may_run_every_statement_of_its_verbs(roles: dict[str, Database], file: str) -> None:
    refused = []
    with psycopg.connect(roles["operator"].url, autocommit=True) as connection:
        for name, statement in load("horsies._pg", file).items():
            nulls = f"({', '.join(['NULL'] * len(statement.params))})" if statement.params else ""
            connection.execute(f"PREPARE one AS {statement.sql}")  # type: ignore[call-overload]
            try:
                connection.execute(f"EXPLAIN EXECUTE one{nulls}")  # type: ignore[call-overload]
                if name in WORKERS_ONLY:  # functions are looked at when they are called
                    connection.execute(f"EXECUTE one{nulls}")  # type: ignore[call-overload]
            except psycopg.errors.InsufficientPrivilege:
                refused.append(name)
            connection.execute("DEALLOCATE one")
    assert set(refused) == (WORKERS_ONLY if file == "workflows.sql" else set())


async def test_what_an_operator_does_with_runs_works(db: Database, roles: dict[str, Database]) -> None:
    async with make_app(db) as app:
        tasks = workflow_app.register(app)
        one = tasks.number.node()(1)
        run = await app.workflow("mine", [one, tasks.plus.node()(from_node(one), 2)]).start_async()
    async with async_app_on(roles["operator"]) as app:
        runs = app.get_broker().workflows
        assert await runs.pause(run.workflow_id)
        assert await runs.resume(run.workflow_id)
        assert await runs.cancel(run.workflow_id)
        assert await runs.retry(run.workflow_id)
    assert db.execute("SELECT status FROM horsies_workflows") == [("RUNNING",)]


# -- times that would stop every worker ----------------------------------------------------------


@pytest.mark.parametrize("column", ["sent_at", "enqueued_at", "good_until"])
@pytest.mark.parametrize("time", ["4713-01-01 BC", "-infinity", "infinity", "294276-01-01"])
def test_a_producer_writes_no_time_that_no_program_can_read(roles: dict[str, Database], column: str, time: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation, match="time_range"):
        roles["producer"].execute(f"INSERT INTO horsies_tasks (id, task_name, {column}) VALUES ('b', 't', '{time}')")


@pytest.mark.parametrize(
    ("of_run", "of_node"),
    [
        ({"sent_at": "4713-01-01 BC"}, {}),
        ({}, {"good_until": "294276-01-01"}),
        ({}, {"good_until": "-infinity", "dependencies": [1]}),
        ({}, {"ttl": 1e11}),
        ({}, {"ttl": 1e11, "dependencies": [1]}),
    ],
)
def test_nor_through_a_start(roles: dict[str, Database], of_run: dict[str, str], of_node: dict[str, object]) -> None:
    node = {
        "id": "n", "node_id": "n", "task_name": "t", "queue_name": "default", "priority": 100, "dependencies": [],
        "dependents": [], "join_type": "all", "allow_failed": False, "max_retries": 0, "task_id": "task-n", **of_node,
    }  # fmt: skip
    run = {"id": "w", "name": "w", "on_error": "fail", "sent_at": "2026-01-01T00:00:00+00:00", "nodes": [node]}
    with pytest.raises(psycopg.errors.CheckViolation, match="time_range"):
        roles["producer"].execute("SELECT horsies_start_workflow(%s::jsonb)", json.dumps({**run, **of_run}))
    assert roles["producer"].execute("SELECT id FROM horsies_workflows") == []


SCHEDULES = load("horsies._pg", "schedules.sql")


async def test_who_may_steer_schedules(db: Database, roles: dict[str, Database]) -> None:
    """Every role but the producer lists; the operator pauses and runs; the worker does all of it."""
    async with scheduling(roles["worker"], schedule("s", Interval(hours=1))) as scheduler:
        for role, looks, acts in (
            ("producer", False, False), ("viewer", True, False), ("operator", True, True), ("worker", True, True),
        ):  # fmt: skip
            for name, allowed in (
                ("list_schedules", looks), ("request_run", acts), ("pause_schedule", acts), ("resume_schedule", acts),
            ):  # fmt: skip
                sql = SCHEDULES[name].sql.replace("$1::varchar", "'s'").replace("$1::int", "NULL")
                sql = sql.replace("$2::interval", "interval '1 s'").replace("$5::boolean", "NULL")
                sql = sql.replace("$3::varchar", "NULL").replace("$4::varchar[]", "NULL::varchar[]")
                assert may(roles[role], sql) == allowed, (role, name)
        assert not may(roles["operator"], "INSERT INTO horsies_schedule_state (schedule_name) VALUES ('mine')")
        assert not may(roles["operator"], "UPDATE horsies_schedule_state SET run_count = 7")
        # and the worker's role fires what the operator's has asked for
        roles["operator"].execute(SCHEDULES["request_run"].sql.replace("$1::varchar", "'s'"))
        await scheduler.run_once()
    assert db.value("SELECT run_count FROM horsies_schedule_state") == 1


async def test_who_may_make_schedules(db: Database, roles: dict[str, Database]) -> None:
    """The operator makes, changes and deletes; a viewer sees all but the arguments; a producer sees nothing."""
    made = schedule("s", Interval(hours=1))
    async with make_app(roles["operator"]) as operator, make_app(roles["viewer"]) as viewer:
        await operator.schedules.put_async(made)
        await operator.schedules.put_async(replace(made, kwargs={"a": 2}))
        found = await viewer.schedules.get_async("s")
        assert found is not None
        assert (found.version, found.kwargs, found.told_pattern) == (2, None, "every 1:00:00")
        assert (await operator.schedules.get_async("s")).kwargs == {"a": 2}  # pyright: ignore[reportOptionalMemberAccess]
        assert [one.is_data for one in await viewer.schedules.list_async()] == [True]
        assert await viewer.schedules.history_async("s") == []
        with pytest.raises(BrokerError, match="horsies-migrate grants"):
            await viewer.schedules.put_async(made)
        with pytest.raises(BrokerError, match="horsies-migrate grants"):
            await viewer.schedules.delete_async("s")
        async with scheduling(roles["worker"]) as scheduler:
            await operator.schedules.run_now_async("s")
            await scheduler.run_once()
        assert [one.status for one in await viewer.schedules.history_async("s")] == ["PENDING"]
        assert await operator.schedules.delete_async("s")
    async with make_app(roles["producer"]) as producer:
        for refused in (producer.schedules.list_async(), producer.schedules.put_async(made)):
            with pytest.raises(BrokerError, match="permission denied"):
                await refused
    assert not may(roles["operator"], "UPDATE horsies_schedules SET version = 7")
    assert not may(roles["operator"], "SELECT horsies_schedule_changed()")


# -- printing and running them -------------------------------------------------------------------


def test_in_a_schema_of_its_own(empty_db: Database) -> None:
    horsies_schema.upgrade(empty_db.url, schema="jobs")
    with accounts(empty_db, schema="jobs") as found:
        found["producer"].execute(SEND.format("b").replace("horsies_tasks", "jobs.horsies_tasks"))
        found["producer"].execute("SELECT jobs.horsies_cancel_tasks(ARRAY['b'])")
        assert not may(found["producer"], "UPDATE jobs.horsies_tasks SET result = '{}'")
        assert empty_db.execute("SELECT id, status FROM jobs.horsies_tasks") == [("b", "CANCELLED")]


OLD = """
CREATE ROLE "{prefix}producer" NOLOGIN; CREATE ROLE "{prefix}viewer" NOLOGIN;
GRANT SELECT, INSERT ON horsies_tasks, horsies_workflows, horsies_workflow_tasks TO "{prefix}producer";
GRANT UPDATE (status, claimed_by_worker_id, result, error_code, failed_reason) ON horsies_tasks TO "{prefix}producer";
GRANT SELECT (id, failed_reason) ON horsies_tasks TO "{prefix}viewer";
GRANT SELECT ON horsies_task_attempts TO "{prefix}viewer";
"""


def test_they_take_back_what_an_older_release_granted(db: Database) -> None:
    with accounts(db, before=OLD) as found:
        for attack in (
            "UPDATE horsies_tasks SET result = '{}'", "UPDATE horsies_tasks SET claimed_by_worker_id = 'me'",
            "INSERT INTO horsies_tasks (id, task_name, status) VALUES ('f', 't', 'PENDING')",
            "INSERT INTO horsies_workflows (id, name) VALUES ('f', 't')",
        ):  # fmt: skip
            assert not may(found["producer"], attack), attack
        assert may(found["producer"], SEND.format("b"))
        for attack in ("SELECT failed_reason FROM horsies_tasks", "SELECT error_message FROM horsies_task_attempts"):
            assert not may(found["viewer"], attack), attack


async def test_new_code_works_with_older_grants_until_then(empty_db: Database) -> None:
    """A fleet is upgraded before the grants are run again, and a role may have been made by hand."""
    await horsies_schema.upgrade_async(empty_db.url, "0012")
    prefix = f"o{empty_db.name[-8:]}_"
    grants = OLD.replace("{prefix}", prefix) + f'GRANT SELECT ON horsies_alembic_version TO "{prefix}producer"'
    try:
        empty_db.execute(grants)
        producer = login(empty_db, f"{prefix}producer_login", f'IN ROLE "{prefix}producer"')
        await horsies_schema.upgrade_async(empty_db.url)
        async with async_app_on(producer) as app:
            tasks = workflow_app.register(app)
            assert await (await tasks.number.send_async(1)).cancel_async() is CancelResult.CANCELLED
            await app.workflow("mine", [tasks.number.node()(1)]).start_async()
        assert not may(producer, "SELECT horsies_cancel_workflow('w')")  # which it never could
    finally:
        for role in ("producer_login", "producer", "viewer"):
            empty_db.execute(f'DROP OWNED BY "{prefix}{role}"')
            empty_db.execute(f'DROP ROLE "{prefix}{role}"')


def test_a_second_run_changes_nothing_and_a_database_that_is_behind_is_refused(db: Database) -> None:
    with accounts(db) as found:
        prefix = account(found["producer"]).removesuffix("producer_login")
        rights = "SELECT relname, relacl::text FROM pg_class WHERE relname LIKE 'horsies%%' ORDER BY 1"
        before = db.execute(rights)
        db.execute(horsies_schema.grants(prefix=prefix))
        assert db.execute(rights) == before
        db.execute("UPDATE horsies_alembic_version SET version_num = '0013'")
        with pytest.raises(psycopg.errors.RaiseException, match="run `horsies-migrate up` first"):
            db.execute(horsies_schema.grants(prefix=prefix))


def test_they_say_who_must_run_them_and_run_where_the_roles_exist(empty_db: Database) -> None:
    """An owner without CREATEROLE runs them when an administrator has made the roles."""
    printed_sql = horsies_schema.grants(prefix=f"o{empty_db.name[-8:]}_")
    assert "CREATEROLE" in printed_sql
    owner = f"o{empty_db.name[-8:]}_owner"
    names = [f"o{empty_db.name[-8:]}_{role}" for role in ROLES]
    mine = login(empty_db, owner)
    empty_db.execute(f'GRANT CREATE ON SCHEMA public TO "{owner}"')
    try:
        horsies_schema.upgrade(mine.url)
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match=r"create role|CREATEROLE"):
            mine.execute(printed_sql)
        for name in names:
            empty_db.execute(f'CREATE ROLE "{name}" NOLOGIN')
        mine.execute(printed_sql)
    finally:
        for name in (*names, owner):
            if empty_db.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", name):
                empty_db.execute(f'DROP OWNED BY "{name}" CASCADE')
                empty_db.execute(f'DROP ROLE "{name}"')


def test_every_column_that_grants_name_exists() -> None:
    assert set(printed.ATTEMPT_COLUMNS) <= set(Base.metadata.tables["horsies_task_attempts"].columns.keys())
    for table, columns in printed.OPERATED_COLUMNS.items():
        assert set(columns) <= set(Base.metadata.tables[table].columns.keys())
    for table, columns in printed.PRIVATE.items():
        assert columns <= set(Base.metadata.tables[table].columns.keys())
    assert set(printed.SENT_COLUMNS) <= set(Base.metadata.tables["horsies_tasks"].columns.keys())


OPEN = {
    "horsies_tasks.error_code", "horsies_tasks.finalizing_by_worker_id", "horsies_task_attempts.error_code",
    "horsies_worker_states.queue_priorities", "horsies_worker_states.queue_max_concurrency",
    "horsies_worker_states.recovery_config",
    "horsies_queue_state.declared", "horsies_queue_state.override", "horsies_queue_state.policy",
    "horsies_limits.declared", "horsies_limits.override", "horsies_limits.policy", "horsies_schedules.pattern",
}  # fmt: skip
"""Free text and JSON that a viewer may see: codes, names and settings."""


def test_every_free_text_is_private_or_known_to_be_harmless() -> None:
    found = {
        f"{name}.{column.name}"
        for name, table in Base.metadata.tables.items()
        for column in table.columns
        if isinstance(column.type, Text | JSON) and column.name not in printed.PRIVATE.get(name, ())
    }
    assert found <= OPEN, "is it a message, an argument or a result? then it belongs into PRIVATE"
