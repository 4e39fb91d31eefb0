"""Events of real workers, as handlers of the app see them. Rare ones are in tests/integration/test_events.py."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from horsies import TaskNode, gather
from horsies.events import (
    AttemptFailed,
    AttemptStarted,
    AttemptSucceeded,
    ChildExited,
    ChildStarted,
    DatabaseLost,
    DatabaseRegained,
    ResultDropped,
    ScheduleFired,
    TaskRecovered,
    TasksClaimed,
    TasksReturned,
    WorkerDeclaredDead,
    WorkerStarted,
    WorkerStopped,
    WorkerStopping,
    WorkflowEnded,
)
from tests.support import factories
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.event_app import APP, EVENTS_VARIABLE, FORGED, SCHEDULE_VARIABLE, Observed, observed, tasks_on
from tests.support.factories import ago
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import LEDGER_VARIABLE, VARIABLE, note
from tests.support.workers import ROOT, WorkerProcess, check_invariants, describe as described, ended

LONG_MS = 60_000
QUICK: dict[str, Any] = {"recovery": {"worker_state_interval_ms": 1_000}}


# -- attempts ------------------------------------------------------------------------------------


def test_a_success(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path, "--log-tasks") as one:
        handle = tasks.add.with_options(metadata={"tenant": "acme"}).send(1, 2)
        assert handle.get(LONG_MS).ok == 3
        about = {"task_id": handle.task_id, "task_name": "add", "queue_name": "default", "attempt": 1}
        started, succeeded = one.wait(AttemptStarted, **about), one.wait(AttemptSucceeded, **about)
        assert 0 <= started["wait_s"] <= succeeded["wait_s"]
        assert succeeded["duration_s"] >= 0
        assert succeeded["metadata"] == '{"tenant": "acme"}'
        assert succeeded["pid"] in {child.pid for child in one.process.children()}
        assert one.wait(TasksClaimed)["count"] == 1
        who = one.wait(WorkerStarted)
        assert (who["worker_id"], who["pid"], who["processes"]) == (one.process.worker_id, one.process.pid, 2)
        assert who["queues"] == ["default"]
        children = {child.pid for child in one.process.children()}
        eventually(lambda: {event["pid"] for event in one.events(ChildStarted)} >= children)  # the second may be late
    # in the parent alone, on one thread, and once although the handler was registered twice
    assert {(event["pid_"], event["thread"]) for event in one.events()} == {(one.process.pid, "horsies-events")}
    assert len(one.events(AttemptSucceeded)) == len(one.events(WorkerStarted)) == 1
    stopping = one.events(WorkerStopping)[0]
    assert 0 < stopping["drain_s"] <= 30
    assert one.events()[-1]["event"] == "WorkerStopped"
    assert {event["reason"] for event in one.events(ChildExited)} == {"requested"}
    assert one.events(ChildExited)[0]["tasks"] == 0


def test_failures_of_every_kind(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path, processes=3) as one:
        raised, returned = tasks.odd.send("unprintable"), tasks.odd.send("nul_error")
        late, dead = tasks.sleep_briefly.send(60.0), tasks.die.send(int(signal.SIGSEGV))
        retried = tasks.flaky.send(2)
        long = tasks.sleep.send(60.0)
        one.wait(AttemptStarted, task_id=long.task_id)
        long.cancel()
        gather([raised, returned, late, dead, retried, long], timeout_ms=LONG_MS)

        error = one.wait(AttemptFailed, task_id=raised.task_id)
        assert (error["kind"], error["error_code"], error["will_retry"]) == ("error", "UNHANDLED_EXCEPTION", False)
        assert error["traceback"].startswith("Traceback (most recent call last)")
        assert error["duration_s"] >= 0
        assert error["pid"] is not None
        error = one.wait(AttemptFailed, task_id=returned.task_id)
        assert (error["kind"], error["error_code"], error["traceback"]) == ("error", "MINE", None)
        error = one.wait(AttemptFailed, task_id=late.task_id)
        assert (error["kind"], error["error_code"]) == ("timeout", "TASK_TIMEOUT")
        assert error["duration_s"] > 0.1  # the worker counts the timeout of 0.3 s from when it hands the task over
        error = one.wait(AttemptFailed, task_id=dead.task_id)
        assert (error["kind"], error["error_code"], error["will_retry"]) == ("crashed", "WORKER_CRASHED", False)
        assert "SIGSEGV" in error["message"]
        left = one.wait(ChildExited, pid=error["pid"])
        assert (left["reason"], left["tasks"]) == ("crashed", 1)
        assert "SIGSEGV" in left["description"]
        error = one.wait(AttemptFailed, task_id=retried.task_id)
        assert (error["attempt"], error["will_retry"], error["retry_delay_s"]) == (1, True, 0.1)
        assert one.wait(AttemptSucceeded, task_id=retried.task_id)["attempt"] == 2
        error = one.wait(AttemptFailed, task_id=long.task_id)
        assert (error["kind"], error["error_code"], error["will_retry"]) == ("cancelled", "TASK_CANCELLED", False)
    check_invariants(db)


def test_long_texts_are_cut(db: Database, tmp_path: Path) -> None:
    """Ten thousand events may wait for a slow handler."""
    with tasks_on(db) as tasks, observed(db, tmp_path) as one:
        assert tasks.verbose.send(1_000_000).get(LONG_MS).is_err()
        event = one.wait(AttemptFailed, error_code="VERBOSE")
        assert 1_000 < len(event["message"]) < 5_000
        assert 1_000 < len(event["traceback"]) < 15_000
    assert len(one.log) < 100_000


def test_a_hurried_stop_interrupts(db: Database, tmp_path: Path) -> None:
    (started := tmp_path / "started").touch()
    with tasks_on(db) as tasks, observed(db, tmp_path, processes=1) as one:
        handle = tasks.stubborn.send(str(started))
        eventually(lambda: "start" in started.read_text())
        one.process.terminate()
        one.wait(WorkerStopping)
        one.process.terminate()
        assert one.process.wait() == 0
        error = one.wait(AttemptFailed, task_id=handle.task_id)
        assert (error["kind"], error["error_code"]) == ("interrupted", "WORKER_CRASHED")
        assert {event["reason"] for event in one.events(ChildExited)} == {"killed"}
        assert one.events(WorkerStopped)


def test_a_crash_during_the_stop_is_no_requested_exit(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path, processes=1) as one:
        tasks.sleep.send(60.0)
        child = one.wait(AttemptStarted)
        one.process.terminate()
        one.wait(WorkerStopping)
        (pid,) = one.process.kill_children()
        assert one.process.wait() == 0
        assert one.wait(ChildExited, pid=pid)["reason"] == "crashed"
        assert one.wait(AttemptFailed, task_id=child["task_id"])["kind"] == "crashed"


def test_children_that_are_replaced_killed_or_never_ready(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path, "--max-tasks-per-child=1", processes=1) as one:
        pid = tasks.sleep.send(0.0).get(LONG_MS).ok
        assert one.wait(ChildExited, pid=pid)["reason"] == "requested"
        tasks.in_c_briefly.send(60.0)  # holds the GIL: only a kill ends it
        assert one.wait(AttemptFailed)["kind"] == "timeout"
        killed = one.wait(ChildExited, reason="killed")
        assert (killed["tasks"], one.events(ChildStarted, pid=killed["pid"])[0]["name"]) == (1, killed["name"])


def test_a_child_that_does_not_start(db: Database, tmp_path: Path) -> None:
    app = f"""
