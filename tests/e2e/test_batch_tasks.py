"""Batch tasks on real workers: many tasks in one call, each with an end of its own."""

import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import CancelResult, TaskHandle, TaskStatus, gather
from tests.support import batch_app, postgres, worker_app, workers
from tests.support.batch_app import Item, Line
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess, check_invariants

LONG_MS = 20_000
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


@contextmanager
def batch_worker(db: Database, folder: Path, *arguments: str, **config: Any) -> Iterator[WorkerProcess]:
    started = workers.start_worker(workers.describe(db, **config), folder, *arguments, app=batch_app.LOCATOR)
    with workers.ended(started):
        started.wait_up()
        yield started


@contextmanager
def batch_tasks(db: Database, **config: Any) -> Iterator[SimpleNamespace]:
    with worker_app.build(workers.describe(db, **config)) as app:
        yield batch_app.register(app)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """One database with one worker of two children, and its tasks."""
    folder = tmp_path_factory.mktemp("shared")
    with postgres.database() as db, batch_worker(db, folder) as process:
        workers.shared.add(process.pid)
        try:
            with batch_tasks(db) as tasks:
                tasks.db, tasks.worker, tasks.folder = db, process, folder
                yield tasks
            check_invariants(db, async_tasks=batch_app.ASYNC_TASKS)
        finally:
            workers.shared.discard(process.pid)


def items(prefix: str, count: int, **given: Any) -> list[tuple[Item]]:
    return [(Item(key=f"{prefix}{at}", **given),) for at in range(count)]


def calls_of(folder: Path, handles: list[TaskHandle[Any]]) -> list[Line]:
    """The calls in which these tasks ran."""
    ids = {handle.task_id for handle in handles}
    return [line for line in batch_app.lines(folder) if not ids.isdisjoint(line.ids)]


def attempts(db: Database, handle: TaskHandle[Any]) -> list[tuple[Any, ...]]:
    query = "SELECT attempt, outcome, error_code FROM horsies_task_attempts WHERE task_id = %s ORDER BY attempt"
    return db.execute(query, handle.task_id)


def test_a_thousand_tasks_run_in_some_ten_calls(shared: SimpleNamespace) -> None:
    handles = shared.index.send_many(items("t", 1_000))
    results = gather(handles, timeout_ms=LONG_MS)
    assert [result.ok for result in results] == [f"T{at}" for at in range(1_000)]
    calls = calls_of(shared.folder, handles)
    assert Counter(task_id for call in calls for task_id in call.ids) == Counter(h.task_id for h in handles)
    assert 10 <= len(calls) <= 25, [len(call.ids) for call in calls]


def test_a_few_tasks_wait_for_others_only_so_long(shared: SimpleNamespace) -> None:
    began = time.monotonic()
    handles = [shared.patient.send(*item) for item in items("few", 3)]
    assert [result.ok for result in gather(handles, timeout_ms=LONG_MS)] == ["FEW0", "FEW1", "FEW2"]
    assert time.monotonic() - began >= 0.35
    (call,) = calls_of(shared.folder, handles)
    assert call.keys == ["few0", "few1", "few2"]


def test_a_full_call_does_not_wait(shared: SimpleNamespace) -> None:
    handles = shared.patient.send_many(items("full", 10))
    gather(handles, timeout_ms=LONG_MS)
    first, second = calls_of(shared.folder, handles)
    assert (len(first.ids), len(second.ids)) == (5, 5)
    assert second.at - first.at < 0.3


def test_each_task_has_its_own_end(shared: SimpleNamespace) -> None:
    """Only the failed ones are retried, and alone."""
    kinds = ["ok", "busy", "odd", "busy_once", "ok"]
    handles = shared.patient.send_many([(Item(key=f"own{at}", do=do),) for at, do in enumerate(kinds)])
    ok, busy, odd, again, last = gather(handles, timeout_ms=LONG_MS)
    assert (ok.ok, last.ok, again.ok) == ("OWN0", "OWN4", "own3 again")
    assert (busy.err_value.error_code, busy.err_value.message) == ("BUSY", "own1 is busy")
    assert odd.err_value.error_code == "RETURN_TYPE_MISMATCH"
    assert "it is a str, not a TaskResult" in str(odd.err_value.message)
    calls = calls_of(shared.folder, handles)
    assert [call.attempts for call in calls] == [[1] * 5, [2], [2]]
    assert {call.keys[0] for call in calls[1:]} == {"own1", "own3"}
    assert [row[:2] for row in attempts(shared.db, handles[3])] == [(1, "FAILED"), (2, "COMPLETED")]


