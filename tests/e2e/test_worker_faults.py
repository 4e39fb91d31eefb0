"""What must not break a worker: frozen, stopped, poisoned; its connections cut, its server gone, its tables locked.

The F numbers are those of the project's catalogue of faults; every test ends with the invariants.
"""

import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies import AttemptOutcome, TaskHandle, TaskStatus, gather
from horsies_worker.exit_codes import ExitCode
from tests.support import places
from tests.support.chaosproxy import ChaosProxy, Mode, When
from tests.support.own_server import own_server
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import Chaos, WorkerProcess, check_invariants, tasks_on, worker

LONG_MS = 30_000
SLOW_POLL = {"notify_poll_interval_ms": 60_000}
THRESHOLD_S = 3.0


def started(chaos: Chaos, *handles: TaskHandle[Any]) -> None:
    """Wait until the body of each has begun."""
    eventually(lambda: all(chaos.starts(handle) for handle in handles), timeout=20)


def counts(db: Database, outcome: str) -> int:
    return db.value("SELECT count(*) FROM horsies_task_attempts WHERE outcome = %s", outcome)


def attempts_of(db: Database, process: WorkerProcess) -> int:
    return db.value("SELECT count(*) FROM horsies_task_attempts WHERE worker_id = %s", process.worker_id)


def all_ok(handles: list[TaskHandle[Any]], timeout_ms: int = LONG_MS) -> bool:
    return all(result.is_ok() for result in gather(handles, timeout_ms=timeout_ms))


# -- processes ---------------------------------------------------------------------------------------


def test_a_worker_that_is_frozen_while_it_holds_the_lock_of_the_caps(db: Database, tmp_path: Path) -> None:
    """The server takes the lock from it sooner than from other transactions, which may be idle for 5 s."""
    point, config = tmp_path / "point", {"cluster_wide_cap": 2}
    with tasks_on(db, **config) as tasks, worker(db, folder=tmp_path, **config), psycopg.connect(db.url) as other:
        other.execute("SET idle_in_transaction_session_timeout = '4s'")
        other.commit()
        with worker(db, folder=tmp_path, wait=False, sync_points={"caps_locked": point}, **config) as frozen:
            eventually(point.exists, timeout=30, interval=0.01)
            other.execute("SELECT 1")
            locked = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
                " AND state = 'idle in transaction' AND query LIKE '%pg_advisory_xact_lock%'"
            )
            eventually(lambda: db.value(locked) == 0, timeout=20)
            other.execute("SELECT 1")  # it has not been idle for 4 s
            assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
            point.with_name("point.go").touch()
            frozen.wait_for_log("trying again")
            frozen.wait_up()
        other.rollback()
    check_invariants(db, cap=2)


def test_a_frozen_worker_is_replaced_and_writes_nothing(db: Database, tmp_path: Path) -> None:
    """F08: SIGSTOP of parent and children, recovery by another, SIGCONT."""
    chaos = Chaos(db, tmp_path)
    with tasks_on(db) as tasks, worker(db, folder=tmp_path) as frozen:
        (once,), (again,) = chaos.send(tasks.chaos, 1, 5.0), chaos.send(tasks.chaos_retried, 1, 5.0)
        started(chaos, once, again)
        with worker(db, folder=tmp_path) as other:
            frozen.freeze()
            try:
                assert str(once.get(LONG_MS).err.error_code) == "WORKER_CRASHED"
                assert again.get(LONG_MS).is_ok()
                before = db.execute("SELECT * FROM horsies_tasks ORDER BY id")
            finally:
                frozen.thaw()
            # told by its own heartbeat, or by the write of its late result
            frozen.wait_for_log("CLAIM_LOST", times=2)
            assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
            assert db.execute("SELECT * FROM horsies_tasks WHERE task_name <> 'add' ORDER BY id") == before
            assert [a.worker_id for a in again.attempts()] == [frozen.worker_id, other.worker_id]
            # it is a good worker again
            assert other.stop() == 0
            assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
            assert [a.outcome for a in once.attempts()] == [AttemptOutcome.WORKER_FAILURE]
    # two runs side by side: what a freeze allows, and nothing else does
    chaos.check(allowed=["L6"])


