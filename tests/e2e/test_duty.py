"""Several real workers take turns in listening. Their poll interval is a minute: what starts sooner was not polled."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, tasks_on, worker

CONFIG: dict[str, Any] = {"resilience": {"notify_poll_interval_ms": 60_000}}
LATE_MS = 10_000
"""Far less than the poll, far more than a turn on a busy machine."""

# The session that listens holds a lock of the group, whose last byte is 0; those that wait are in the procedure.
ON_DUTY = """
SELECT i.worker_id FROM pg_locks l JOIN horsies_worker_instances i ON i.backend_pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND l.objid::bigint % 256 = 0
   AND l.mode = 'ExclusiveLock' AND i.stopped_at IS NULL
   AND ((l.classid::bigint << 32) | l.objid::bigint) IS DISTINCT FROM i.lock_key
"""
IN_LINE = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND state = 'active' AND query LIKE '%CALL%horsies_wait_for_duty%'
   AND pid <> pg_backend_pid()
"""
LOOKING = """
SELECT pid, xact_start FROM pg_stat_activity
 WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event = 'relation'
   AND query LIKE '%horsies_wait_for_duty%'
"""
LOOKS_BEHIND_A_LOCK = f"SELECT count(*) FROM ({LOOKING}) AS x"
# A session whose client was frozen between Parse and Bind stays active and waits for its client: it runs nothing.
BUSY = """
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND state = 'active'
   AND wait_event IS DISTINCT FROM 'ClientRead'
   AND query NOT LIKE '%horsies_wait_for_duty%' AND pid <> pg_backend_pid()
"""


