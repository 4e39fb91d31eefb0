"""F45: a failover to a standby that has not got the last commits.

Rows travel back in time: what has ended runs, what was claimed is pending, what was sent is not there. Workers, waiters
and workflows go on from what the new leader has.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from horsies import PostgresConfig, RetrievalCode, TaskHandle, WorkflowStatus, from_node
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from tests.support import workers
from tests.support.replica import Replica, replicated
from tests.support.waiting import eventually
from tests.support.workers import Chaos, WorkerProcess, tasks_on, worker

pytestmark = pytest.mark.timeout(120)

PATIENCE_MS = 30_000
PATIENT = dict.fromkeys(
    ("running_stale_threshold_ms", "claimed_stale_threshold_ms", "finalizing_stale_threshold_ms"), 60_000
)
"""The reaper is not to help: what these tests see, the worker does itself."""


@pytest.fixture
def replica() -> Iterator[Replica]:
    with replicated() as found:
        yield found


class Scene:
    """A worker and a sender on both servers; `lag()` is the moment from which the standby gets nothing more."""

    def __init__(self, replica: Replica, tasks: SimpleNamespace, one: WorkerProcess, folder: Path) -> None:
        self.replica, self.tasks, self.worker, self.folder = replica, tasks, one, folder
        self.gate = folder / "gate"
        self.books = Chaos(replica.db, folder)

    def send(self, k: int) -> TaskHandle[int]:
        return self.tasks.gated.send(k, str(self.gate))

    def starts(self, k: int) -> int:
        return sum(line[0] == k and line[2] == "start" for line in self.books.lines())

    def wait_started(self, k: int, times: int = 1) -> None:
        eventually(lambda: self.starts(k) == times, timeout=30, describe=f"start {times} of {k}")

    def lag(self) -> None:
        self.replica.catch_up()
        self.replica.cut()
        gone = "SELECT NOT EXISTS (SELECT FROM pg_stat_wal_receiver)"
        eventually(lambda: self.replica.db.value(gone), timeout=20, describe="nothing is received")

    def wait_status(self, task_id: str, status: str) -> None:
        now = "SELECT status FROM horsies_tasks WHERE id = %s"
        eventually(lambda: self.replica.db.execute(now, task_id) == [(status,)], timeout=30, describe=status)

    def end(self) -> None:
        """All is done: the rules hold on the server that is left."""
        live = "SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')"
        eventually(lambda: not self.replica.db.value(live), timeout=30, describe="the end of all tasks")
        workers.check_invariants(self.replica.db)


@contextmanager
def scene(replica: Replica, folder: Path, **recovery: int) -> Iterator[Scene]:
    config: Any = {"recovery": {**PATIENT, **recovery}}
    with (
        worker(replica.url, folder=folder, **config) as one,
        tasks_on(replica.url, **config) as tasks,
    ):
        yield Scene(replica, tasks, one, folder)


def test_an_end_that_was_lost_is_written_again(replica: Replica, tmp_path: Path) -> None:
    """COMPLETED on the old leader, RUNNING on the new one: the task does not run a second time."""
    with scene(replica, tmp_path) as s:
        handle = s.send(1)
        s.wait_started(1)
        s.lag()
        s.gate.touch()
        assert handle.get(PATIENCE_MS).ok == 2
        s.replica.fail_over()
        s.wait_status(handle.task_id, "COMPLETED")
        assert s.tasks.app.handle(handle.task_id).get(PATIENCE_MS).ok == 2
        # on a busy machine the worker may not have read the answer of the old leader: then it just tries again
        known = ("the database has lost its end", "finalize: ConnectionDoesNotExistError")
        eventually(lambda: any(words in s.worker.log for words in known))
        assert "CLAIM_LOST" not in s.worker.log
        s.end()
        assert s.starts(1) == 1


def test_a_lost_end_that_is_not_kept_is_recovered_like_a_crash(replica: Replica, tmp_path: Path) -> None:
    """Its worker is gone too: another one finds the row, and the task, which must not be repeated, fails."""
    with scene(replica, tmp_path, running_stale_threshold_ms=3_000) as s:
        handle = s.send(1)
        s.wait_started(1)
        s.lag()
        s.gate.touch()
        assert handle.get(PATIENCE_MS).ok == 2
        s.worker.kill_all()
        s.replica.fail_over()
        with worker(replica.url, folder=tmp_path):
            s.wait_status(handle.task_id, "FAILED")
            error = s.tasks.app.handle(handle.task_id).get(PATIENCE_MS).err
            assert error is not None
            assert error.error_code == "WORKER_CRASHED"
            s.end()
        assert s.starts(1) == 1


def test_a_claim_that_was_lost_goes_on_under_the_next_one(replica: Replica, tmp_path: Path) -> None:
    """RUNNING on the old leader, PENDING on the new one: its worker claims it again, and does not start it again."""
    with scene(replica, tmp_path, runner_heartbeat_interval_ms=20_000) as s:
        s.worker.freeze()
        handle = s.send(1)
        s.lag()
        s.worker.thaw()
        s.wait_started(1)
        # the next one comes too late to tell of the loss before the claim
        first_beat = "SELECT count(*) FROM horsies_heartbeats WHERE role = 'runner'"
        eventually(lambda: s.replica.primary.value(first_beat), timeout=30, describe="the first heartbeat")
        s.replica.fail_over()
        s.worker.wait_for_log("the database has lost the claim under which it runs here", timeout=30)
        s.gate.touch()
        assert handle.get(PATIENCE_MS).ok == 2
        s.end()
        assert s.starts(1) == 1


def test_a_task_that_the_new_leader_does_not_know_as_claimed_is_stopped(replica: Replica, tmp_path: Path) -> None:
    """Its queue is paused on the new leader, so that no claim comes first: the run is stopped, and writes nothing."""
    with scene(replica, tmp_path) as s:
        s.replica.primary.execute("INSERT INTO horsies_queue_state (queue_name, paused_at) VALUES ('default', now())")
        handle = s.send(1)
        s.lag()
        s.replica.primary.execute("UPDATE horsies_queue_state SET paused_at = NULL")
        s.wait_started(1)
        s.replica.fail_over()
        s.worker.wait_for_log("CLAIM_LOST, stopping it", timeout=30)
        row = "SELECT status, claim_generation, result FROM horsies_tasks"
        assert s.replica.db.execute(row) == [("PENDING", 0, None)]
        s.gate.touch()
        s.replica.db.execute("UPDATE horsies_queue_state SET paused_at = NULL")
        assert handle.get(PATIENCE_MS).ok == 2
        s.end()
        assert s.starts(1) == 2
        assert s.replica.db.value("SELECT count(*) FROM horsies_task_attempts") == 1


def test_a_task_that_is_not_there_any_more(replica: Replica, tmp_path: Path) -> None:
    """Its run is stopped, and the caller that waits for it learns that there is no such task."""
    with scene(replica, tmp_path) as s, ThreadPoolExecutor() as pool:
        kept = s.tasks.add.send(1, 2)
        assert kept.get(PATIENCE_MS).ok == 3
        s.lag()
        handle = s.send(1)
        s.wait_started(1)
        waiting = pool.submit(handle.get, PATIENCE_MS)
        s.replica.fail_over()
        error = waiting.result(30).err
        assert error is not None
        assert error.error_code == RetrievalCode.TASK_NOT_FOUND
        s.worker.wait_for_log("CLAIM_LOST, stopping it", timeout=30)
        # the worker has a place again, and works on
        assert s.tasks.add.send(2, 3).get(PATIENCE_MS).ok == 5
        s.end()
        assert s.replica.db.value("SELECT count(*) FROM horsies_tasks WHERE id = %s", handle.task_id) == 0


def test_a_workflow_goes_on_from_what_the_new_leader_has(replica: Replica, tmp_path: Path) -> None:
    """The first node has ended and the second runs, on the old leader; on the new one, the first one still runs."""
    second_gate = tmp_path / "second"
    with scene(replica, tmp_path) as s, ThreadPoolExecutor() as pool:
        first = s.tasks.gated.node(node_id="first")(1, str(s.gate))
        second = s.tasks.gated.node(node_id="second")(from_node(first), str(second_gate))
        handle = s.tasks.app.workflow("two steps", [first, second], output=second).start()
        s.wait_started(1)
        s.lag()
        s.gate.touch()
        s.wait_started(2)
        waiting = pool.submit(handle.get, PATIENCE_MS)
        s.replica.fail_over()
        s.wait_started(2, times=2)
        second_gate.touch()
        assert waiting.result(30).ok == 4
        assert handle.status() is WorkflowStatus.COMPLETED
        s.end()
        assert s.starts(1) == 1


def test_a_worker_that_the_new_leader_does_not_know(replica: Replica, tmp_path: Path) -> None:
    """It was started after the standby's last look: it continues under another id, and works."""
    replica.catch_up()
    replica.cut()
    with scene(replica, tmp_path) as s:
        s.send(1)
        s.wait_started(1)
        s.replica.fail_over()
        s.worker.wait_for_log("continuing under a new worker id", timeout=30)
        s.gate.touch()
        assert s.tasks.add.send(2, 3).get(PATIENCE_MS).ok == 5
        s.end()
        assert s.replica.db.value("SELECT count(*) FROM horsies_worker_instances WHERE judged_dead_at IS NULL") == 1