def test_an_exception_fails_all_tasks_of_the_call(shared: SimpleNamespace) -> None:
    """Each is retried by its own policy; alone, only the one that raises fails."""
    handles = shared.patient.send_many([(Item(key=f"exc{at}", do="raise" if at == 1 else "ok"),) for at in range(4)])
    results = gather(handles, timeout_ms=LONG_MS)
    assert [result.ok for result in results] == ["EXC0", None, "EXC2", "EXC3"]
    assert (results[1].err_value.error_code, "no disk for exc1" in str(results[1].err_value.message)) == (
        "UNHANDLED_EXCEPTION",
        True,
    )
    calls = calls_of(shared.folder, handles)
    assert sorted(len(call.ids) for call in calls) == [1, 1, 1, 1, 4]


def test_a_list_of_another_length_is_a_contract_error_of_all(shared: SimpleNamespace) -> None:
    handles = shared.index.send_many([(Item(key="a", do="short"),), (Item(key="b"),)])
    for result in gather(handles, timeout_ms=LONG_MS):
        assert result.err_value.error_code == "RETURN_TYPE_MISMATCH"
        assert "'index' returned 0 results for 2 items" in str(result.err_value.message)


def test_an_item_that_does_not_fit_fails_alone(shared: SimpleNamespace) -> None:
    """Another program, which does not know the task's types, has sent it."""
    with worker_app.build(workers.describe(shared.db)) as stranger:
        good, bad = stranger.send("patient", {"key": "good"}), stranger.send("patient", item=5)
        assert good.get(LONG_MS).ok == "GOOD"
        assert bad.get(LONG_MS).err_value.error_code == "WORKER_SERIALIZATION_ERROR"
    (call,) = calls_of(shared.folder, [good, bad])
    assert (call.keys, call.ids) == (["good"], [good.task_id])


def test_async_functions_get_lists_too(shared: SimpleNamespace) -> None:
    handles = shared.fetch.send_many(items("f", 200, seconds=0.05))
    assert [result.ok for result in gather(handles, timeout_ms=LONG_MS)] == [f"F{at}" for at in range(200)]
    assert 4 <= len(calls_of(shared.folder, handles)) <= 8


def test_a_task_that_kills_the_child_is_found_alone(shared: SimpleNamespace) -> None:
    """The others of its call get one more attempt, although no policy asks for it."""
    handles = shared.index.send_many([(Item(key=f"d{at}", do="die" if at == 3 else "ok"),) for at in range(8)])
    results = gather(handles, timeout_ms=LONG_MS)
    assert [result.ok for at, result in enumerate(results) if at != 3] == [f"D{at}" for at in range(8) if at != 3]
    assert results[3].err_value.error_code == "WORKER_CRASHED"
    calls = calls_of(shared.folder, handles)
    assert sorted(len(call.ids) for call in calls) == [1] * 8 + [8]
    assert attempts(shared.db, handles[0]) == [(1, "WORKER_FAILURE", "WORKER_CRASHED"), (2, "COMPLETED", None)]
    assert [row[1] for row in attempts(shared.db, handles[3])] == ["WORKER_FAILURE", "WORKER_FAILURE"]


def test_a_timeout_ends_the_whole_call(shared: SimpleNamespace) -> None:
    handles = shared.timed.send_many([(Item(key="slow", seconds=5),), (Item(key="quick"),)])
    for result in gather(handles, timeout_ms=LONG_MS):
        assert result.err_value.error_code == "TASK_TIMEOUT"