@contextmanager
def fleet(db: Database, count: int, *, processes: int = 1, **config: Any) -> Iterator[list[WorkerProcess]]:
    """So many workers, of which one is on duty and the others wait."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(worker(db, processes=processes, wait=False, **CONFIG, **config)) for _ in range(count)
        ]
        for one in workers:
            one.wait_up()
        settled(db, count)
        yield workers


def settled(db: Database, count: int) -> None:
    eventually(lambda: on_duty(db) is not None and db.execute(IN_LINE)[0][0] == count - 1, timeout=30)


def settle_statements(db: Database) -> None:
    """Wait until the server has answered every claim. A worker claims once more after a task, and one that is frozen
    while this claim is on its way would get the next task."""
    looks = 3
    for _ in range(looks):  # a backend that has not read its socket yet is idle for a moment
        eventually(lambda: db.value(BUSY) == 0)


def on_duty(db: Database) -> str | None:
    rows = db.execute(ON_DUTY)
    return rows[0][0] if len(rows) == 1 else None


def member(workers: list[WorkerProcess], worker_id: str | None) -> WorkerProcess:
    return next(one for one in workers if one.worker_id == worker_id)


def ran_on(db: Database, task_id: str) -> str:
    return db.execute("SELECT worker_id FROM horsies_task_attempts WHERE task_id = %s", task_id)[0][0]


def test_one_of_several_workers_answers_and_a_killed_one_is_replaced_at_once(db: Database) -> None:
    with fleet(db, 3) as workers, tasks_on(db, **CONFIG) as tasks:
        first = on_duty(db)
        handle = tasks.add.send(1, 2)
        assert handle.get(LATE_MS).ok == 3
        assert ran_on(db, handle.task_id) == first
        victim = member(workers, first)
        victim.kill_all()
        assert tasks.add.send(2, 2).get(LATE_MS).ok == 4
        settled(db, 2)
        assert on_duty(db) != first


def test_locked_tasks_cost_no_worker_its_session(db: Database) -> None:
    """Without the lock on its session a worker that cannot beat meanwhile is declared dead."""
    sessions = "SELECT worker_id, backend_pid FROM horsies_worker_instances ORDER BY 1"
    with fleet(db, 3), tasks_on(db, **CONFIG) as tasks:
        eventually(lambda: db.value("SELECT count(lock_key) FROM horsies_worker_instances") == 3)
        before = db.execute(sessions)
        with psycopg.connect(db.url) as holder:
            holder.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
            # until both have looked for late tasks in vain: their next look has begun anew
            eventually(lambda: db.value(LOOKS_BEHIND_A_LOCK) == 2)
            seen = db.execute(LOOKING)
            eventually(lambda: not {*seen} & {*db.execute(LOOKING)})
        settled(db, 3)
        assert tasks.add.send(1, 2).get(LATE_MS).ok == 3
        eventually(lambda: db.value("SELECT min(beats) FROM horsies_worker_instances") > 3)
        assert db.execute(sessions) == before


@pytest.mark.parametrize("frozen", [1, 3])
def test_frozen_workers_on_duty_do_not_hold_tasks_up(db: Database, frozen: int) -> None:
    with fleet(db, 5) as workers, tasks_on(db, **CONFIG) as tasks:
        stopped: list[WorkerProcess] = []
        try:
            for _ in range(frozen):
                handle = tasks.add.send(1, 1)
                assert handle.get(LATE_MS).ok == 2
                # whichever answered: the one on duty, or one that acts for it
                stopped.append(member(workers, ran_on(db, handle.task_id)))
                stopped[-1].freeze()
                settle_statements(db)
            for number in range(3):
                assert tasks.add.send(number, 1).get(LATE_MS).ok == number + 1
        finally:
            for one in stopped:
                one.thaw()
        assert tasks.add.send(5, 5).get(LATE_MS).ok == 10


def test_a_burst_is_shared_by_all_workers(db: Database) -> None:
    with fleet(db, 3) as workers, tasks_on(db, **CONFIG) as tasks:
        handles = tasks.sleep.send_many([tasks.sleep.call(1.0) for _ in range(3)])
        assert all(handle.get(LATE_MS).is_ok() for handle in handles)
        assert {ran_on(db, handle.task_id) for handle in handles} == {one.worker_id for one in workers}


def test_a_worker_without_room_hands_over_and_comes_back(db: Database, tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    with fleet(db, 2) as workers, tasks_on(db, **CONFIG) as tasks:
        busy = [tasks.cooperative.send(str(path)) for path in paths]
        eventually(lambda: all(path.exists() for path in paths))
        waiting = tasks.add.send(1, 2)
        cancelled = busy[0].cancel()
        assert cancelled
        assert waiting.get(LATE_MS).ok == 3
        busy[1].cancel()
        for one in busy:
            assert one.get(LATE_MS).is_err()  # its attempt is written
        settled(db, 2)
        assert {ran_on(db, one.task_id) for one in busy} == {one.worker_id for one in workers}


def test_a_running_task_of_a_worker_that_does_not_listen_is_cancelled_soon(db: Database, tmp_path: Path) -> None:
    with fleet(db, 2), tasks_on(db, **CONFIG) as tasks:
        path = tmp_path / "started"
        handle = tasks.cooperative.send(str(path))
        eventually(path.exists)
        owner = db.execute("SELECT claimed_by_worker_id FROM horsies_tasks WHERE id = %s", handle.task_id)[0][0]
        other = tasks.add.send(1, 2)  # the owner has no place for it, and hands over
        assert other.get(LATE_MS).ok == 3
        assert ran_on(db, other.task_id) != owner
        eventually(lambda: on_duty(db) not in (None, owner))
        assert handle.cancel()
        assert handle.get(LATE_MS).err.error_code == "TASK_CANCELLED"


def test_a_worker_that_stops_hands_over_while_it_drains(db: Database, tmp_path: Path) -> None:
    with fleet(db, 2, processes=2) as workers, tasks_on(db, **CONFIG) as tasks:
        path = tmp_path / "started"
        long = tasks.cooperative.send(str(path))
        eventually(path.exists)
        owner = member(workers, db.execute("SELECT claimed_by_worker_id FROM horsies_tasks")[0][0])
        owner.terminate()
        owner.wait_for_log("stopping")
        assert tasks.add.send(1, 2).get(LATE_MS).ok == 3
        assert owner.is_running
        long.cancel()
        assert owner.wait() == 0


def test_a_delayed_task_and_a_resumed_queue_wake_the_worker_on_duty(db: Database) -> None:
    with fleet(db, 3), tasks_on(db, **CONFIG) as tasks:
        assert tasks.add.schedule(1.5, 1, 2).get(LATE_MS).ok == 3
        broker = tasks.app.get_broker()
        tasks.app.run_sync("pause", lambda: broker.pause_queue("default"))
        handle = tasks.add.send(2, 2)
        assert not handle.get(700).is_ok()
        tasks.app.run_sync("resume", lambda: broker.resume_queue("default"))
        assert handle.get(LATE_MS).ok == 4


def test_every_task_is_run_at_most_once_while_a_worker_is_killed(db: Database) -> None:
    with fleet(db, 3) as workers, tasks_on(db, **CONFIG) as tasks:
        handles = [tasks.add.send(number, 0) for number in range(150)]
        workers[0].kill_all()
        handles += [tasks.add.send(number, 0) for number in range(150, 300)]
        ended = [handle.get(60_000) for handle in handles]
        lost = [result for result in ended if not result.is_ok()]
        assert all(result.err.error_code == "WORKER_CRASHED" for result in lost), json.dumps([str(one) for one in lost])
        assert len(lost) < len(ended)
        assert db.execute(
            "SELECT max(n) FROM (SELECT count(*) AS n FROM horsies_task_attempts GROUP BY task_id) x"
        ) == [(1,)]
