"""What a worker does on good days and with bad tasks: real processes, a real database, no mocks.

Most tests share one worker per pytest process. It polls once a minute only: whatever happens in time here happens
because somebody was told, or because it is due.
"""

import itertools
import json
import signal
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import AttemptOutcome, CancelResult, TaskError, TaskHandle, TaskResult, TaskStatus, gather
from tests.support import factories, postgres, workers
from tests.support.factories import ago
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import Chaos, WorkerProcess, check_invariants, tasks_on, worker

SLOW_POLL = {"notify_poll_interval_ms": 60_000}
LONG_MS = 20_000


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """One database with one worker of two children, and its tasks."""
    config: dict[str, Any] = {"resilience": SLOW_POLL, "unknown_task_grace_ms": 1_000}
    folder = tmp_path_factory.mktemp("shared")
    with postgres.database() as db, worker(db, folder=folder, **config) as process:
        workers.shared.add(process.pid)
        try:
            with tasks_on(db, **config) as tasks:
                yield SimpleNamespace(db=db, worker=process, tasks=tasks, folder=folder)
            check_invariants(db)
        finally:
            workers.shared.discard(process.pid)


@pytest.fixture
def db_(shared: SimpleNamespace) -> Database:
    return shared.db


@pytest.fixture
def tasks(shared: SimpleNamespace) -> SimpleNamespace:
    return shared.tasks


@pytest.fixture
def process(shared: SimpleNamespace) -> WorkerProcess:
    return shared.worker


def outcome(handle: TaskHandle[Any]) -> tuple[TaskStatus, TaskResult[Any, Any]]:
    """How it ended."""
    result = handle.get(LONG_MS)
    info = handle.info()
    assert info is not None
    assert info.status.is_terminal, result
    return info.status, result


def failed(handle: TaskHandle[Any]) -> tuple[TaskStatus, str, str]:
    """Status, error code and `failed_reason` of one that did not complete."""
    status, result = outcome(handle)
    info = handle.info()
    assert info is not None
    assert result.err is not None, result
    assert info.error_code == result.err.error_code
    return status, str(info.error_code), info.failed_reason or ""


def is_running(handle: TaskHandle[Any]) -> bool:
    info = handle.info()
    return info is not None and info.status is TaskStatus.RUNNING


# -- round trips -------------------------------------------------------------------------------------


def test_a_round_trip(tasks: SimpleNamespace) -> None:
    handle = tasks.add.send(2, b=3)
    assert handle.get(LONG_MS).ok == 5
    (attempt,) = handle.attempts()
    info = handle.info()
    assert attempt.outcome is AttemptOutcome.COMPLETED
    assert (attempt.attempt, attempt.will_retry, attempt.error_code) == (1, False, None)
    assert attempt.worker_id == info.claimed_by_worker_id
    assert info.enqueued_at <= info.claimed_at <= info.started_at <= attempt.started_at <= attempt.finished_at
    assert attempt.finished_at <= info.completed_at == info.terminal_at


def test_a_task_knows_itself_and_its_child_was_prepared(tasks: SimpleNamespace, process: WorkerProcess) -> None:
    handle = tasks.who.send()
    told = handle.get(LONG_MS).ok
    assert (told["id"], told["name"], told["attempt"], told["token"]) == (handle.task_id, "who", 1, 1)
    assert told["hooks"] == [told["pid"]]  # on_child_start ran once, in this child
    assert told["pid"] in {child.pid for child in process.children()}
    (attempt,) = handle.attempts()
    assert attempt.worker_pid == told["pid"]


def test_many_short_tasks(tasks: SimpleNamespace) -> None:
    handles = tasks.add.send_many([(k, k) for k in range(500)])
    assert [result.ok for result in gather(handles, timeout_ms=LONG_MS)] == [2 * k for k in range(500)]


def test_senders_without_the_code_get_the_workers_registration(db_: Database, shared: SimpleNamespace) -> None:
    """By name or by stub: retries and time-outs are those that the worker knows."""
    from horsies import AppConfig, Horsies, PostgresConfig

    with Horsies(AppConfig(PostgresConfig(db_.url))) as web:

        @web.declare("flaky")
        def flaky(until: int) -> TaskResult[int, TaskError]: ...

        by_stub = flaky.send(3)
        by_name = web.send("flaky", until=2)
        slow = web.send("sleep_briefly", 30.0)
        assert by_stub.get(LONG_MS).ok == 3
        assert by_name.get(LONG_MS).ok == 2
        assert [attempt.will_retry for attempt in by_stub.attempts()] == [True, True, False]
        assert failed(slow)[:2] == (TaskStatus.FAILED, "TASK_TIMEOUT")
    null = db_.execute("SELECT count(*) FROM horsies_tasks WHERE id = %s AND task_options IS NULL", by_name.task_id)
    assert null == [(1,)]


