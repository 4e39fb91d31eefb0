"""Tasks that complete themselves in their own transaction, on real workers: the parent finds their ends, or none."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from horsies import BrokerError, CancelResult, TaskHandle, from_node
from tests.support import completing_app, postgres, workers
from tests.support.completing_app import APP, BUSINESS, EVENTS_VARIABLE, disagreements
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import build
from tests.support.workers import check_invariants, describe, ended, start_worker

LONG_MS = 20_000
DONE = ["write", "complete", "commit"]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    folder = tmp_path_factory.mktemp("completing")
    with postgres.database() as db:
        db.execute(BUSINESS)
        events = folder / "events"
        events.touch()
        environment: Any = {EVENTS_VARIABLE: str(events)}
        process = start_worker(describe(db), folder, app=APP, **environment)
        workers.shared.add(process.pid)
        with ended(process), build(describe(db)) as app:
            process.wait_up()
            tasks = completing_app.register(app)
            yield SimpleNamespace(
                db=db, worker=process, tasks=tasks, events=events, folder=folder, keys=itertools.count()
            )
            assert disagreements(db) == []
            check_invariants(db, async_tasks=["work_async"])
            assert "CLAIM_LOST" not in process.log
        workers.shared.discard(process.pid)


def attempts(db: Database, handle: TaskHandle[Any]) -> list[tuple[Any, ...]]:
    columns = "outcome, error_code, worker_pid IS NOT NULL, position('-child-' IN worker_process_name) > 0"
    sql = f"SELECT {columns} FROM horsies_task_attempts WHERE task_id = %s ORDER BY attempt"
    return db.execute(sql, handle.task_id)


def told(shared: SimpleNamespace, handle: TaskHandle[Any], count: int = 1) -> list[str]:
    """The events about a task."""

    def found() -> list[str]:
        return [line.split()[0] for line in shared.events.read_text().splitlines() if handle.task_id in line]

    eventually(lambda: len(found()) >= count)
    return found()


COMPLETED = ("COMPLETED", None, True, True)
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'cancel_tasks'"


@pytest.mark.parametrize(
    ("task", "steps", "warning"),
    [
        ("work", DONE, None),
        ("work", ["write", "thread", "commit"], None),
        ("work", ["write", "complete", "rollback", *DONE], None),
        ("work_async", [], None),
        ("work", [*DONE, "raise"], "ended with UNHANDLED_EXCEPTION after that"),
        ("work", [*DONE, "err"], "ended with MINE after that"),
        ("work", [*DONE, "kill"], "ended with WORKER_CRASHED after that"),
        ("work_again", [*DONE, "kill"], "ended with WORKER_CRASHED after that"),
        ("work_briefly", [*DONE, "sleep:60"], "ended with TASK_TIMEOUT after that"),
        # longer than several heartbeats, which find no running task any more
        ("work", [*DONE, "sleep:2.2"], None),
        ("work", ["write", "complete", "keep:0.7 commit"], None),
    ],
)
def test_a_committed_end_stays(shared: SimpleNamespace, task: str, steps: list[str], warning: str | None) -> None:
    k = next(shared.keys)
    handle = getattr(shared.tasks, task).send(k, steps)
    assert handle.get(LONG_MS).ok == k
    assert attempts(shared.db, handle) == [COMPLETED]
    assert told(shared, handle) == ["AttemptSucceeded"]

    def told_in_log(text: str) -> list[str]:
        return [line for line in shared.worker.log.splitlines() if handle.task_id in line and text in line]

    if warning is None:
        assert not told_in_log("WARNING")
    else:
        eventually(lambda: told_in_log(warning))  # a thread of its own writes the log
        assert len(told_in_log("stays COMPLETED")) == 1


@pytest.mark.parametrize(
    ("task", "steps", "ends"),
    [
        ("work", ["write", "complete", "rollback"], ["COMPLETION_NOT_COMMITTED"]),
        ("work", ["write", "complete"], ["COMPLETION_NOT_COMMITTED"]),
        ("work", ["write", "complete", "keep:0.7 rollback"], ["COMPLETION_NOT_COMMITTED"]),
        ("work", ["write", "complete", "raise"], ["UNHANDLED_EXCEPTION"]),
        ("work", ["write", "complete", "kill"], ["WORKER_CRASHED"]),
        ("work_briefly", ["write", "complete", "sleep:60"], ["TASK_TIMEOUT"]),
        ("work_async", ["raise"], ["UNHANDLED_EXCEPTION"]),
        ("work_again", ["write", "complete", "kill", "commit"], ["WORKER_CRASHED", None]),
    ],
)
def test_an_end_that_was_rolled_back_is_none(
    shared: SimpleNamespace, task: str, steps: list[str], ends: list[str | None]
) -> None:
    k = next(shared.keys)
    handle = getattr(shared.tasks, task).send(k, steps)
    result = handle.get(LONG_MS)
    assert [row[1] for row in attempts(shared.db, handle)] == ends
    assert (result.ok if ends[-1] is None else str(result.err_value.error_code)) == (ends[-1] or k)
    events = ["AttemptSucceeded" if end is None else "AttemptFailed" for end in ends]
    assert told(shared, handle, len(ends)) == events
    assert disagreements(shared.db) == []


def test_a_task_that_committed_is_not_cancelled(shared: SimpleNamespace) -> None:
    """Before the commit, a cancel waits for the transaction; after it, there is nothing to cancel."""
    for steps in ([*DONE, "wait"], ["write", "complete", "wait", "commit"]):
        k = next(shared.keys)
        at = shared.folder / f"cancelled-{k}"
        handle = shared.tasks.work.send(k, [f"wait:{at}" if step == "wait" else step for step in steps])
        eventually(at.exists)
        with ThreadPoolExecutor(1) as pool:
            cancelled = pool.submit(handle.cancel)
            if steps[-1] == "commit":
                eventually(lambda: shared.db.value(WAITING) == 1)
                assert not cancelled.done()
            else:
                assert cancelled.result() is CancelResult.ALREADY_ENDED
            at.with_name(at.name + ".go").touch()
            assert cancelled.result() is CancelResult.ALREADY_ENDED
        assert handle.get(LONG_MS).ok == k
        assert attempts(shared.db, handle) == [COMPLETED]


@pytest.mark.long
@pytest.mark.timeout(200)
@pytest.mark.parametrize(("then", "end"), [([], "COMPLETION_NOT_COMMITTED"), (["raise"], "UNHANDLED_EXCEPTION")])
def test_a_transaction_that_is_left_open_is_ended(shared: SimpleNamespace, then: list[str], end: str) -> None:
    """The worker ends the session a minute after the task has returned. Until then `cancel` fails, and names the
    session."""
    k = next(shared.keys)
    handle = shared.tasks.work.send(k, ["write", "complete", "keep:90 commit", *then])
    other = psycopg.connect(shared.db.url)
    other.execute("SELECT count(*) FROM horsies_tasks")  # an old transaction, which has nothing to do with it
    told = f"task {handle.task_id} attempt 1 has returned"
    eventually(lambda: told in shared.worker.log, timeout=60)
    with pytest.raises(BrokerError, match=rf"not cancelled: task {handle.task_id}: session \d+ .* holds it"):
        handle.cancel()
    assert not shared.db.value(
        "SELECT count(*) FROM pg_stat_activity WHERE state = 'active' AND query LIKE '%%horsies_cancel_tasks%%'"
        " AND pid <> pg_backend_pid()"
    )
    assert str(handle.get(120_000).err.error_code) == end
    eventually(lambda: "ended session" in shared.worker.log.rpartition(told)[2])  # a thread of its own writes the log
    assert shared.db.value("SELECT count(*) FROM business WHERE task_id = %s", handle.task_id) == 0
    other.execute("SELECT 1")
    other.close()


def test_the_workflow_goes_on(shared: SimpleNamespace) -> None:
    k = next(shared.keys)
    first = shared.tasks.work.node(node_id="first")(k, DONE)
    second = shared.tasks.double.node(node_id="second", waits_for=[first])(from_node(first))
    flow = shared.tasks.app.workflow("completing", [first, second], output=second)
    assert flow.start().get(LONG_MS).ok == 2 * k


def test_a_stop_of_the_worker_ends_an_open_transaction(db: Database, tmp_path: Path) -> None:
    db.execute(BUSINESS)
    at = tmp_path / "open"
    process = start_worker(describe(db), tmp_path, "--shutdown-timeout=2.5", app=APP)
    with ended(process, code=None), build(describe(db)) as app:
        handle = completing_app.register(app).work.send(1, ["write", "complete", f"wait:{at}", "commit"])
        eventually(at.exists, timeout=40)
        process.terminate()
        process.wait()
        assert str(handle.get(LONG_MS).err.error_code) == "WORKER_CRASHED"
        assert "interrupted by shutdown" in handle.info().failed_reason
        assert disagreements(db) == []


def test_through_a_transaction_pooler(db: Database, tmp_path: Path) -> None:
    db.execute(BUSINESS)
    with pgbouncer(db) as proxy:
        config = describe(proxy.url, broker={"pooler": True, "direct_url": db.url})
        with ended(start_worker(config, tmp_path, app=APP)) as process, build(config) as app:
            process.wait_up()
            tasks = completing_app.register(app)
            handles = [tasks.work.send(k, DONE) for k in range(20)]
            assert [handle.get(LONG_MS).ok for handle in handles] == list(range(20))
            lost = tasks.work.send(20, ["write", "complete", "rollback"])
            assert str(lost.get(LONG_MS).err.error_code) == "COMPLETION_NOT_COMMITTED"
    assert disagreements(db) == []