import os
from tests.support.event_app import app

@app.on_child_start
def fails():
    if os.path.exists({str(tmp_path / "bad")!r}):
        raise RuntimeError("no room")
"""
    (tmp_path / "bad_app.py").write_text(app)
    file = tmp_path / "events"
    environment = {
        **os.environ, VARIABLE: json.dumps(described(db)), EVENTS_VARIABLE: str(file),
        "PYTHONPATH": f"{tmp_path}:{ROOT}", LEDGER_VARIABLE: str(tmp_path),
    }  # fmt: skip
    command = [
        sys.executable,
        "-m",
        "horsies_worker",
        "bad_app:app",
        "--processes=1",
        f"--health-file={tmp_path}/health",
    ]
    with ended(WorkerProcess(command, environment, tmp_path)) as process:
        process.wait_up()
        (tmp_path / "bad").touch()
        process.kill_children()
        one = Observed(process, file)
        assert one.wait(ChildExited, reason="start_failed")["tasks"] == 0
        (tmp_path / "bad").unlink()
        one.wait(ChildStarted, name=eventually(lambda: one.events(ChildStarted)[1:])[0]["name"])


# -- claims, returns, losses ---------------------------------------------------------------------


def test_a_stop_returns_what_was_prefetched(db: Database, tmp_path: Path) -> None:
    config: dict[str, Any] = {"prefetch_buffer": 4}
    with tasks_on(db, **config) as tasks, observed(db, tmp_path, "--no-run-ahead", processes=1, **config) as one:
        handles = tasks.sleep.send_many([(3.0,) for _ in range(5)])
        eventually(lambda: sum(event["count"] for event in one.events(TasksClaimed)) == 5)
        assert one.process.stop() == 0
        assert sum(event["count"] for event in one.events(TasksReturned)) == 4
        assert len(one.events(AttemptSucceeded)) == 1
        statuses = [handle.info().status.value for handle in handles]
        assert sorted(statuses) == ["COMPLETED", *["PENDING"] * 4]


def test_a_lost_claim(db: Database, tmp_path: Path) -> None:
    """Cut off: the late result of one attempt is refused, and the other attempt was stopped without a result."""
    with (
        ChaosProxy(db.url) as proxy,
        tasks_on(db) as tasks,
        observed(proxy.url, tmp_path, **QUICK) as alone,
        observed(db, tmp_path, **QUICK) as other,
    ):
        other.process.signal(signal.SIGSTOP)
        once, again = tasks.chaos.send(0, 6.0), tasks.chaos_retried.send(1, 60.0)
        alone.wait(AttemptStarted, task_id=once.task_id)
        alone.wait(AttemptStarted, task_id=again.task_id)
        other.process.signal(signal.SIGCONT)
        proxy.set(Mode.CUT)
        lost = alone.wait(DatabaseLost)
        assert lost["reason"]
        recovered = other.wait(TaskRecovered, task_id=once.task_id)
        assert recovered["action"] == "ended"
        stopped = alone.wait(ResultDropped, task_id=again.task_id)
        assert (stopped["attempt"], stopped["reason"]) == (1, "claim_lost")
        alone.wait(AttemptSucceeded, task_id=once.task_id)
        proxy.set(Mode.PASS)
        dropped = alone.wait(ResultDropped, task_id=once.task_id)
        assert (dropped["attempt"], dropped["reason"]) == (1, "claim_lost")
        assert alone.wait(DatabaseRegained, session=lost["session"])["outage_s"] > 0
        assert again.get(LONG_MS).is_ok()


def test_a_killed_worker_is_recovered(db: Database, tmp_path: Path) -> None:
    config: dict[str, Any] = {**QUICK, "prefetch_buffer": 1}
    with tasks_on(db, **config) as tasks, observed(db, tmp_path, "--no-run-ahead", processes=1, **config) as dying:
        eventually(lambda: db.value("SELECT count(lock_key) FROM horsies_worker_instances") == 1)
        running, waiting = tasks.sleep.send_many([(60.0,), (0.1,)])
        eventually(lambda: sum(event["count"] for event in dying.events(TasksClaimed)) == 2)
        with observed(db, tmp_path, processes=1, **config) as one:
            dying.process.kill_all()
            assert one.wait(WorkerDeclaredDead)["worker_id"] == dying.process.worker_id
            by_id = {task.task_id: one.wait(TaskRecovered, task_id=task.task_id) for task in (running, waiting)}
            assert sorted(event["action"] for event in by_id.values()) == ["ended", "requeued"]
            one.wait_for("horsies_worker_declared_dead_total", 1)
            found = one.scrape()
            assert found["horsies_worker_recovered_tasks_total", "ended"] == 1
            assert found["horsies_worker_recovered_tasks_total", "requeued"] == 1


def test_tasks_that_expired_are_told_of_once(db: Database, tmp_path: Path) -> None:
    """Whether the claim or the reaper finds them."""
    ids = {factories.task(db, task_name="add", enqueued_at=ago(minutes=9), good_until=ago(minutes=1)) for _ in range(5)}
    with observed(db, tmp_path) as one:
        eventually(lambda: len(one.events(TaskRecovered)) >= 5)
    assert sorted(event["task_id"] for event in one.events(TaskRecovered, action="expired")) == sorted(ids)


# -- the database --------------------------------------------------------------------------------


def test_an_outage_is_told_once_and_its_end_too(db: Database, tmp_path: Path) -> None:
    """Under load, so that more sessions than the two of an idle worker are open; those are not needed afterwards."""
    with (
        ChaosProxy(db.url) as proxy,
        tasks_on(db) as tasks,
        observed(proxy.url, tmp_path, "--no-run-ahead", **QUICK) as one,
    ):
        assert one.ready() == (200, "ok\n")
        handles = tasks.sleep.send_many([(0.02,) for _ in range(300)])
        eventually(lambda: len(one.events(AttemptSucceeded)) > 20)
        proxy.set(Mode.CUT)
        one.wait(DatabaseLost, session="claim")
        one.wait(DatabaseLost, session="heartbeat")
        assert one.scrape()["horsies_worker_database_connected"] == 0
        assert one.ready() == (503, "the database does not answer\n")
        assert one.process.is_running
        proxy.set(Mode.PASS)
        gather(handles, timeout_ms=LONG_MS)
        eventually(lambda: one.ready() == (200, "ok\n"))
        assert one.scrape()["horsies_worker_database_connected"] == 1
        # each session that told of a loss tells of its end, also one that is not opened again
        for lost in one.events(DatabaseLost):
            one.wait(DatabaseRegained, session=lost["session"])
        counts = {kind: [event["session"] for event in one.events(kind)] for kind in (DatabaseLost, DatabaseRegained)}
        assert sorted(counts[DatabaseLost]) == sorted(set(counts[DatabaseLost])) == sorted(counts[DatabaseRegained])
        assert one.scrape()["horsies_worker_database_outages_total"] == len(counts[DatabaseLost])


# -- schedules and workflows ---------------------------------------------------------------------


def test_schedules_and_workflows(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path, "--with-scheduler", environment={SCHEDULE_VARIABLE: "1"}) as one:
        fired = one.wait(ScheduleFired)
        assert fired["schedule"] == "tick"
        one.wait(AttemptSucceeded, task_id=fired["run_id"], task_name="noop")
        first = TaskNode(tasks.add, kwargs={"a": 1})
        run = tasks.app.workflow("pair", [first], output=first).start()
        run.get(LONG_MS)
        done = one.wait(WorkflowEnded)
        assert (done["workflow_id"], done["name"], done["status"]) == (run.workflow_id, "pair", "COMPLETED")
        bad = TaskNode(tasks.odd, kwargs={"kind": "wrong"})
        run = tasks.app.workflow("bad", [bad], output=bad).start()
        run.get(LONG_MS)
        assert one.wait(WorkflowEnded, workflow_id=run.workflow_id)["status"] == "FAILED"


def test_a_scheduler_process_calls_the_handlers_too(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "events"
    with ChaosProxy(db.url) as proxy:
        environment = {
            **os.environ, VARIABLE: json.dumps(described(proxy.url)), EVENTS_VARIABLE: str(file),
            SCHEDULE_VARIABLE: "1", LEDGER_VARIABLE: str(tmp_path),
        }  # fmt: skip
        command = [sys.executable, "-m", "horsies.cli", "scheduler", APP, f"--health-file={tmp_path / 'health'}"]
        with ended(WorkerProcess(command, environment, tmp_path)) as process:
            process.wait_up()
            one = Observed(process, file)
            assert one.wait(ScheduleFired)["schedule"] == "tick"
            proxy.set(Mode.CUT)
            assert one.wait(DatabaseLost)["session"] == "scheduler"
            proxy.set(Mode.PASS)
            assert one.wait(DatabaseRegained, timeout=60)["session"] == "scheduler"
    assert process.process.returncode == 0


# -- handlers that misbehave ---------------------------------------------------------------------


def test_a_handler_that_raises_or_exits_does_not_disturb_the_others(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path, handlers="raises,exits") as one:
        assert gather(tasks.add.send_many([(1, 1), (2, 2)]), timeout_ms=LONG_MS)
        eventually(lambda: len(one.events(AttemptSucceeded)) == 2)
    assert one.log.count("event handler _Raises failed on AttemptSucceeded") == 2
    assert one.log.count("event handler _exits failed on AttemptSucceeded") == 2
    assert FORGED in one.log
    assert not any(line.startswith(FORGED) for line in one.log.splitlines())


def test_a_slow_handler_holds_up_neither_tasks_nor_the_stop(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path, handlers="sleeps") as one:
        assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
        for _ in range(2):
            gather(tasks.noop.send_many([() for _ in range(3_000)]), timeout_ms=LONG_MS)
        dropped = eventually(lambda: one.scrape()["horsies_worker_events_dropped_total"])
        assert "the app's event handlers are too slow" in one.log
        # the queue has 10,000 places; each task is two events of the handlers here, and one more for the slow one
        assert dropped > 1_000
        assert one.process.stop(timeout=8) == 0
    assert "the app's event handlers have not finished within" in one.log


def test_a_slow_handler_does_not_change_the_exit_code_of_a_short_stop(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, observed(db, tmp_path, "--shutdown-timeout=1", handlers="sleeps") as one:
        assert tasks.add.send(1, 1).get(LONG_MS).ok == 2
        assert one.process.stop(timeout=8) == 0
    assert "exceeded its deadline" not in one.log


def test_the_import_of_an_app_calls_no_handler(db: Database, tmp_path: Path) -> None:
    file = tmp_path / "events"
    note(str(file), "")
    code = "import tests.support.event_app as one; assert len(one.app.event_handlers) == 1"
    environment = {**os.environ, VARIABLE: json.dumps(described(db)), EVENTS_VARIABLE: str(file)}
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, check=True)
    assert file.read_text() == "\n"