# -- retries -----------------------------------------------------------------------------------------


def test_retries_by_policy(tasks: SimpleNamespace) -> None:
    recovers, gives_up, not_listed = tasks.flaky.send(3), tasks.flaky.send(9), tasks.flaky.send(9, "OTHER")
    assert recovers.get(LONG_MS).ok == 3
    attempts = recovers.attempts()
    assert [(a.outcome, a.will_retry, a.error_code) for a in attempts] == [
        ("FAILED", True, "SMTP_DOWN"), ("FAILED", True, "SMTP_DOWN"), ("COMPLETED", False, None),
    ]  # fmt: skip
    for earlier, later in itertools.pairwise(attempts):
        assert later.started_at - earlier.finished_at >= timedelta(milliseconds=99)
    assert failed(gives_up)[:2] == (TaskStatus.FAILED, "SMTP_DOWN")
    assert len(gives_up.attempts()) == 4
    assert failed(not_listed)[:2] == (TaskStatus.FAILED, "OTHER")
    assert len(not_listed.attempts()) == 1


def test_user_code_chooses_its_retry_time(tasks: SimpleNamespace) -> None:
    handle = tasks.flaky.send(2, retry_after_ms=1_200)
    assert handle.get(LONG_MS).ok == 2
    first, second = handle.attempts()
    waited = second.started_at - first.finished_at
    # not the policy's 100 ms, and not the next poll
    assert timedelta(milliseconds=1_200) <= waited < timedelta(seconds=10)


def test_a_mapped_exception(tasks: SimpleNamespace) -> None:
    assert failed(tasks.odd.send("mapped"))[:2] == (TaskStatus.FAILED, "SMTP_DOWN")


# -- time --------------------------------------------------------------------------------------------


def test_delayed_tasks_start_when_they_are_due(tasks: SimpleNamespace) -> None:
    """The worker polls once a minute: only its own alarm can wake it."""
    late = tasks.add.schedule(2.0, 1)
    soon = tasks.add.schedule(0.7, 2)
    soonest = tasks.add.schedule(timedelta(seconds=0.3), 3)
    for handle, value in ((late, 1), (soon, 2), (soonest, 3)):
        assert handle.get(LONG_MS).ok == value
        info = handle.info()
        assert timedelta(0) <= info.started_at - info.enqueued_at < timedelta(seconds=1.5)


def test_timeouts_and_their_siblings(tasks: SimpleNamespace) -> None:
    """Python code, the event loop, and C code that holds the GIL; a sibling is not touched."""
    in_c = tasks.in_c_briefly.send(30.0)
    eventually(lambda: is_running(in_c))
    siblings = [tasks.sleep.send(0.2) for _ in range(4)]
    naps = [tasks.nap.send(0.3) for _ in range(4)]
    asleep, napping = tasks.sleep_briefly.send(30.0), tasks.nap_briefly.send(30.0)
    for handle in (asleep, napping, in_c):
        status, code, _ = failed(handle)
        assert (status, code) == (TaskStatus.FAILED, "TASK_TIMEOUT")
        (attempt,) = handle.attempts()
        assert attempt.outcome is AttemptOutcome.FAILED
        # the parent counts from the hand-over, the attempt from the first line: a few milliseconds less
        assert timedelta(milliseconds=250) <= attempt.finished_at - attempt.started_at < timedelta(seconds=10)
    assert "signal 9" in failed(in_c)[2]
    assert all(result.is_ok() for result in gather(siblings, timeout_ms=LONG_MS))
    # a nap that shared the killed child ends with it; those of the other child go on
    assert {str(result.err.error_code) for result in gather(naps, timeout_ms=LONG_MS) if result.err} <= {
        "WORKER_CRASHED"
    }


def test_expiry_by_the_sweep(db_: Database, tasks: SimpleNamespace) -> None:
    """Delayed beyond its deadline, so that no claim ever looks at it."""
    task_id = factories.task(db_, enqueued_at=factories.ahead(minutes=5), good_until=factories.ahead(seconds=0.5))
    handle = tasks.app.handle(task_id)
    status, result = outcome(handle)
    assert (status, result.err.error_code) == (TaskStatus.EXPIRED, "TASK_EXPIRED")
    assert handle.attempts() == []


