"""Longer troubles between a worker and its server: packets that vanish, a role that is locked out, nobody at home."""

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from horsies import AttemptOutcome, gather
from tests.support import factories
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.factories import ago
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import Chaos, check_invariants, tasks_on, worker

LONG_MS = 60_000


@pytest.mark.long
def test_a_silent_partition(db: Database, tmp_path: Path) -> None:
    """F38: nothing arrives in either direction, nothing is refused. Others recover its tasks; when the packets flow
    again its late result is refused, and it is a good worker again."""
    chaos = Chaos(db, tmp_path)
    with ChaosProxy(db.url) as proxy, tasks_on(db) as tasks, worker(proxy.url, folder=tmp_path) as alone:
        (once,), (again,) = chaos.send(tasks.chaos, 1, 5.0), chaos.send(tasks.chaos_retried, 1, 90.0)
        eventually(lambda: chaos.starts(once) == chaos.starts(again) == 1)
        with worker(db, folder=tmp_path) as other:
            proxy.set(Mode.DROP)
            assert str(once.get(LONG_MS).err.error_code) == "WORKER_CRASHED"
            # its own look at the clock: a statement that hangs is given up after a while, then it fences itself
            alone.wait_for_log(f"task {again.task_id} (chaos_retried) attempt 1: no contact", timeout=40)
            before = factories.read(db, once.task_id)
            proxy.set(Mode.PASS)
            proxy.cut()  # as the kernel does when it hears of a connection that the other side has given up
            alone.wait_for_log(f"task {once.task_id} attempt 1: CLAIM_LOST", timeout=40)
            assert factories.read(db, once.task_id) == before
            other.terminate()
            other.wait()
        assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
        assert [attempt.outcome for attempt in once.attempts()] == [AttemptOutcome.WORKER_FAILURE]
    chaos.check(allowed=["L2"])  # the retried one was in its second run when its worker was told to leave


@pytest.fixture
def account(db: Database) -> Iterator[str]:
    """A login of its own for the worker."""
    name = f"worker_{uuid.uuid4().hex[:8]}"
    db.execute(f"CREATE ROLE {name} LOGIN SUPERUSER")
    yield name
    db.execute(f"DROP ROLE {name}")


@contextmanager
def locked_out(db: Database, account: str) -> Iterator[None]:
    db.execute(f"ALTER ROLE {account} NOLOGIN")
    db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", account)
    try:
        yield
    finally:
        db.execute(f"ALTER ROLE {account} LOGIN")


def test_a_role_that_is_locked_out_while_it_works(db: Database, account: str, tmp_path: Path) -> None:
    """F42: no busy loop, what runs finishes, and its results are written when the role may come back."""
    chaos = Chaos(db, tmp_path)
    url = db.url.replace("postgres@", f"{account}@")
    assert account in url
    with tasks_on(db) as tasks, worker(url, folder=tmp_path) as process:
        short, long = chaos.send(tasks.chaos, 1, 0.5), chaos.send(tasks.chaos, 1, 4.0)
        eventually(lambda: chaos.starts(short[0]) == chaos.starts(long[0]) == 1)
        parent = psutil.Process(process.pid)
        with locked_out(db, account):
            waiting = chaos.send(tasks.chaos, 20)
            eventually(lambda: sum(line[2] == "end" for line in chaos.lines()) >= 2, timeout=20)
            process.wait_for_log("trying again", times=5)
            used = sum(parent.cpu_times()[:2])
            process.wait_for_log("trying again", times=10)
            assert sum(parent.cpu_times()[:2]) - used < 1.0
            assert process.is_running
            assert "Traceback" not in process.log
            assert not any(chaos.starts(handle) for handle in waiting)
        results = gather([*short, *long, *waiting], timeout_ms=LONG_MS)
        assert all(result.is_ok() for result in results), results
    assert db.value("SELECT count(*) FROM horsies_task_attempts WHERE outcome <> 'COMPLETED'") == 0
    chaos.check()


def test_nobody_was_at_home_for_ten_minutes(db: Database, tmp_path: Path) -> None:
    """F31: everything that the dead left is recovered once, in batches, by whoever comes first."""
    dead = {
        "claimed_by_worker_id": "worker-of-yesterday",
        "enqueued_at": ago(minutes=12),
        "created_at": ago(minutes=12),
    }
    for _ in range(40):
        factories.task(db, "RUNNING", task_name="add", kwargs='{"a":1}', claimed_at=ago(minutes=11),
                       started_at=ago(minutes=11), **dead)  # fmt: skip
        factories.task(db, "CLAIMED", task_name="add", kwargs='{"a":1}', claimed_at=ago(minutes=11),
                       claim_expires_at=ago(minutes=10), **dead)  # fmt: skip
    db.execute(
        """INSERT INTO horsies_tasks (id, task_name, kwargs, status, claimed_by_worker_id, claimed_at, started_at,
                                      worker_pid, claim_generation, enqueued_at, created_at)
           SELECT gen_random_uuid()::text, task_name, kwargs, status, claimed_by_worker_id, claimed_at, started_at,
                  1, 1, enqueued_at, created_at FROM horsies_tasks, generate_series(1, 29) WHERE status = 'RUNNING'"""
    )
    ended = "SELECT count(*) FROM horsies_tasks WHERE status = %s"
    with tasks_on(db) as tasks, worker(db, folder=tmp_path) as one, worker(db, folder=tmp_path) as other:
        eventually(lambda: db.value(ended, "FAILED") == 1_200, timeout=30)
        eventually(lambda: db.value(ended, "COMPLETED") == 40, timeout=30)
        assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
        assert one.is_running
        assert other.is_running
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 1_241
    check_invariants(db)
