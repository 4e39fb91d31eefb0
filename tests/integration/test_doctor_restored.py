"""`horsies doctor` on rows that were copied into this database: told at once, until something that lives here writes.
tests/e2e/test_restore.py does the same with pg_dump and real workers."""

from datetime import timedelta

import psycopg
import pytest

import horsies_schema
from horsies.operate.doctor import Finding, Severity
from tests.support import factories
from tests.support.findings import look, trouble
from tests.support.postgres import Database
from tests.support.roles import accounts
from tests.support.waiting import eventually

WORKERS = "horsies_worker_instances"
BEAT = f"UPDATE {WORKERS} SET beats = beats + 1, beat_at = now() WHERE worker_id = %s"


@pytest.fixture
def fresh(empty_db: Database) -> Database:
    horsies_schema.upgrade(empty_db.url)
    return empty_db


def register(db: Database, name: str) -> None:
    factories.insert(db, WORKERS, worker_id=name, period_ms=5000, queues=["default"])


def copy(db: Database, *names: str) -> None:
    """Copy the rows of workers that have beaten two seconds ago somewhere else, and a task that one of them runs."""
    with psycopg.connect(db.url) as other:
        other.execute(f"CREATE TEMP TABLE there (LIKE {WORKERS} INCLUDING DEFAULTS)")
        for name in names:
            other.execute(
                "INSERT INTO there (worker_id, period_ms, queues, beats, beat_at)"
                " VALUES (%s, 5000, '{default}', 7, now() - interval '2 s')",
                (name,),
            )
        with other.cursor().copy("COPY there TO STDOUT") as read:
            rows = b"".join(bytes(block) for block in read)
        with other.cursor().copy(f"COPY {WORKERS} FROM STDIN") as write:
            write.write(rows)
    factories.task(db, "RUNNING")


def told(db: Database | str) -> Finding | None:
    return trouble(look(db)).get("restored")


def told_at_once(db: Database) -> None:
    found = eventually(lambda: told(db), timeout=15)  # the server counts rows a moment later
    assert found.severity is Severity.PROBLEM
    assert found.what.startswith("the rows were copied into this database, by pg_restore or logical replication; ")
    assert "1 task in flight" in found.what


def counted(db: Database, column: str) -> int:
    return db.value(f"SELECT {column} FROM pg_stat_all_tables WHERE relid = '{WORKERS}'::regclass")


@pytest.mark.parametrize("names", [("one",), ("one", "two")])
@pytest.mark.parametrize("sign", ["a new worker", "a beat", "a scheduler"])
def test_copied_rows_are_told_at_once_until_something_lives_here(
    fresh: Database, names: tuple[str, ...], sign: str
) -> None:
    copy(fresh, *names)
    told_at_once(fresh)
    match sign:
        case "a new worker":
            register(fresh, "new")
        case "a beat":
            fresh.execute(BEAT, "one")
        case _:
            factories.insert(
                fresh, "horsies_schedulers", id="new", hostname="host-1", pid=1, tasks=[], workflows=[], schedules=[]
            )
    assert told(fresh) is None


def test_a_role_that_does_not_see_whole_rows_is_told_after_the_silence(fresh: Database) -> None:
    copy(fresh, "one")
    told_at_once(fresh)
    with accounts(fresh) as urls:
        assert told(urls["viewer"]) is None
        found = trouble(look(urls["viewer"], silence=timedelta(seconds=1)))["restored"]
        assert found.severity is Severity.PROBLEM


def test_a_live_worker_whose_beats_are_not_counted_yet_is_no_copy(fresh: Database) -> None:
    factories.task(fresh, "RUNNING")
    register(fresh, "one")
    eventually(lambda: counted(fresh, "n_tup_ins") == 1, timeout=15)
    with psycopg.connect(fresh.url, autocommit=True) as worker:
        worker.execute("SELECT 1")
        for _ in range(3):
            worker.execute(BEAT, ("one",))
            assert told(fresh) is None


def test_tables_that_were_copied_long_ago_are_no_copy(fresh: Database) -> None:
    """Also when the server has lost its counts, and counts the first worker that starts since."""
    copy(fresh, "one", "two")
    told_at_once(fresh)
    fresh.execute(BEAT, "one")
    eventually(lambda: counted(fresh, "n_tup_upd") == 1, timeout=15)
    assert told(fresh) is None
    fresh.execute(f"SELECT pg_stat_reset_single_table_counters('{WORKERS}'::regclass)")
    register(fresh, "three")
    eventually(lambda: counted(fresh, "n_tup_ins") == 1, timeout=15)
    assert counted(fresh, "n_tup_upd") == 0
    assert told(fresh) is None