def test_expiry_in_the_claim(db: Database) -> None:
    """Overdue when the claim meets it: the claim itself ends it, the next sweep is far away."""
    recovery = {"check_interval_ms": 600_000}
    with worker(db, recovery=recovery) as process, tasks_on(db) as tasks:
        assert tasks.add.send(1, 2).get(LONG_MS).ok == 3  # and the sweep at its start is over
        overdue = factories.task(db, good_until=ago(seconds=1), enqueued_at=ago(seconds=5))
        assert outcome(tasks.app.handle(overdue))[0] is TaskStatus.EXPIRED
        process.wait_for_log(f"task {overdue} (add): expired before it could start")
        assert tasks.app.handle(overdue).attempts() == []


# -- cancelling --------------------------------------------------------------------------------------


def test_cancel_before_the_start(tasks: SimpleNamespace) -> None:
    handle = tasks.add.schedule(60, 1)
    assert handle.cancel() is CancelResult.CANCELLED
    status, result = outcome(handle)
    assert (status, result.err.error_code) == (TaskStatus.CANCELLED, "TASK_CANCELLED")
    assert handle.attempts() == []


def test_cancel_while_it_runs(tasks: SimpleNamespace, tmp_path: Path) -> None:
    """The ladder: a task that asks, one that cleans up, one on the event loop."""
    traces = [tmp_path / name for name in ("cooperative", "cleans_up")]
    handles = [tasks.cooperative.send(str(traces[0])), tasks.cleans_up.send(str(traces[1])), tasks.nap.send(60.0)]
    eventually(lambda: all(is_running(handle) for handle in handles) and all(trace.exists() for trace in traces))
    assert [handle.cancel() for handle in handles] == [CancelResult.REQUESTED] * 3
    for handle in handles:
        assert failed(handle)[:2] == (TaskStatus.CANCELLED, "TASK_CANCELLED")
        (attempt,) = handle.attempts()
        assert (attempt.outcome, attempt.error_code) == (AttemptOutcome.FAILED, "TASK_CANCELLED")
    assert traces[0].read_text() == "start\nasked\n"
    assert traces[1].read_text() == "start\ncleanup cancelled\n"


def test_cancel_of_a_task_that_will_not_listen(tasks: SimpleNamespace, tmp_path: Path) -> None:
    trace = tmp_path / "stubborn"
    handle = tasks.stubborn.send(str(trace))
    eventually(trace.exists)
    sibling = tasks.sleep.send(8.0)
    handle.cancel()
    status, code, reason = failed(handle)
    assert (status, code) == (TaskStatus.CANCELLED, "TASK_CANCELLED")
    assert "signal 9" in reason
    assert "swallowed TaskStopped" in trace.read_text()
    assert sibling.get(LONG_MS).is_ok()


def test_a_cancelled_task_is_not_retried(tasks: SimpleNamespace) -> None:
    """Its retry waits; a cancel in between ends it."""
    handle = tasks.flaky.send(9, retry_after_ms=60_000)
    eventually(handle.attempts)
    assert handle.cancel() is CancelResult.CANCELLED
    assert failed(handle)[0] is TaskStatus.CANCELLED
    assert len(handle.attempts()) == 1


# -- bad ends ----------------------------------------------------------------------------------------

ODD = {
    "exit": ("UNHANDLED_EXCEPTION", "SystemExit: 3"),
    "system_exit": ("UNHANDLED_EXCEPTION", "SystemExit: bye"),
    "interrupt": ("UNHANDLED_EXCEPTION", "KeyboardInterrupt"),
    "base": ("UNHANDLED_EXCEPTION", "BaseException: base"),
    "group": ("UNHANDLED_EXCEPTION", "ExceptionGroup: both"),
    "unprintable": ("UNHANDLED_EXCEPTION", "Unprintable"),
    "nul": ("UNHANDLED_EXCEPTION", "ValueError: a"),
    "none": ("RETURN_TYPE_MISMATCH", ""),
    "wrong": ("RETURN_TYPE_MISMATCH", ""),
    "unserialisable": ("RETURN_TYPE_MISMATCH", ""),
    "nul_result": ("WORKER_SERIALIZATION_ERROR", ""),
    "surrogate_result": ("WORKER_SERIALIZATION_ERROR", ""),
    "nul_error": ("MINE", "a"),
    "deep": ("UNHANDLED_EXCEPTION", "RecursionError"),
}


