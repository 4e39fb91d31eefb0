"""Operators control real workers at run time: drain, resume, resize."""

import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, check_invariants, tasks_on, worker

CONFIG: dict[str, Any] = {"recovery": {"worker_state_interval_ms": 1_000}}


def workers_command(db: Database, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "horsies.cli", "workers", *arguments, "--database-url", db.url]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def counts(db: Database) -> dict[str, int]:
    return dict(db.execute("SELECT status, count(*) FROM horsies_tasks GROUP BY status"))


def pids_of(one: WorkerProcess) -> set[int]:
    return {process.pid for process in one.children()}


def test_a_drained_worker_finishes_what_runs_and_gives_back_what_has_not_started(db: Database, tmp_path: Path) -> None:
    with worker(db, processes=1, prefetch_buffer=3, **CONFIG) as one, tasks_on(db, prefetch_buffer=3) as tasks:
        gate = tmp_path / "gate"
        running = tasks.gated.send(1, str(gate))
        eventually(lambda: counts(db) == {"RUNNING": 1})
        waiting = tasks.add.send_many([(k, 1) for k in range(3)])
        eventually(lambda: counts(db) == {"RUNNING": 1, "CLAIMED": 3})
        assert workers_command(db, "drain", one.worker_id, "--no-wait").returncode == 0
        eventually(lambda: counts(db) == {"RUNNING": 1, "PENDING": 3})
        with ThreadPoolExecutor(1) as thread:
            draining = thread.submit(workers_command, db, "drain", one.worker_id)
            gate.touch()
            done = draining.result()
        assert done.returncode == 0, done
        assert f"worker {one.worker_id} is drained" in done.stdout
        assert running.get(0).is_ok()
        assert one.is_running
        assert " drained " in workers_command(db, "list").stdout
        assert counts(db) == {"COMPLETED": 1, "PENDING": 3}
        resumed = workers_command(db, "resume", one.worker_id[:8])
        assert resumed.returncode == 0, resumed
        assert [handle.get(5_000).ok for handle in waiting] == [1, 2, 3]
        assert one.log.count("drained: this worker has no task") == 1
        check_invariants(db)


@pytest.mark.long
def test_the_duty_passes_on_and_a_worker_that_hears_nothing_is_reached_by_its_heartbeat(db: Database) -> None:
    config = {**CONFIG, "resilience": {"notify_poll_interval_ms": 60_000}}
    with worker(db, processes=1, **config) as first, worker(db, processes=1, **config) as second, tasks_on(db) as tasks:
        # the first one is on duty: the other has to take it over, or the task would wait for the poll
        assert workers_command(db, "drain", first.worker_id).returncode == 0
        assert tasks.add.send(5, 5).get(5_000).ok == 10
        done = workers_command(db, "drain", "--all", "--yes", "--timeout", "20s")
        assert done.returncode == 0, done
        assert all(f"worker {one.worker_id} is drained" in done.stdout for one in (first, second))
        sent = tasks.add.send(1, 1)
        assert sent.get(700).is_err()
        assert workers_command(db, "resume", "--all", "--yes").returncode == 0
        assert sent.get(5_000).ok == 2


def test_resizing_starts_children_at_once_and_never_kills_a_running_task(db: Database, tmp_path: Path) -> None:
    with worker(db, processes=1, **CONFIG) as one, tasks_on(db) as tasks:
        grown = workers_command(db, "resize", one.worker_id, "4")
        assert (grown.returncode, grown.stdout.count("is resized to 4")) == (0, 1), grown
        assert len(pids_of(one)) == 4
        gate = tmp_path / "gate"
        slow = tasks.gated.send_many([(number, str(gate)) for number in range(4)])
        eventually(lambda: db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'RUNNING'") == 4)
        late = workers_command(db, "resize", one.worker_id, "2", "--timeout", "500ms")
        assert late.returncode == 1, late
        assert "does not have 2 children yet" in late.stderr
        more = tasks.sleep.send_many([(0.3,)] * 4)
        gate.touch()
        # it shrinks as tasks end, none is interrupted, and at most two of the next ones run at a time
        eventually(lambda: counts(db) == {"COMPLETED": 8})
        query = """
            SELECT max((SELECT count(*) FROM horsies_task_attempts b WHERE b.task_id = ANY (%s)
                         AND b.started_at <= a.started_at AND b.finished_at > a.started_at))
              FROM horsies_task_attempts a"""
        assert db.value(query, [handle.task_id for handle in more]) == 2
        assert all(handle.get(0).is_ok() for handle in (*slow, *more))
        eventually(lambda: len(pids_of(one)) == 2)
        assert db.value("SELECT max(attempt) FROM horsies_task_attempts") == 1
        check_invariants(db)


def test_a_resize_does_not_wait_until_the_worker_is_drained(db: Database) -> None:
    with worker(db, processes=1, **CONFIG) as one, tasks_on(db) as tasks:
        running = tasks.sleep.send(60)
        eventually(lambda: counts(db) == {"RUNNING": 1})
        late = workers_command(db, "drain", one.worker_id, "--timeout", "200ms")
        assert (late.returncode, "it will be drained when they have ended" in late.stderr) == (1, True), late
        grown = workers_command(db, "resize", one.worker_id, "2", "--timeout", "20s")
        assert (grown.returncode, grown.stdout.count("is resized to 2")) == (0, 1), grown
        # the resize holds, and the worker is not drained yet
        late = workers_command(db, "drain", one.worker_id, "--timeout", "200ms")
        assert (late.returncode, "it will be drained when they have ended" in late.stderr) == (1, True), late
        running.cancel()
        drained = workers_command(db, "drain", one.worker_id)
        assert (drained.returncode, f"worker {one.worker_id} is drained" in drained.stdout) == (0, True), drained


def test_async_tasks_go_on_while_the_pool_shrinks(db: Database) -> None:
    with worker(db, processes=3, **CONFIG) as one, tasks_on(db) as tasks:
        naps = tasks.nap.send_many([(1.0,)] * 30)
        eventually(lambda: db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'RUNNING'") == 30)
        done = workers_command(db, "resize", one.worker_id, "1")
        assert done.returncode == 0, done
        assert all(handle.get(5_000).is_ok() for handle in naps)
        assert len(pids_of(one)) == 1
        assert db.value("SELECT max(attempt) FROM horsies_task_attempts") == 1


def test_a_worker_that_was_declared_dead_is_still_drained_and_resized_under_its_new_id(db: Database) -> None:
    with worker(db, processes=1, **CONFIG) as one, worker(db, processes=1, **CONFIG), tasks_on(db) as tasks:
        assert workers_command(db, "drain", one.worker_id).returncode == 0
        assert workers_command(db, "resize", one.worker_id, "2").returncode == 0
        former = one.worker_id
        # as another worker does that has found it dead
        dead = "UPDATE horsies_worker_instances SET judged_dead_at = now(), judged_by = 'another' WHERE worker_id = %s"
        db.execute(dead, former)
        at = db.value("SELECT max(wanted_at) FROM horsies_worker_instances")
        one.wait_for_log(" is up", times=2)
        now = "SELECT state, wanted_processes FROM horsies_worker_instances WHERE wanted_at > %s"
        eventually(lambda: db.execute(now, at) == [("DRAINED", 2)])
        eventually(lambda: len(pids_of(one)) == 2)
        handles = tasks.add.send_many([(k, 0) for k in range(20)])
        assert [handle.get(10_000).ok for handle in handles] == list(range(20))
        assert len(db.execute("SELECT DISTINCT worker_id FROM horsies_task_attempts")) == 1
        one.signal(signal.SIGTERM)
        assert one.wait() == 0