def test_a_worker_frozen_in_its_sweep_does_not_stop_the_sweeps(db: Database, tmp_path: Path) -> None:
    """The lock of the active reaper is held by a transaction; one that sleeps in it is ended by the server."""
    chaos = Chaos(db, tmp_path)
    point = tmp_path / "in_sweep"
    with tasks_on(db) as tasks, worker(db, folder=tmp_path, sync_points={"in_sweep": point}) as frozen:
        (once,) = chaos.send(tasks.chaos, 1, 60.0)
        started(chaos, once)
        eventually(point.exists)
        with worker(db, folder=tmp_path):
            frozen.freeze()
            try:
                assert str(once.get(LONG_MS).err.error_code) == "WORKER_CRASHED"
            finally:
                frozen.kill_all()
    chaos.check()


def test_c_code_that_holds_the_gil_is_alive(db: Database, tmp_path: Path) -> None:
    """F17: longer than every threshold, under the eyes of another worker."""
    with tasks_on(db) as tasks, worker(db, folder=tmp_path), worker(db, folder=tmp_path) as other:
        handles = [tasks.in_c.send(2 * THRESHOLD_S + 1.5) for _ in range(2)]
        assert all_ok(handles)
        assert all(len(handle.attempts()) == 1 for handle in handles)
        assert "recovered" not in other.log
    check_invariants(db)


def test_a_poison_pill_among_others(db: Database, tmp_path: Path) -> None:
    """F19: four attempts, then FAILED; the others keep at least half of their rate."""
    with tasks_on(db) as tasks, worker(db, folder=tmp_path):
        calls = [(0.01,)] * 250

        def rate(*extra: TaskHandle[Any]) -> float:
            began = time.monotonic()
            assert all_ok(tasks.sleep.send_many(calls))
            return len(calls) / (time.monotonic() - began)

        assert all_ok(tasks.sleep.send_many(calls[:20]))
        base = rate()
        poison = [tasks.poison.send() for _ in range(3)]
        assert rate() > base / 2
        for handle in poison:
            assert str(handle.get(LONG_MS).err.error_code) == "WORKER_CRASHED"
            assert [(a.outcome, a.will_retry) for a in handle.attempts()] == [
                (AttemptOutcome.WORKER_FAILURE, True)
            ] * 3 + [(AttemptOutcome.WORKER_FAILURE, False)]
            assert handle.info().status is TaskStatus.FAILED
    check_invariants(db)


# -- leaving -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [0, 5])
def test_a_graceful_stop_under_load(db: Database, tmp_path: Path, prefetch: int) -> None:
    """F21: exit code 0, nothing interrupted, nothing left CLAIMED or RUNNING; another worker does the rest."""
    chaos = Chaos(db, tmp_path)
    config = {"prefetch_buffer": prefetch}
    with tasks_on(db, **config) as tasks, worker(db, folder=tmp_path, **config):
        for _ in range(2):
            with worker(db, folder=tmp_path, **config) as leaving:
                handles = [*chaos.send(tasks.chaos, 100, 0.05), *chaos.send(tasks.chaos, 300)]
                eventually(lambda w=leaving: attempts_of(db, w) >= 10, timeout=20)
                assert leaving.stop() == 0
                held = "SELECT count(*) FROM horsies_tasks WHERE claimed_by_worker_id = %s AND terminal_at IS NULL"
                assert db.value(held, leaving.worker_id) == 0
                assert all_ok(handles)
    assert counts(db, "WORKER_FAILURE") == 0
    chaos.check()


def test_a_stop_while_a_claim_is_on_its_way(db: Database, tmp_path: Path) -> None:
    """What the claim brings goes back at once: nothing is left for a threshold to find."""
    chaos = Chaos(db, tmp_path)
    for name in ("before_claim", "after_claim"):
        point = tmp_path / name
        with tasks_on(db) as tasks, worker(db, folder=tmp_path, sync_points={name: point}) as leaving:
            handles = chaos.send(tasks.chaos, 4)
            eventually(point.exists)
            leaving.terminate()
            leaving.wait_for_log("stopping")
            point.with_name(point.name + ".go").touch()
            assert leaving.wait() == 0
            assert {handle.info().status for handle in handles} <= {TaskStatus.PENDING, TaskStatus.COMPLETED}
    with tasks_on(db) as tasks, worker(db, folder=tmp_path):
        assert all_ok([tasks.app.handle(task_id) for task_id in chaos.keys])
    chaos.check()