@pytest.mark.parametrize("name", ["odd", "async_odd"])
def test_odd_ends_are_recorded(tasks: SimpleNamespace, process: WorkerProcess, name: str) -> None:
    task = getattr(tasks, name)
    handles = {kind: task.send(kind) for kind in ODD}
    found = {kind: (failed(handle), handle.get().err) for kind, handle in handles.items()}
    for kind, (code, text) in ODD.items():
        (status, recorded, _), error = found[kind]
        assert (kind, status, recorded) == (kind, TaskStatus.FAILED, code)
        assert error is not None
        assert text in error.message, kind
        (attempt,) = handles[kind].attempts()
        assert (attempt.outcome, attempt.error_code) == (AttemptOutcome.FAILED, code)
    assert process.is_running


def test_the_death_of_a_child_is_told(tasks: SimpleNamespace, process: WorkerProcess) -> None:
    """F01, F12, F13: at once, with what killed it; a sibling on the other child goes on."""
    sibling = tasks.sleep.send(2.0)
    eventually(lambda: is_running(sibling))
    began = time.monotonic()
    handles = {
        "signal 9 (SIGKILL": tasks.die.send(signal.SIGKILL),
        "signal 11 (SIGSEGV": tasks.segfault.send(),
        "exited with code 0": tasks.die.send(0),
        "exited with code 7": tasks.die.send(-7),
    }
    for words, handle in handles.items():
        status, code, reason = failed(handle)
        assert (status, code) == (TaskStatus.FAILED, "WORKER_CRASHED")
        assert words in reason
        assert "peak memory" in reason
        (attempt,) = handle.attempts()
        assert (attempt.outcome, attempt.error_code) == (AttemptOutcome.WORKER_FAILURE, "WORKER_CRASHED")
    # four children died and were replaced: told by their exits, not by a threshold
    assert time.monotonic() - began < 10
    assert sibling.get(LONG_MS).is_ok()
    eventually(lambda: len(process.children()) == 2)


MEMORY = Path("/sys/fs/cgroup/memory")