async def test_a_leader_that_has_lost_its_place_is_not_believed(replica: Replica) -> None:
    """Both servers accept writes. A worker that has seen the new one does not take the word of the old one."""
    queries = Queries(None, Identity())
    old, new = await asyncpg.connect(replica.primary.url), await asyncpg.connect(replica.db.url)
    try:
        assert await queries.confirm_lost(old, [("unknown", 1)]) == {"unknown"}
        replica.promote()
        eventually(lambda: not replica.db.value("SELECT pg_is_in_recovery()"), timeout=20, describe="the new primary")
        # it cannot know better before it has met the new one
        assert await queries.confirm_lost(old, [("unknown", 1)]) == {"unknown"}
        assert await queries.confirm_lost(new, [("unknown", 1)]) == {"unknown"}
        with pytest.raises(ConnectionError, match="on timeline 1, and another one leads on timeline 2"):
            await queries.confirm_lost(old, [("unknown", 1)])
        assert await queries.confirm_lost(new, [("unknown", 1)]) == {"unknown"}
    finally:
        await old.close()
        await new.close()


async def test_sessions_are_not_opened_to_a_leader_that_has_lost_its_place(replica: Replica) -> None:
    queries = Queries(None, Identity())
    replica.promote()
    eventually(lambda: not replica.db.value("SELECT pg_is_in_recovery()"), timeout=20, describe="the new primary")
    new = Session(PostgresConfig(replica.db.url), "claim", queries)
    old = Session(PostgresConfig(replica.primary.url), "claim", queries)
    try:
        assert await new.run(queries.list_owned) == []
        with pytest.raises(ConnectionError, match="another one leads"):
            await old.run(queries.list_owned)
    finally:
        await new.close()
        await old.close()
