"""Up, down and up again: every revision, alone and all together, and who may migrate what."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import timedelta
from importlib import import_module
from pathlib import Path

import psycopg
import pytest
from alembic.script import ScriptDirectory

import horsies_schema
from horsies import TaskError, TaskResult, testing
from horsies_schema import MigrationError, connection as migrations, embedded, migrate
from tests.support import catalog, factories, places, postgres
from tests.support.apps import make_app
from tests.support.postgres import Database
from tests.support.roles import account, login, may
from tests.support.schema_dump import DUMP
from tests.support.waiting import eventually

TIME_RANGE = import_module("horsies_schema.migrations.versions.0017_time_range")
REVISIONS = sorted(
    script.revision for script in ScriptDirectory(str(Path(migrate.__file__).parent / "migrations")).walk_revisions()
)


def test_revisions_are_numbered_without_holes() -> None:
    assert [f"{n:04}" for n in range(1, len(REVISIONS) + 1)] == REVISIONS
    assert horsies_schema.head() == REVISIONS[-1]


@pytest.fixture(scope="module")
def walked() -> Iterator[Database]:
    """A database that goes up from revision to revision, test by test: each would start from none otherwise."""
    with postgres.database(template_name="template0", options="ENCODING 'UTF8'") as database:
        yield database


@pytest.mark.parametrize("revision", REVISIONS)
def test_down_and_up_again_from_every_revision_leaves_an_identical_dump(walked: Database, revision: str) -> None:
    if (horsies_schema.current(walked.url) or "") > revision:
        horsies_schema.downgrade(walked.url, "base")  # the tests run in another order
    horsies_schema.upgrade(walked.url, revision)
    before = catalog.dump(walked.url)
    assert "horsies_tasks" in before
    previous = f"{int(revision) - 1:04}" if revision != REVISIONS[0] else "base"
    horsies_schema.downgrade(walked.url, previous)
    assert catalog.dump(walked.url) != before
    horsies_schema.upgrade(walked.url, revision)
    assert catalog.dump(walked.url) == before


def test_base_leaves_nothing_behind(empty_db: Database) -> None:
    before = catalog.dump(empty_db.url)
    horsies_schema.upgrade(empty_db.url)
    horsies_schema.downgrade(empty_db.url, "base")
    assert catalog.dump(empty_db.url) == before
    assert horsies_schema.current(empty_db.url) is None


def test_downgrade_keeps_the_rows_of_tables_that_stay(empty_db: Database) -> None:
    horsies_schema.upgrade(empty_db.url)
    empty_db.execute("INSERT INTO horsies_tasks (id, task_name) VALUES ('a', 'kept')")
    horsies_schema.downgrade(empty_db.url, "0001")
    horsies_schema.upgrade(empty_db.url)
    assert empty_db.execute("SELECT id, task_name, status FROM horsies_tasks") == [("a", "kept", "PENDING")]


def test_rows_of_an_older_release_are_worked_off_and_kept(empty_db: Database) -> None:
    """Those of the revision before the functions for sends: waiting ones run after the upgrade, and ended ones are the
    same after the way back."""
    horsies_schema.upgrade(empty_db.url, "0022")
    for status in ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED", "RUNNING", "CLAIMED"):
        factories.task(empty_db, status, id=status.lower())
    factories.task(empty_db, id="pending")
    factories.task(empty_db, id="keyed", unique_key="k")
    factories.workflow(empty_db, "COMPLETED")
    kept = "SELECT * FROM horsies_tasks WHERE terminal_at IS NOT NULL AND task_name = 'add' ORDER BY id"
    before = empty_db.execute(kept)
    assert len(before) == 4
    horsies_schema.upgrade(empty_db.url)
    with make_app(empty_db) as app:

        @app.task("add")
        def add(a: int, b: int) -> TaskResult[int, TaskError]:
            return TaskResult(ok=a + b)

        once = add.with_options(unique_key="k", unique_for=timedelta(minutes=1))
        assert once.send(1, 2).task_id == "keyed"
        with testing.real(app, in_place=True) as database:
            assert database.drain().completed == 2
        assert [app.handle(task_id, add).get(0).ok for task_id in ("pending", "keyed", "completed")] == [3, 3, 1]
        not_stored = add.with_options(store_result=False).send(1, 2)
        with testing.real(app, in_place=True) as database:
            database.drain()
    with pytest.raises(MigrationError, match="DELETE FROM horsies_tasks WHERE status = 'COMPLETED' AND result IS NULL"):
        horsies_schema.downgrade(empty_db.url, "0022")
    empty_db.execute("DELETE FROM horsies_tasks WHERE id = %s", not_stored.task_id)
    horsies_schema.downgrade(empty_db.url, "0022")
    assert [row for row in empty_db.execute(kept) if row[0] not in ("pending", "keyed")] == before
    horsies_schema.upgrade(empty_db.url)


BEFORE_THE_RANGE = f"{int(TIME_RANGE.revision) - 1:04}"


@pytest.mark.parametrize(
    ("time", "kept"), [("4713-01-01 BC", 1970), ("-infinity", 1970), ("294276-01-01", 9000), ("infinity", 9000)]
)
def test_times_that_no_program_can_read_are_moved_into_range(empty_db: Database, time: str, kept: int) -> None:
    """In every column of every table, all of a row at once; ordinary rows keep what they have."""
    horsies_schema.upgrade(empty_db.url, BEFORE_THE_RANGE)
    rows: dict[str, dict[str, object]] = {
        "horsies_tasks": {
            "id": "t", "task_name": "t", "status": "RUNNING", "claimed_by_worker_id": "w", "good_until": "now()",
        },
        "horsies_task_attempts": {"task_id": "t", "attempt": 1, "outcome": "COMPLETED"},
        "horsies_heartbeats": {"task_id": "t", "sender_id": "w", "role": "runner"},
        "horsies_worker_states": {"worker_id": "w", "hostname": "h", "pid": 1, "processes": 1},
        "horsies_worker_instances": {"worker_id": "w", "period_ms": 2**31 - 1, "judged_by": "v"},
        "horsies_task_sets": {"sha": "s", "names": []},
        "horsies_task_names": {"task_name": "n"},
        "horsies_schedule_state": {"schedule_name": "s"},
        "horsies_queue_state": {"queue_name": "q"},
        "horsies_workflows": {"id": "w", "name": "n", "status": "FAILED"},
        "horsies_workflow_tasks": {
            "id": "n", "workflow_id": "w", "task_index": 0, "node_id": "n", "task_name": "t", "ttl": "5000 years",
        },
    }  # fmt: skip
    not_running = {"claim_expires_at", "completed_at", "failed_at", "terminal_at"}
    for table, row in rows.items():
        times = [name for name in TIME_RANGE.TIMES[table] if table != "horsies_tasks" or name not in not_running]
        given: dict[str, object] = {**row, **dict.fromkeys(times, time)}
        if table == "horsies_tasks":  # it starts before its good_until
            given |= {"good_until": None} if time == "infinity" else {}
            given |= {"started_at": "4713-01-02 BC", "good_until": "4713-02-01 BC"} if kept == 1970 else {}
            given |= {"good_until": "infinity"} if time == "294276-01-01" else {}
        columns, values = ", ".join(given), ", ".join(["%s"] * len(given))
        empty_db.execute(f"INSERT INTO {table} ({columns}) VALUES ({values})", *given.values())
    empty_db.execute("INSERT INTO horsies_tasks (id, task_name, enqueued_at) VALUES ('fine', 't', '2020-01-01')")

    horsies_schema.upgrade(empty_db.url)
    for table in rows:
        for name in TIME_RANGE.TIMES[table]:
            found = empty_db.execute(
                f"SELECT DISTINCT extract(year FROM ({name} + interval '2 s') AT TIME ZONE 'UTC')::int FROM {table}"
                f" WHERE {name} < '1970-01-02' OR {name} > '8999-01-01'"
            )
            assert found in ([(kept,)], [(1970,)] if kept == 1970 else [(9000,)], []), (table, name, found)
    assert empty_db.value("SELECT enqueued_at::date::text FROM horsies_tasks WHERE id = 'fine'") == "2020-01-01"
    assert empty_db.value("SELECT ttl::text FROM horsies_workflow_tasks") == "1000 years"
    assert empty_db.value("SELECT period_ms FROM horsies_worker_instances") == 3_600_000
    assert empty_db.execute("SELECT conname FROM pg_constraint WHERE NOT convalidated") == []


def test_rights_on_the_function_of_the_rules_outlast_its_new_arguments(empty_db: Database) -> None:
    """Where EXECUTE was taken from PUBLIC, a producer goes on without a new grant."""
    horsies_schema.upgrade(empty_db.url, BEFORE_THE_RANGE)
    producer = login(empty_db, f"o{empty_db.name[-8:]}_producer")
    name = account(producer)
    try:
        empty_db.execute("REVOKE EXECUTE ON FUNCTION horsies_task_is_sound FROM PUBLIC")
        empty_db.execute(f'GRANT EXECUTE ON FUNCTION horsies_task_is_sound TO "{name}"')
        empty_db.execute(f'GRANT INSERT ON horsies_tasks TO "{name}"')
        for revision in ("head", BEFORE_THE_RANGE, "head"):
            move = horsies_schema.upgrade if revision == "head" else horsies_schema.downgrade
            move(empty_db.url, revision)
            assert may(producer, "INSERT INTO horsies_tasks (id, task_name) VALUES ('a', 't')")
            public = "SELECT has_function_privilege('public', 'horsies_task_is_sound'::regproc, 'EXECUTE')"
            assert empty_db.value(public) is False
    finally:
        empty_db.execute(f'DROP OWNED BY "{name}" CASCADE')
        empty_db.execute(f'DROP ROLE "{name}"')


def test_revision_0016_converts_withdrawn_tasks_and_nodes_and_back(empty_db: Database) -> None:
    horsies_schema.upgrade(empty_db.url, "0015")
    ahead = "date_trunc('second', now()) + interval '500 years'"
    empty_db.execute(
        f"""INSERT INTO horsies_tasks (id, task_name, enqueued_at, status, terminal_at, result)
            VALUES ('paused', 't', {ahead}, 'PENDING', NULL, NULL), ('ended', 't', {ahead}, 'CANCELLED', now(), '{{}}'),
                   ('delayed', 't', now() + interval '9 years', 'PENDING', NULL, NULL)"""
    )
    empty_db.execute("INSERT INTO horsies_workflows (id, name, status) VALUES ('w', 'w', 'RUNNING')")
    nodes = {"task": None, "workflow": '{"name":"w","nodes":[]}', "map": '{"map":{}}'}
    for index, (kind, kwargs) in enumerate(nodes.items()):
        empty_db.execute(
            "INSERT INTO horsies_workflow_tasks"
            " (id, workflow_id, task_index, node_id, task_name, kwargs, is_subworkflow)"
            " VALUES (%s, 'w', %s, %s, 't', %s, %s)",
            kind, index, kind, kwargs, kind != "task",
        )  # fmt: skip
    dates = "SELECT id, enqueued_at FROM horsies_tasks ORDER BY id"
    before = dict(empty_db.execute(dates))

    horsies_schema.upgrade(empty_db.url, "0016")
    assert empty_db.execute("SELECT id FROM horsies_tasks WHERE withdrawn") == [("paused",)]
    assert empty_db.value("SELECT max(enqueued_at) < now() + interval '10 years' FROM horsies_tasks")
    assert empty_db.execute("SELECT kind FROM horsies_workflow_tasks ORDER BY task_index") == [
        (kind,) for kind in nodes
    ]

    horsies_schema.downgrade(empty_db.url, "0015")
    after = dict(empty_db.execute(dates))
    assert (after["paused"], after["delayed"]) == (before["paused"], before["delayed"])
    assert empty_db.execute("SELECT is_subworkflow FROM horsies_workflow_tasks ORDER BY task_index") == [
        (False,), (True,), (True,),
    ]  # fmt: skip


def test_offline_sql_makes_the_same_database(empty_db: Database) -> None:
    text = horsies_schema.sql()
    subprocess.run(
        [postgres.bin_dir() / "psql", "-v", "ON_ERROR_STOP=1", "-q", "-d", empty_db.url],
        input=text, text=True, check=True, capture_output=True,
    )  # fmt: skip
    assert horsies_schema.current(empty_db.url) == horsies_schema.head()
    with postgres.database() as migrated:
        assert catalog.dump(empty_db.url) == catalog.dump(migrated.url)


def test_the_committed_dump_is_the_schema(db: Database) -> None:
    if db.value("SELECT current_setting('server_version_num')::int") // 10_000 != 18:
        pytest.skip("schema.sql is written from PostgreSQL 18, other versions print some clauses differently")
    committed = DUMP.read_text()
    assert catalog.dump(db.url) in committed, "run `just schema-dump` and review the difference"


@pytest.mark.parametrize("form", ["postgresql", "postgres", "postgresql+asyncpg", "postgresql+psycopg"])
def test_every_common_url_form_is_accepted(db: Database, form: str) -> None:
    url = db.url.replace("postgresql://", f"{form}://", 1)
    assert horsies_schema.current(url) == horsies_schema.head()
    horsies_schema.check(url)


def test_a_schema_of_its_own_beside_the_applications_tables(empty_db: Database) -> None:
    name = 'odd "name"; DROP'
    empty_db.execute("CREATE TABLE horsies_tasks (mine int)")
    horsies_schema.upgrade(empty_db.url, schema=name)
    assert horsies_schema.current(empty_db.url, schema=name) == horsies_schema.head()
    assert horsies_schema.current(empty_db.url) is None
    tables = empty_db.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", name)
    assert len(tables) == 19
    assert empty_db.execute("SELECT * FROM horsies_tasks") == []
    horsies_schema.downgrade(empty_db.url, "base", schema=name)
    assert empty_db.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", name) == []


# -- several at once, and others in the way ------------------------------------------------------


def test_two_processes_at_once_both_end_well(empty_db: Database) -> None:
    command = [sys.executable, "-m", "horsies_schema.cli", "up", "--url", empty_db.url]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for run in runs:
        out, err = run.communicate(timeout=60)
        # one that waited says for whom
        others = [line for line in err.splitlines() if not line.startswith("horsies-migrate: waiting: session ")]
        assert (run.returncode, out, others) == (0, f"at revision {horsies_schema.head()}\n", [])
    with postgres.database() as migrated:
        assert catalog.dump(empty_db.url) == catalog.dump(migrated.url)


def test_a_waiting_migration_lets_the_fleet_pass(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer holds the table; DDL queues behind it, and claims behind the DDL, but only for one slice."""
    monkeypatch.setattr(migrations, "LOCK_SLICE_MS", 300)
    horsies_schema.downgrade(db.url, "0005")
    with psycopg.connect(db.url) as writer, psycopg.connect(db.url, autocommit=True) as claimer:
        writer.execute("LOCK TABLE horsies_tasks IN ROW EXCLUSIVE MODE")  # as an open claim does
        migration = threading.Thread(target=horsies_schema.upgrade, args=(db.url,))
        migration.start()
        waiting = (
            "SELECT 1 FROM pg_locks WHERE relation = 'horsies_tasks'::regclass AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        # the first slice is waited out and given up (the waiter disappears), then tried again
        eventually(lambda: claimer.execute(waiting).fetchall(), describe="the migration waits for the table")
        claimer.execute("SET lock_timeout = '10s'")
        claimer.execute("UPDATE horsies_tasks SET priority = 5 WHERE id = 'nobody'")
        assert migration.is_alive()
        writer.rollback()
        migration.join(timeout=30)
        assert not migration.is_alive()
    assert horsies_schema.current(db.url) == horsies_schema.head()


def test_an_index_on_the_tasks_is_built_beside_writers_and_beside_other_migrations(db: Database) -> None:
    """The build waits for a transaction that began before it. Meanwhile tasks are written, and another migration waits
    for its turn, for which the build must not wait."""
    horsies_schema.downgrade(db.url, "0029")
    deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    before = db.value(deadlocks)
    waiting = (
        "SELECT 1 FROM pg_stat_progress_create_index WHERE phase LIKE 'waiting for%%' AND datname = current_database()"
    )
    with psycopg.connect(db.url) as older, psycopg.connect(db.url, autocommit=True) as writer:
        older.execute("INSERT INTO horsies_tasks (id, task_name) VALUES ('older', 't')")
        runs = [threading.Thread(target=horsies_schema.upgrade, args=(db.url,)) for _ in range(2)]
        runs[0].start()
        eventually(lambda: db.execute(waiting), describe="the build waits for the older transaction")
        runs[1].start()
        writer.execute("SET lock_timeout = '1s'")
        eventually(
            lambda: (
                db.value(
                    "SELECT count(*) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND application_name = 'horsies-migrate'"
                )
                == 2
            ),
            describe="the other migration waits",
        )
        writer.execute("INSERT INTO horsies_tasks (id, task_name) VALUES ('meanwhile', 't')")
        older.commit()
        for run in runs:
            run.join(timeout=60)
            assert not run.is_alive()
    assert db.value(deadlocks) == before
    with postgres.database() as migrated:
        assert catalog.dump(db.url) == catalog.dump(migrated.url)


def test_the_rest_of_an_interrupted_build_is_replaced(db: Database) -> None:
    horsies_schema.downgrade(db.url, "0029")
    db.execute("INSERT INTO horsies_tasks (id, task_name) VALUES ('a', 't'), ('b', 't')")
    for name in ("ix_horsies_tasks_unsuccessful", "ix_horsies_tasks_error_code_new"):
        with psycopg.connect(db.url, autocommit=True) as other, pytest.raises(psycopg.errors.UniqueViolation):
            other.execute(f"CREATE UNIQUE INDEX CONCURRENTLY {name} ON horsies_tasks (task_name)")
    horsies_schema.upgrade(db.url)
    with postgres.database() as migrated:
        assert catalog.dump(db.url) == catalog.dump(migrated.url)


def test_a_migration_that_waits_logs_for_whom(
    db: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(migrations, "LOCK_SLICE_MS", 50)
    monkeypatch.setattr(migrations, "LOCK_PATIENCE_S", 0.5)
    horsies_schema.downgrade(db.url, "0005")
    statements = {
        "locks on horsies_tasks": "LOCK TABLE horsies_tasks IN ROW EXCLUSIVE MODE",
        "the lock of migrations": f"SELECT pg_advisory_xact_lock({migrations.LOCK_KEY}, hashtext('public'))",
    }
    for what, statement in statements.items():
        caplog.clear()
        with psycopg.connect(db.url, application_name="report") as other, caplog.at_level(logging.WARNING):
            other.execute(statement)
            with pytest.raises(MigrationError, match="application 'report'") as caught:
                horsies_schema.upgrade(db.url)
            assert caught.value.code == 5
            told = f"waiting: session {other.info.backend_pid} (role "
        (line,) = (record.message for record in caplog.records if record.name == "horsies.migrate")
        assert line.startswith(told)
        assert line.endswith(f"application 'report') holds {what}")


def test_a_migration_that_never_gets_its_locks_says_so(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "LOCK_SLICE_MS", 50)
    monkeypatch.setattr(migrations, "LOCK_PATIENCE_S", 0.5)
    horsies_schema.downgrade(db.url, "0005")
    with psycopg.connect(db.url) as writer:
        writer.execute("LOCK TABLE horsies_tasks IN ROW EXCLUSIVE MODE")  # as an open claim does
        with pytest.raises(MigrationError, match="long transaction") as caught:
            horsies_schema.upgrade(db.url)
    assert caught.value.code == 5
    assert horsies_schema.current(db.url) == "0005"


def test_a_killed_migration_leaves_a_whole_revision(empty_db: Database) -> None:
    horsies_schema.upgrade(empty_db.url, "0001")
    with psycopg.connect(empty_db.url) as blocker:
        # 0002 adds a foreign key to the task table and has to wait here
        blocker.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        run = subprocess.Popen([sys.executable, "-m", "horsies_schema.cli", "up", "--url", empty_db.url])
        waiting = (
            "SELECT 1 FROM pg_locks WHERE relation = 'horsies_tasks'::regclass AND NOT granted"
            " AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        eventually(lambda: empty_db.execute(waiting), describe="the migration waits")
        run.send_signal(signal.SIGKILL)
        run.wait()
    eventually(
        lambda: (
            not empty_db.execute(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE application_name = 'horsies-migrate' AND datname = current_database()"
            )
        ),
        describe="the server has noticed",
    )
    assert horsies_schema.current(empty_db.url) == "0001"
    horsies_schema.upgrade(empty_db.url)
    with postgres.database() as migrated:
        assert catalog.dump(empty_db.url) == catalog.dump(migrated.url)


# -- databases that horsies cannot live in -------------------------------------------------------


def test_a_newer_database_is_not_migrated_and_is_fit_for_this_release(db: Database) -> None:
    db.execute("UPDATE horsies_alembic_version SET version_num = '9999'")
    with pytest.raises(MigrationError, match="at revision 9999, which is newer than this package knows") as caught:
        horsies_schema.upgrade(db.url)
    assert caught.value.code == 3
    assert horsies_schema.check(db.url) == "9999"


def test_two_rows_in_the_version_table_are_named(db: Database) -> None:
    db.execute("INSERT INTO horsies_alembic_version (version_num) VALUES ('0001')")
    told = rf"horsies_alembic_version has 2 rows \(0001, {horsies_schema.head()}\), not one: delete"
    for verb in (horsies_schema.upgrade, horsies_schema.check, horsies_schema.current):
        with pytest.raises(MigrationError, match=told) as caught:
            verb(db.url)
        assert caught.value.code == 3


@pytest.fixture
def latin1_db() -> Iterator[Database]:
    options = "ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
    if Database("", postgres.admin_url()).value("SELECT current_setting('server_version_num')::int") >= 150_000:
        options += " LOCALE_PROVIDER libc"  # a server whose default is the builtin C.UTF-8 allows nothing but UTF8
    with postgres.database(template_name="template0", options=options) as database:
        yield database


def test_another_encoding_is_refused(latin1_db: Database) -> None:
    with pytest.raises(MigrationError, match="encoding is LATIN1, horsies needs UTF8") as caught:
        horsies_schema.upgrade(latin1_db.url)
    assert caught.value.code == 3


def test_a_standby_is_refused() -> None:
    with places.temporary_directory() as directory:
        with embedded.start(directory) as primary:
            data = Path(Database("postgres", primary.url).value("SHOW data_directory"))
        signal_file = data / "standby.signal"
        signal_file.touch()
        owner = data.stat()
        os.chown(signal_file, owner.st_uid, owner.st_gid)
        with embedded.start(directory, settings={"hot_standby": "on", "restore_command": "/bin/false"}) as standby:
            with pytest.raises(MigrationError, match=r"in recovery .*connect to the primary") as caught:
                horsies_schema.upgrade(standby.url)
            assert caught.value.code == 3
            assert horsies_schema.current(standby.url) is None


def test_an_old_server_is_refused() -> None:
    problem = migrations.unsuitable(130_014, "UTF8", in_recovery=False)
    assert problem is not None
    assert "PostgreSQL 13" in problem
    assert "14 or newer" in problem
    assert migrations.unsuitable(140_000, "UTF8", in_recovery=False) is None


def test_the_functions_work_on_a_running_loop(db: Database) -> None:
    async def all_verbs() -> str | None:
        await horsies_schema.upgrade_async(db.url)
        await horsies_schema.check_async(db.url)
        return await horsies_schema.current_async(db.url)

    assert asyncio.run(all_verbs()) == horsies_schema.head()