def test_out_of_memory_is_named(db: Database, tmp_path: Path) -> None:
    """F10: a real OOM kill, by a memory cgroup."""
    group = MEMORY / f"horsies-worker-{tmp_path.name}-{time.monotonic_ns()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(150 << 20))
    except OSError as error:
        pytest.skip(f"no writable memory cgroup: {error}")
    try:
        with worker(db, processes=1) as process, tasks_on(db) as tasks:
            (child,) = eventually(process.children)
            (group / "cgroup.procs").write_text(str(child.pid))
            status, code, reason = failed(tasks.grow.send(400))
            assert (status, code) == (TaskStatus.FAILED, "WORKER_CRASHED")
            assert "signal 9" in reason
            assert "probably out of memory" in reason
            assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
    finally:
        eventually(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


def test_a_task_of_an_unknown_name_waits_for_the_grace_and_then_fails(
    tasks: SimpleNamespace, process: WorkerProcess
) -> None:
    handle = tasks.app.send("of_another_release", 1)
    status, code, reason = failed(handle)
    assert (status, code) == (TaskStatus.FAILED, "WORKER_RESOLUTION_ERROR")
    assert "no live worker of queue 'default' has a task named 'of_another_release'; they know: 'add', " in reason
    process.wait_for_log("1 waiting task named 'of_another_release' in queue default, and no live worker of the queue")
    (attempt,) = handle.attempts()
    assert attempt.error_code == "WORKER_RESOLUTION_ERROR"
    info = handle.info()
    assert info.claimed_at is None  # nothing touched it before
    assert info.failed_at - info.sent_at >= timedelta(seconds=0.9)


# -- what a task says --------------------------------------------------------------------------------


def test_progress_is_seen_while_it_runs(tasks: SimpleNamespace, tmp_path: Path) -> None:
    go = tmp_path / "go"
    handle = tasks.progress.send(str(go))
    assert eventually(lambda: handle.info().progress) == {"done": 0.5, "of": "it"}
    assert is_running(handle)
    go.touch()
    assert handle.get(LONG_MS).ok == 1


def test_a_flood_of_prints_blocks_nobody(tasks: SimpleNamespace) -> None:
    flood = [tasks.say.send("x" * 1_000, 5_000) for _ in range(2)]
    assert all(result.ok == 5_000_000 for result in gather(flood, timeout_ms=LONG_MS))
    assert tasks.add.send(1, 1).get(LONG_MS).ok == 2


def test_logs_name_the_task(tasks: SimpleNamespace, process: WorkerProcess) -> None:
    handle = tasks.log.send("from user code")
    assert handle.get(LONG_MS).ok == 1
    process.wait_for_log(f"[log {handle.task_id} attempt 1]: from user code")
    bad = tasks.odd.send("base")
    bad.get(LONG_MS)
    process.wait_for_log(f"task {bad.task_id} (odd) attempt 1: failed after")


def test_json_logs_name_the_task(db: Database) -> None:
    with worker(db, "--log-format=json", "--loglevel=debug") as process, tasks_on(db) as tasks:
        handle, bad = tasks.log.send("from user code"), tasks.odd.send("base")
        assert handle.get(LONG_MS).ok == 1
        assert bad.get(LONG_MS).is_err()
        process.wait_for_log("from user code")
        process.wait_for_log(bad.task_id)
        lines = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
    (said,) = [line for line in lines if line["message"] == "from user code"]
    assert (said["task_id"], said["task_name"], said["attempt"]) == (handle.task_id, "log", 1)
    assert (said["level"], said["logger"]) == ("WARNING", "shop")
    told = [line for line in lines if line.get("task_id") == bad.task_id]
    assert any(line["task_name"] == "odd" and line["attempt"] == 1 for line in told)
    assert any("is up" in line["message"] for line in lines)


# -- how many at once --------------------------------------------------------------------------------


def test_a_thousand_naps_on_one_child(db: Database) -> None:
    with worker(db, "--async-concurrency=1000", processes=1), tasks_on(db) as tasks:
        assert tasks.nap.send(0.0).get(LONG_MS).is_ok()  # the child is warm
        began = time.monotonic()
        handles = tasks.nap.send_many([(1.0,)] * 1_000)
        results = gather(handles, timeout_ms=60_000)
        took = time.monotonic() - began
        assert len({result.ok for result in results}) == 1  # one process ran them all
        assert took < 8
    check_invariants(db)


def test_two_equal_workers_share_the_work(db: Database) -> None:
    with tasks_on(db) as tasks, worker(db) as one, worker(db) as other:
        handles = tasks.sleep.send_many([(0.02,)] * 1_000)
        assert all(result.is_ok() for result in gather(handles, timeout_ms=60_000))
        shares = dict(db.execute("SELECT worker_id, count(*) FROM horsies_task_attempts GROUP BY 1"))
        assert set(shares) == {one.worker_id, other.worker_id}
        assert sum(shares.values()) == 1_000
        assert min(shares.values()) >= 350, shares
    check_invariants(db)


@pytest.mark.parametrize("count", [100, pytest.param(300, marks=pytest.mark.long)])
def test_one_task_per_child(db: Database, tmp_path: Path, count: int) -> None:
    """F24: hundreds of children, one task each; none lost, none doubled."""
    chaos = Chaos(db, tmp_path)
    with worker(db, "--max-tasks-per-child=1", folder=tmp_path), tasks_on(db) as tasks:
        handles = chaos.send(tasks.chaos, count)
        assert all(result.is_ok() for result in gather(handles, timeout_ms=60_000))
    assert len({line[3] for line in chaos.lines()}) == count
    assert db.value("SELECT count(DISTINCT worker_pid) FROM horsies_task_attempts") == count
    chaos.check()


def test_hard_caps_are_never_exceeded(db: Database) -> None:
    """Two workers with two slots each; the queue takes two, the cluster three, so that both are needed."""
    config: dict[str, Any] = {"queues": {"narrow": 2, "wide": None}, "cluster_wide_cap": 3}
    with (
        tasks_on(db, **config) as tasks,
        worker(db, **config) as one,
        worker(db, **config) as other,
    ):
        calls = [(0.03,)] * 60
        handles = [*tasks.sleep.with_options(queue_name="narrow").send_many(calls),
                   *tasks.sleep.with_options(queue_name="wide").send_many(calls)]  # fmt: skip
        assert all(result.is_ok() for result in gather(handles, timeout_ms=60_000))
        busy = dict(db.execute("SELECT worker_id, count(*) FROM horsies_task_attempts GROUP BY 1"))
        assert set(busy) == {one.worker_id, other.worker_id}
    check_invariants(db, cap=3, qcap={"narrow": 2})


def test_tasks_held_ahead(db: Database) -> None:
    """The soft cap: CLAIMED up to the buffer, started when a slot comes free, in order."""
    config: dict[str, Any] = {"prefetch_buffer": 3}
    with tasks_on(db, **config) as tasks:
        handles = tasks.sleep.send_many([(0.5,)] * 8)
        with worker(db, processes=1, **config):
            counted = "SELECT count(*) FROM horsies_tasks WHERE status = %s"
            eventually(lambda: db.value(counted, "CLAIMED") == 3)
            assert db.value(counted, "RUNNING") == 1
            assert all(result.is_ok() for result in gather(handles, timeout_ms=LONG_MS))
        starts = [handle.info().started_at for handle in handles]
        assert starts == sorted(starts)
    assert db.value("SELECT max(claim_generation) FROM horsies_tasks") == 1  # nobody claimed one twice
    check_invariants(db)


def test_some_queues_only_and_a_pause(db: Database) -> None:
    config: dict[str, Any] = {"queues": {"mail": None, "Reports.daily-1": None, "other": None}, "resilience": SLOW_POLL}
    with (
        tasks_on(db, **config) as tasks,
        worker(db, "--queues=mail,Reports.daily-1", **config),
    ):
        app = tasks.app
        broker = app.get_broker()
        by_queue = {name: tasks.add.with_options(queue_name=name) for name in config["queues"]}
        assert by_queue["Reports.daily-1"].send(1).get(LONG_MS).ok == 1
        left = by_queue["other"].send(1)

        app.run_sync("pause", lambda: broker.pause_queue("mail"))
        paused = by_queue["mail"].send(2)
        # the worker heard of the pause before it could hear of this one, in the other queue
        assert by_queue["Reports.daily-1"].send(3).get(LONG_MS).ok == 3
        assert paused.info().status is TaskStatus.PENDING

        app.run_sync("resume", lambda: broker.resume_queue("mail"))
        assert paused.get(LONG_MS).ok == 2
        assert left.info().status is TaskStatus.PENDING


def test_priority_then_age(db: Database) -> None:
    with tasks_on(db) as tasks:
        sent = [tasks.add.with_options(priority=priority).send(priority) for priority in (50, 1, 100, 1, 50)]
        with worker(db, "--no-run-ahead", processes=1):
            gather(sent, timeout_ms=LONG_MS)
        order = db.execute("SELECT priority, sent_at FROM horsies_tasks ORDER BY started_at")
    assert [priority for priority, _ in order] == [1, 1, 50, 50, 100]
    assert order == sorted(order)


def test_the_process_of_a_running_task_is_its_child_or_not_known(db: Database, tmp_path: Path) -> None:
    """The parent's would be taken for the process to kill, and the whole worker would end."""
    with tasks_on(db) as tasks, worker(db, folder=tmp_path, prefetch_buffer=2) as process:
        handles = [tasks.sleep.send(4.0) for _ in range(3)]
        seen: set[int | None] = set()

        def is_known() -> bool:
            rows = db.execute("SELECT worker_pid, worker_process_name FROM horsies_tasks WHERE status = 'RUNNING'")
            seen.update(pid for pid, _ in rows)
            assert not any(str(process.pid) in (name or "") for _, name in rows)
            return bool(rows) and all(pid is not None for pid, _ in rows)

        eventually(is_known, interval=0.01)
        assert process.pid not in seen
        assert None in seen
        assert seen - {None} <= {child.pid for child in process.children()}
        assert handles[0].get(LONG_MS).is_ok()


@pytest.mark.parametrize("public", [True, False], ids=["public", "quiet"])
def test_a_place_under_a_cap_that_another_worker_frees_is_taken_at_once(
    db: Database, tmp_path: Path, public: bool
) -> None:
    """The first worker ends its task and leaves; the second would poll a minute later."""
    db.execute("SELECT horsies_set_public_done(%s)", public)
    config: dict[str, Any] = {"resilience": SLOW_POLL, "queues": {"mail": 1}}
    (tmp_path / "second").mkdir()
    with tasks_on(db, **config) as tasks:
        with worker(db, folder=tmp_path, **config) as first:
            held = tasks.sleep.with_options(queue_name="mail").send(3.0)
            eventually(lambda: is_running(held))
            with worker(db, folder=tmp_path / "second", **config):
                waiting = tasks.add.with_options(queue_name="mail").send(1, 1)
                first.terminate()
                assert waiting.get(LONG_MS).ok == 2
        info, before = waiting.info(), held.info()
        assert (info.started_at - before.completed_at).total_seconds() < 5
    check_invariants(db)
