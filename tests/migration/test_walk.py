"""Up, down and up again: every revision, alone and all together, and who may migrate what."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from alembic.script import ScriptDirectory

import horsies_schema
from horsies_schema import MigrationError, embedded, migrate
from tests.support import catalog, places, postgres
from tests.support.postgres import Database
from tests.support.waiting import eventually

REVISIONS = sorted(
    script.revision for script in ScriptDirectory(str(Path(migrate.__file__).parent / "migrations")).walk_revisions()
)


def test_revisions_are_numbered_without_holes() -> None:
    assert [f"{n:04}" for n in range(1, len(REVISIONS) + 1)] == REVISIONS
    assert horsies_schema.head() == REVISIONS[-1]


@pytest.mark.parametrize("revision", REVISIONS)
def test_down_and_up_again_from_every_revision_leaves_an_identical_dump(empty_db: Database, revision: str) -> None:
    horsies_schema.upgrade(empty_db.url, revision)
    before = catalog.dump(empty_db.url)
    assert "horsies_tasks" in before
    previous = f"{int(revision) - 1:04}" if revision != REVISIONS[0] else "base"
    horsies_schema.downgrade(empty_db.url, previous)
    assert catalog.dump(empty_db.url) != before
    horsies_schema.upgrade(empty_db.url, revision)
    assert catalog.dump(empty_db.url) == before


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
    committed = Path(migrate.__file__).with_name("schema.sql").read_text()
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
    assert len(tables) == 12
    assert empty_db.execute("SELECT * FROM horsies_tasks") == []
    horsies_schema.downgrade(empty_db.url, "base", schema=name)
    assert empty_db.execute("SELECT tablename FROM pg_tables WHERE schemaname = %s", name) == []


# -- several at once, and others in the way ------------------------------------------------------


def test_two_processes_at_once_both_end_well(empty_db: Database) -> None:
    command = [sys.executable, "-m", "horsies_schema.cli", "up", "--url", empty_db.url]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for run in runs:
        out, err = run.communicate(timeout=60)
        assert (run.returncode, out, err) == (0, f"at revision {horsies_schema.head()}\n", "")
    with postgres.database() as migrated:
        assert catalog.dump(empty_db.url) == catalog.dump(migrated.url)


def test_a_waiting_migration_lets_the_fleet_pass(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer holds the table; DDL queues behind it, and claims behind the DDL, but only for one slice."""
    monkeypatch.setattr(migrate, "LOCK_SLICE_MS", 300)
    horsies_schema.downgrade(db.url, "0005")
    with psycopg.connect(db.url) as writer, psycopg.connect(db.url, autocommit=True) as claimer:
        writer.execute("LOCK TABLE horsies_tasks IN ROW EXCLUSIVE MODE")  # as an open claim does
        migration = threading.Thread(target=horsies_schema.upgrade, args=(db.url,))
        migration.start()
        waiting = "SELECT 1 FROM pg_locks WHERE relation = 'horsies_tasks'::regclass AND NOT granted"
        # the first slice is waited out and given up (the waiter disappears), then tried again
        eventually(lambda: claimer.execute(waiting).fetchall(), describe="the migration waits for the table")
        claimer.execute("SET lock_timeout = '10s'")
        claimer.execute("UPDATE horsies_tasks SET priority = 5 WHERE id = 'nobody'")
        assert migration.is_alive()
        writer.rollback()
        migration.join(timeout=30)
        assert not migration.is_alive()
    assert horsies_schema.current(db.url) == horsies_schema.head()


def test_a_migration_that_never_gets_its_locks_says_so(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "LOCK_SLICE_MS", 50)
    monkeypatch.setattr(migrate, "LOCK_PATIENCE_S", 0.5)
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
        waiting = "SELECT 1 FROM pg_locks WHERE relation = 'horsies_tasks'::regclass AND NOT granted"
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


def test_a_newer_database_is_refused_in_one_sentence(db: Database) -> None:
    db.execute("UPDATE horsies_alembic_version SET version_num = '9999'")
    for verb in (horsies_schema.upgrade, horsies_schema.check):
        with pytest.raises(MigrationError, match="at revision 9999, which is newer than this package knows") as caught:
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
    problem = migrate.unsuitable(130_014, "UTF8", in_recovery=False)
    assert problem is not None
    assert "PostgreSQL 13" in problem
    assert "14 or newer" in problem
    assert migrate.unsuitable(140_000, "UTF8", in_recovery=False) is None


def test_the_functions_work_on_a_running_loop(db: Database) -> None:
    async def all_verbs() -> str | None:
        await horsies_schema.upgrade_async(db.url)
        await horsies_schema.check_async(db.url)
        return await horsies_schema.current_async(db.url)

    assert asyncio.run(all_verbs()) == horsies_schema.head()