def test_a_second_signal_hurries(db: Database, tmp_path: Path) -> None:
    """F22: what runs is given up by the worker itself, in its last moments, not by a threshold later."""
    chaos = Chaos(db, tmp_path)
    with tasks_on(db) as tasks, worker(db, "--shutdown-timeout=60", folder=tmp_path) as leaving:
        (once,), (again,) = chaos.send(tasks.chaos, 1, 60.0), chaos.send(tasks.chaos_retried, 1, 60.0)
        started(chaos, once, again)
        leaving.terminate()
        leaving.wait_for_log("stopping")
        leaving.signal(signal.SIGINT)
        assert leaving.wait(15) == 0
        info = once.info()
        assert (info.status, info.error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")
        assert "interrupted by shutdown" in info.failed_reason
        assert again.info().status is TaskStatus.PENDING
        (attempt,) = again.attempts()
        assert (attempt.outcome, attempt.will_retry) == (AttemptOutcome.WORKER_FAILURE, True)
        assert "interrupted by shutdown" in attempt.failed_reason
        with worker(db, folder=tmp_path):
            assert again.get(LONG_MS).is_ok()
    chaos.check()


def test_a_task_that_ignores_the_stop(db: Database, tmp_path: Path) -> None:
    """F16: SIGTERM ignored, exceptions swallowed; the worker leaves at its deadline all the same."""
    trace = tmp_path / "trace"
    with tasks_on(db) as tasks, worker(db, "--shutdown-timeout=2", folder=tmp_path) as leaving:
        handle = tasks.stubborn.send(str(trace))
        eventually(trace.exists)
        began = time.monotonic()
        assert leaving.stop() == 0
        assert time.monotonic() - began < 2 + 2 + 2  # deadline, the catalogue's two seconds, a busy machine
        info = handle.info()
        assert (info.status, info.error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")
        assert "interrupted by shutdown" in info.failed_reason
    check_invariants(db)


def test_a_stop_without_a_database(db: Database, tmp_path: Path) -> None:
    """A result that cannot be written is waited for; a second signal ends the wait, and the exit code says so."""
    chaos = Chaos(db, tmp_path)
    with ChaosProxy(db.url) as proxy, tasks_on(db) as tasks:
        with worker(proxy.url, folder=tmp_path) as leaving:
            (once,) = chaos.send(tasks.chaos, 1, 1.0)
            started(chaos, once)
            proxy.set(Mode.CUT)
            leaving.wait_for_log("finalize:")
            leaving.terminate()
            leaving.wait_for_log("stopping")
            leaving.terminate()
            assert leaving.wait(15) == ExitCode.DATABASE
            assert "1 result could not be written" in leaving.log
        with worker(db, folder=tmp_path):
            assert str(once.get(LONG_MS).err.error_code) == "WORKER_CRASHED"
    chaos.check()


# -- connections -------------------------------------------------------------------------------------


def terminate(db: Database, like: str) -> int:
    return db.value(
        "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
        " WHERE datname = %s AND application_name LIKE %s AND pid <> pg_backend_pid()",
        db.name,
        like,
    )


@pytest.mark.long
def test_backends_killed_at_random(db: Database, tmp_path: Path) -> None:
    """F32: five a second, whatever they are doing; nothing fails, nothing is lost or doubled."""
    chaos = Chaos(db, tmp_path)
    chance = random.Random(4)
    with tasks_on(db) as tasks, worker(db, folder=tmp_path) as one, worker(db, folder=tmp_path) as other:
        handles = [*chaos.send(tasks.chaos, 150, 0.03), *chaos.send(tasks.chaos, 1_500)]
        handles += chaos.send(tasks.chaos, 4, 4.0)
        until = time.monotonic() + 6
        while time.monotonic() < until:
            purpose = chance.choice(["claim", "finalize", "heartbeat", "reaper", "listen", "%"])
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity WHERE datname = %s"
                " AND application_name LIKE %s ORDER BY random() LIMIT 1) x",
                db.name,
                f"horsies worker {purpose}",
            )
            time.sleep(0.2)  # the rate of the fault, not a wait for anything
        handles += chaos.send(tasks.chaos, 50)
        assert all_ok(handles)
        assert one.is_running
        assert other.is_running
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status <> 'COMPLETED'") == 0
    assert counts(db, "WORKER_FAILURE") == 0
    chaos.check()


CUTS = {
    "finalize": r"INSERT INTO horsies_task_attempts",
    "claim": r"claim_generation = t.claim_generation \+ 1",
    "start": r"SET status = c.status, claimed = false, claim_expires_at = NULL",
}


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("what", CUTS)
def test_an_answer_that_never_came(db: Database, tmp_path: Path, what: str, when: When) -> None:
    """F33: the statement was executed, or was not; the worker cannot know. One attempt row, nothing lost or doubled."""
    chaos = Chaos(db, tmp_path)
    # nobody judges here: what is healed is healed by the worker itself
    config: dict[str, Any] = {
        "prefetch_buffer": 3 if what == "start" else 0,
        "recovery": {"auto_fail_stale_running": False, "auto_requeue_stale_claimed": False},
    }
    with ChaosProxy(db.url) as proxy, worker(proxy.url, folder=tmp_path, **config), tasks_on(db, **config) as tasks:
        assert all_ok(chaos.send(tasks.chaos, 4))
        proxy.cut_at(CUTS[what], when)
        handles = chaos.send(tasks.chaos, 8, 0.05)
        eventually(lambda: proxy.cuts == 1, timeout=10)
        assert all_ok(handles)
        assert all(len(handle.attempts()) == 1 for handle in handles)
    chaos.check()


def test_cut_off_from_the_database(db: Database, tmp_path: Path) -> None:
    """F38, D8: what others may run again is stopped here; the rest finishes, and its late result is refused."""
    chaos = Chaos(db, tmp_path)
    with ChaosProxy(db.url) as proxy, tasks_on(db) as tasks, worker(proxy.url, folder=tmp_path) as alone:
        (once,), (again,) = chaos.send(tasks.chaos, 1, 6.0), chaos.send(tasks.chaos_retried, 1, 60.0)
        started(chaos, once, again)
        with worker(db, folder=tmp_path) as other:
            proxy.set(Mode.CUT)
            alone.wait_for_log(f"task {again.task_id} (chaos_retried) attempt 1: no contact with the database")
            assert again.get(LONG_MS).is_ok()
            assert str(once.get(LONG_MS).err.error_code) == "WORKER_CRASHED"
            eventually(lambda: [line[2] for line in chaos.lines() if line[0] == 0] == ["start", "end"])
            proxy.set(Mode.PASS)
            alone.wait_for_log(f"task {once.task_id} attempt 1: CLAIM_LOST, its result is dropped")
            assert other.stop() == 0
            assert tasks.add.send(1, 1).get(LONG_MS).ok == 2  # it is a good worker again
            assert [attempt.outcome for attempt in once.attempts()] == [AttemptOutcome.WORKER_FAILURE]
    chaos.check()


def test_the_listener_is_killed(db: Database, tmp_path: Path) -> None:
    """F40: sent in the gap, found by the look that follows the new LISTEN: the poll is a minute away."""
    with tasks_on(db) as tasks, worker(db, folder=tmp_path, resilience=SLOW_POLL) as process:
        assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
        for _ in range(3):
            eventually(lambda: terminate(db, "%worker listen") == 1)  # it may not be back yet
            handle = tasks.add.send(1, 1)
            assert handle.get(LONG_MS).ok == 2
            assert process.is_running
        listening = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND application_name = %s"
        eventually(lambda: db.value(listening, db.name, "horsies worker listen") == 1)
        # and it hears again
        assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
    check_invariants(db)


# -- locks -------------------------------------------------------------------------------------------


@contextmanager
def holding(db: Database, sql: str, *values: Any) -> Iterator[psycopg.Connection[Any]]:
    """A foreign transaction that took some lock and goes on holding it."""
    with psycopg.connect(db.url, application_name="foreign") as connection:
        connection.execute(sql, values or None)  # type: ignore[arg-type]
        yield connection


def pause(seconds: float) -> None:
    """How long a fault lasts."""
    threading.Event().wait(seconds)


@pytest.mark.long
def test_the_table_is_locked_for_longer_than_the_threshold(db: Database, tmp_path: Path) -> None:
    """F64: nobody can beat, nobody can judge; after it, the reapers wait for one threshold."""
    chaos = Chaos(db, tmp_path)
    with tasks_on(db) as tasks, worker(db, folder=tmp_path) as one, worker(db, folder=tmp_path) as other:
        handles = [*chaos.send(tasks.chaos, 2, 9.0), *chaos.send(tasks.chaos_retried, 2, 2.0)]
        started(chaos, *handles)
        with holding(db, "LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE"):
            pause(THRESHOLD_S + 2.5)
        assert all_ok(handles)
        assert "recovered" not in one.log + other.log
    assert counts(db, "WORKER_FAILURE") == 0
    chaos.check()


def test_a_locked_row_holds_up_nobody_else(db: Database, tmp_path: Path) -> None:
    """Somebody's forgotten transaction holds one of our rows: its own task waits, the others end, all are vouched
    for."""
    chaos = Chaos(db, tmp_path)
    with tasks_on(db) as tasks, worker(db, folder=tmp_path) as one, worker(db, folder=tmp_path) as other:
        (locked,), (long,) = chaos.send(tasks.chaos, 1, 1.0), chaos.send(tasks.chaos, 1, THRESHOLD_S + 4.0)
        started(chaos, locked, long)
        with holding(db, "SELECT 1 FROM horsies_tasks WHERE id = %s FOR UPDATE", locked.task_id):
            until = time.monotonic() + THRESHOLD_S + 2
            while time.monotonic() < until:
                began = time.monotonic()
                assert all_ok(chaos.send(tasks.chaos, 10, 0.02))
                assert time.monotonic() - began < 4
        assert all_ok([locked, long])
        assert "recovered" not in one.log + other.log
    assert counts(db, "WORKER_FAILURE") == 0
    chaos.check()


# -- the server --------------------------------------------------------------------------------------


@pytest.fixture
def server_folder() -> Iterator[Path]:
    """Not below pytest's own directory: the server's account may not walk through that."""
    with places.temporary_directory() as folder:
        yield folder / "pg"


@pytest.mark.long
def test_the_server_comes_late_and_crashes(server_folder: Path, tmp_path: Path) -> None:
    """F41, F36, F37: away at the start, then down for longer than the threshold while tasks run."""
    with own_server(server_folder) as server:
        db = server.db
        server.down()
        # the silence is longer than what makes a worker known to be dead, as well
        quick = {"recovery": {"worker_state_interval_ms": 1_000}}
        with worker(db, folder=tmp_path, wait=False, **quick) as one:
            one.wait_for_log("trying again")
            assert one.is_running
            server.up()
            one.wait_up()
            one.wait_for_log("schema upgraded to revision")
            chaos = Chaos(db, tmp_path)
            with tasks_on(db) as tasks, worker(db, folder=tmp_path, **quick) as other:
                long = chaos.send(tasks.chaos, 2, THRESHOLD_S + 7.0)  # ends when the server is back
                short = chaos.send(tasks.chaos, 2, 2.0)  # ends while it is away
                started(chaos, *long, *short)
                waiting = chaos.send(tasks.chaos, 30, 0.01)
                server.down()
                pause(THRESHOLD_S + 3.5)
                server.up()
                assert all_ok([*long, *short, *waiting])
                assert all_ok(chaos.send(tasks.chaos, 10))
                assert one.is_running
                assert other.is_running
                assert "recovered" not in one.log + other.log
            assert db.value("SELECT count(*) FROM horsies_tasks WHERE status <> 'COMPLETED'") == 0
            assert counts(db, "WORKER_FAILURE") == 0
            assert db.value("SELECT count(judged_dead_at) FROM horsies_worker_instances") == 0
            chaos.check()


def test_no_connection_is_left(server_folder: Path, tmp_path: Path) -> None:
    """F43: the worker's own connections are open already; heartbeats and results go on."""
    with own_server(server_folder, max_connections="16") as server:
        db = server.db
        with worker(db, folder=tmp_path) as one:
            chaos = Chaos(db, tmp_path)
            with tasks_on(db) as tasks:
                assert all_ok(chaos.send(tasks.chaos, 4))
                handles = [*chaos.send(tasks.chaos, 2, THRESHOLD_S + 2.0), *chaos.send(tasks.chaos, 20, 0.05)]
                with ExitStack() as held:
                    while (connection := connected(db)) is not None:
                        held.enter_context(connection)
                    assert all_ok(handles)
                assert one.is_running
            assert counts(db, "WORKER_FAILURE") == 0
            chaos.check()


def connected(db: Database) -> psycopg.Connection[Any] | None:
    try:
        return psycopg.connect(db.url)
    except psycopg.OperationalError:
        return None