def test_a_cancelled_task_does_not_stop_the_call_of_the_others(shared: SimpleNamespace) -> None:
    handles = shared.index.send_many([(Item(key="c0", do="busy", seconds=1),), (Item(key="c1"),), (Item(key="c2"),)])
    eventually(lambda: len(calls_of(shared.folder, handles)) == 1)
    assert handles[0].cancel() is CancelResult.REQUESTED
    assert handles[2].cancel() is CancelResult.REQUESTED
    failed, other, done = gather(handles, timeout_ms=LONG_MS)
    assert failed.err_value.error_code == "TASK_CANCELLED"
    assert (other.ok, done.ok) == ("C1", "C2"), "a result that is there stands"
    assert len(calls_of(shared.folder, handles)) == 1


def test_a_call_is_stopped_when_all_of_its_tasks_are_cancelled(shared: SimpleNamespace) -> None:
    handles = shared.index.send_many(items("all", 3, seconds=20))
    eventually(lambda: [handle.info().progress for handle in handles] == ["all0", "all1", "all2"])
    assert len(calls_of(shared.folder, handles)) == 1
    for handle in handles:
        handle.cancel()
    assert {result.err_value.error_code for result in gather(handles, timeout_ms=LONG_MS)} == {"TASK_CANCELLED"}


def test_a_task_that_waits_for_others_is_cancelled_without_a_run(shared: SimpleNamespace) -> None:
    handles = shared.patient.send_many(items("w", 2))
    eventually(lambda: handles[0].info().status is TaskStatus.RUNNING)
    handles[0].cancel()
    first, second = gather(handles, timeout_ms=LONG_MS)
    assert (first.err_value.error_code, second.ok) == ("TASK_CANCELLED", "W1")
    assert attempts(shared.db, handles[0]) == []


def test_nodes_and_members_of_a_batch_run_in_calls(shared: SimpleNamespace) -> None:
    """Each end advances its own run."""
    nodes = [shared.patient.node(node_id=f"n{at}")(Item(key=f"n{at}")) for at in range(4)]
    run = shared.app.workflow("four", nodes, output=nodes[3]).start()
    batch = shared.app.batch([shared.patient.call(Item(key=f"b{at}")) for at in range(3)])
    assert run.get(LONG_MS).ok == "N3"
    assert batch.get(LONG_MS).is_ok()
    calls = [call for call in batch_app.lines(shared.folder) if {"n0", "b0"} & set(call.keys)]
    assert max(len(call.ids) for call in calls) > 1


def test_batch_tasks_and_others_share_the_children(shared: SimpleNamespace) -> None:
    many = shared.index.send_many(items("m", 300, seconds=0.001))
    single = shared.single.send_many(items("s", 60, seconds=0.01))
    assert all(result.is_ok() for result in gather([*many, *single], timeout_ms=LONG_MS))
    assert len(calls_of(shared.folder, many)) <= 30


def test_groups_count_tasks_and_not_calls(shared: SimpleNamespace) -> None:
    handles = shared.grouped.send_many(items("a", 10) + items("b", 10))
    assert all(result.is_ok() for result in gather(handles, timeout_ms=LONG_MS))
    calls = calls_of(shared.folder, handles)
    assert Counter(task_id for call in calls for task_id in call.ids) == Counter(h.task_id for h in handles)
    assert len(calls) <= 10, [len(call.ids) for call in calls]


def test_the_tasks_of_a_killed_worker_run_alone_elsewhere(tmp_path: Path, db: Database) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    with batch_tasks(db) as tasks:
        with batch_worker(db, one) as process:
            handles = tasks.index.send_many(items("k", 6, seconds=20))
            eventually(lambda: len(calls_of(one, handles)) == 1)
            process.kill_all()
        db.execute("UPDATE horsies_tasks SET kwargs = replace(kwargs, '20.0', '0.01') RETURNING 1")
        with batch_worker(db, two):
            assert all(result.is_ok() for result in gather(handles, timeout_ms=LONG_MS))
        assert [len(call.ids) for call in calls_of(two, handles)] == [1] * 6
        assert [row[1] for row in attempts(db, handles[0])] == ["WORKER_FAILURE", "COMPLETED"]
    check_invariants(db, async_tasks=batch_app.ASYNC_TASKS)


