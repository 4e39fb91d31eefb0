"""A queue that is restored, to a point in time or from a dump: what doctor tells, and what workers do with it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import horsies_schema
from horsies import TaskHandle, TaskStatus
from horsies.operate.doctor import Severity
from tests.support import postgres
from tests.support.findings import look, trouble
from tests.support.operator import as_process
from tests.support.plain_server import PlainServer, plain_server
from tests.support.postgres import Database
from tests.support.snippets import ROOT, blocks_of
from tests.support.waiting import eventually
from tests.support.workers import Chaos, check_invariants, tasks_on, worker

LONG_MS = 40_000
AT_ONCE = {"silence": timedelta()}
HAS_BEATEN = "SELECT EXISTS (SELECT FROM horsies_worker_instances WHERE beats > 0)"


@contextmanager
def archived() -> Iterator[tuple[PlainServer, Database]]:
    """A server whose WAL is archived, with a migrated database and a base backup of it."""
    with plain_server(archive=True) as server:
        db = server.create("queue")
        horsies_schema.upgrade(db.url)
        server.take_backup()
        yield server, db


def runs(chaos: Chaos, handle: TaskHandle[Any], phase: str) -> list[str]:
    return [run for k, run, reached, *_ in chaos.lines() if k == chaos.keys[handle.task_id] and reached == phase]


def statuses(db: Database) -> dict[str, str]:
    return dict(db.execute("SELECT id, status FROM horsies_tasks"))


def moment(db: Database) -> str:
    """Now, for `recovery_target_time`. Everything before it has committed, and nothing after it has begun."""
    return db.value("SELECT clock_timestamp()::text")


def restored(server: PlainServer, target: str) -> None:
    server.archive_all()
    server.stop()
    server.restore(f"recovery_target_time = '{target}'")


def test_point_in_time(tmp_path: Path) -> None:
    """Before the moment: one task has ended, two run, two wait. After it all have ended, and more were sent."""
    with archived() as (server, db):
        chaos = Chaos(db, tmp_path)
        with tasks_on(db) as tasks:
            with worker(db, folder=tmp_path):
                (done,) = chaos.send(tasks.chaos, 1)
                assert done.get(LONG_MS).is_ok()
                once, retried = *chaos.send(tasks.chaos, 1, 4.0), *chaos.send(tasks.chaos_retried, 1, 4.0)
                eventually(lambda: runs(chaos, once, "start") and runs(chaos, retried, "start"), timeout=20)
                waiting = chaos.send(tasks.chaos, 2)
                acknowledged = {handle.task_id for handle in (done, once, retried, *waiting)}
                target = moment(db)
                gone = chaos.send(tasks.chaos, 1)
                for handle in (once, retried, *waiting, *gone):
                    assert handle.get(LONG_MS).is_ok()
            restored(server, target)
            # Nothing that was acknowledged before the moment is lost; what came later is not there.
            found = statuses(db)
            assert found.keys() == acknowledged
            assert [found[handle.task_id] for handle in (done, once, retried)] == ["COMPLETED", "RUNNING", "RUNNING"]

            bad = trouble(look(db, **AT_ONCE))["restored"]
            assert bad.severity is Severity.PROBLEM
            assert bad.what.startswith("the server was restored to a point in time (before ")
            assert "2 tasks in flight, 2 tasks waiting" in bad.what
            assert "`horsies queues pause default`" in bad.fix

            # As the page says: pause, look, decide, then start workers.
            assert as_process("queues", "pause", "default", url=db.url).code == 0
            words = ("tasks", "list", "--status", "running", "--status", "claimed", "--status", "pending", "--json")
            listed = json.loads(as_process(*words, url=db.url).out)["tasks"]
            assert {task["id"] for task in listed} == acknowledged - {done.task_id}
            ran = [once.task_id, waiting[0].task_id]  # as the application's own records say
            assert as_process("tasks", "cancel", *ran, "--yes", url=db.url).code == 0
            assert trouble(look(db, **AT_ONCE))["restored"].severity is Severity.PROBLEM
            with worker(db, folder=tmp_path):
                eventually(lambda: statuses(db)[once.task_id] in ("CANCELLED", "FAILED"), timeout=30)
                assert as_process("queues", "resume", "default", url=db.url).code == 0
                assert retried.get(LONG_MS).is_ok()
                assert waiting[1].get(LONG_MS).is_ok()
                told = trouble(look(db, **AT_ONCE))["restored"]
                assert told.severity is Severity.WARN
                assert "the server was restored to a point in time (before " in told.what
            assert waiting[0].info().status is TaskStatus.CANCELLED
            assert [len(runs(chaos, handle, "start")) for handle in (done, once, *waiting)] == [1, 1, 1, 2]
            for handle in gone:
                del chaos.keys[handle.task_id]
        chaos.check(allowed=["L4", "L5", "L7"])  # what ran after the moment is not in the rows


@pytest.mark.parametrize("part", ["", "-tables"], ids=["the whole database", "the tables of the queue"])
@pytest.mark.runs("docs/operations/backups.md", "sh titled")
def test_a_dump(tmp_path: Path, part: str) -> None:
    with plain_server() as server:
        db, copy = server.create("queue"), server.create("restored")
        horsies_schema.upgrade(db.url)
        chaos = Chaos(db, tmp_path)
        urls = {"DATABASE_URL": db.url, "NEW_DATABASE_URL": copy.url}
        with tasks_on(db) as tasks, worker(db, folder=tmp_path):
            (done,), (running,) = chaos.send(tasks.chaos, 1), chaos.send(tasks.chaos_retried, 1, 3.0)
            assert done.get(LONG_MS).is_ok()
            eventually(lambda: runs(chaos, running, "start") and db.value(HAS_BEATEN), timeout=20)
            run_script(f"dump{part}.sh", tmp_path, urls)
            assert running.get(LONG_MS).is_ok()
        run_script(f"restore{part}.sh", tmp_path, urls)
        assert statuses(copy) == {done.task_id: "COMPLETED", running.task_id: "RUNNING"}
        bad = eventually(lambda: trouble(look(copy)).get("restored"), timeout=20)
        assert bad.severity is Severity.PROBLEM
        assert bad.what.startswith("the rows were copied into this database, by pg_restore or logical replication; ")
        assert "1 task in flight" in bad.what
        with tasks_on(copy) as tasks, worker(copy, folder=tmp_path):
            eventually(lambda: statuses(copy)[running.task_id] == "COMPLETED", timeout=30)
            assert tasks.add.send(1, 2).get(LONG_MS).ok == 3
            assert "restored" not in trouble(look(copy))
            assert "restored" not in trouble(look(copy, **AT_ONCE))
        check_invariants(copy)


def run_script(name: str, folder: Path, variables: dict[str, str]) -> None:
    """Run a block of the page."""
    (code,) = [block.code for block in blocks_of(ROOT / "docs/operations/backups.md") if block.title == name]
    path = os.pathsep.join([str(postgres.bin_dir()), str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = {**os.environ, **variables, "PATH": path}
    done = subprocess.run(["sh", "-ec", code], cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_worker_that_lives_through_the_restore(tmp_path: Path) -> None:
    """It is frozen while the database is set back at the same address, and holds tasks whose claims are forgotten."""
    with archived() as (server, db):
        chaos = Chaos(db, tmp_path)
        with tasks_on(db) as tasks, worker(db, folder=tmp_path, processes=4) as one:

            def gated(gate: str) -> TaskHandle[Any]:
                (key,) = chaos.new_keys(1)
                handle = tasks.gated.send(key, str(tmp_path / gate))
                chaos.sent([handle], [key])
                return handle

            eventually(lambda: db.value(HAS_BEATEN), timeout=20)
            ended = gated("of ended")
            eventually(lambda: runs(chaos, ended, "start"), timeout=20)
            as_process("queues", "pause", "default", url=db.url)
            forgotten = gated("of forgotten")
            target = moment(db)
            (tmp_path / "of ended").touch()
            as_process("queues", "resume", "default", url=db.url)
            eventually(lambda: runs(chaos, forgotten, "start"), timeout=20)
            assert ended.get(LONG_MS).is_ok()
            gone = gated("of gone")
            eventually(lambda: runs(chaos, gone, "start"), timeout=20)
            one.freeze()
            try:
                restored(server, target)
                assert statuses(db) == {ended.task_id: "RUNNING", forgotten.task_id: "PENDING"}
                as_process("queues", "resume", "default", url=db.url)
            finally:
                one.thaw()
            # Its run of `gone` belongs to no row. Its run of `forgotten` goes on under the new claim, or a heartbeat
            # stops it first, and the task runs anew. It has the end of `ended`, and writes it again.
            eventually(lambda: statuses(db)[forgotten.task_id] == "RUNNING", timeout=40)
            (tmp_path / "of forgotten").touch()
            eventually(lambda: set(statuses(db).values()) == {"COMPLETED"}, timeout=40)
            assert statuses(db).keys() == {ended.task_id, forgotten.task_id}
            assert runs(chaos, forgotten, "end") == runs(chaos, forgotten, "start")[-1:]
            assert len(runs(chaos, ended, "start")) == 1
            one.wait_for_log(f"task {gone.task_id} (gated) attempt 1: CLAIM_LOST, stopping it", timeout=20)
            (tmp_path / "of gone").touch()
            assert tasks.add.send(1, 2).get(LONG_MS).ok == 3
            assert runs(chaos, gone, "end") == []
            del chaos.keys[gone.task_id]
        chaos.check(allowed=["L4", "L5", "L6"])