def test_a_stop_returns_gathered_tasks_and_finishes_the_call(tmp_path: Path, db: Database) -> None:
    with batch_tasks(db) as tasks, batch_worker(db, tmp_path) as process:
        running = tasks.index.send_many(items("r", 3, seconds=0.3))
        eventually(lambda: len(calls_of(tmp_path, running)) == 1)
        waiting = tasks.patient.send_many(items("p", 2))
        eventually(lambda: waiting[0].info().status is TaskStatus.RUNNING)
        assert process.stop() == 0
        assert [handle.info().status for handle in running] == [TaskStatus.COMPLETED] * 3
        assert [handle.info().status for handle in waiting] == [TaskStatus.PENDING] * 2
        assert attempts(db, waiting[0]) == []


def test_a_drain_returns_gathered_tasks_at_once(tmp_path: Path, db: Database) -> None:
    with batch_tasks(db) as tasks, batch_worker(db, tmp_path) as process:
        waiting = tasks.collected.send_many(items("c", 2))
        eventually(lambda: waiting[0].info().status is TaskStatus.RUNNING)
        command = [sys.executable, "-m", "horsies.cli", "workers", "drain", process.worker_id, "--database-url", db.url]
        drained = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        assert f"worker {process.worker_id} is drained" in drained.stdout, drained
        assert [handle.info().status for handle in waiting] == [TaskStatus.PENDING] * 2
        assert attempts(db, waiting[0]) == []


def test_values_of_a_batch_task_that_are_not_stored(shared: SimpleNamespace) -> None:
    handles = shared.collected.send_many(items("v", 5))
    results = gather(handles, timeout_ms=LONG_MS)
    assert [result.err_value.error_code for result in results] == ["RESULT_NOT_AVAILABLE"] * 5
    query = "SELECT DISTINCT status, result, keep_seconds FROM horsies_tasks WHERE id = ANY(%s)"
    assert shared.db.execute(query, [handle.task_id for handle in handles]) == [("COMPLETED", None, 3600)]


def test_two_names_on_one_child_do_not_send_each_other_back_for_long(tmp_path: Path, db: Database) -> None:
    """The calls of `index` are complete sooner than those of `patient`, which gather for longer and began first."""
    with batch_tasks(db) as tasks:
        slow = tasks.patient.send_many(items("slow", 3))
        soon = tasks.index.send_many(items("soon", 500, seconds=0.005))
        started = workers.start_worker(workers.describe(db), tmp_path, app=batch_app.LOCATOR, processes=1)
        with workers.ended(started):
            assert all(result.is_ok() for result in gather([*slow, *soon], timeout_ms=LONG_MS))
        assert db.value("SELECT max(claim_generation) FROM horsies_tasks") <= 3


def test_a_prefetch_buffer_feeds_calls(tmp_path: Path, db: Database) -> None:
    config = {"prefetch_buffer": 40, "claim_lease_ms": 3_000}
    with batch_tasks(db, **config) as tasks, batch_worker(db, tmp_path, **config):
        handles = tasks.index.send_many(items("x", 120, seconds=0.001))
        assert all(result.is_ok() for result in gather(handles, timeout_ms=LONG_MS))
        assert len(calls_of(tmp_path, handles)) <= 20, [len(call.ids) for call in calls_of(tmp_path, handles)]


def test_the_example_indexes_in_bulk(tmp_path: Path, db: Database) -> None:
    environment = {**os.environ, "HORSIES_DATABASE_URL": db.url, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "horsies_worker", "bulk_index:app", "--processes=2"]
    process = WorkerProcess([*command, f"--health-file={tmp_path / 'health'}"], environment, tmp_path, cwd=EXAMPLES)
    with workers.ended(process):
        process.wait_up()
        script = subprocess.run(
            [sys.executable, "bulk_index.py"], cwd=EXAMPLES, env=environment, capture_output=True, text=True, timeout=60
        )
        assert script.stdout == "990 documents indexed, refused: [99, 199, 299] and 7 more\n", script.stderr
        assert 10 <= process.log.count("indexing ") <= 25
