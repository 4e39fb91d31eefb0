"""Waits, Continue and compensation on real workers."""

import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace

import pytest

from horsies import WorkflowStatus, from_node, sleep, wait_for_signal
from tests.support import postgres, workers, workflow_app
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import BOUND_S, build
from tests.support.workers import check_invariants, describe, ended, start_worker


@pytest.fixture(scope="module")
def shared_db() -> Iterator[Database]:
    with postgres.database() as database:
        yield database


@pytest.fixture(scope="module")
def running(shared_db: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("worker")
    process = start_worker(describe(shared_db), folder, app=workflow_app.APP)
    workers.shared.add(process.pid)
    with ended(process):
        process.wait_up()
        yield folder


@pytest.fixture
def t(shared_db: Database, running: Path) -> Iterator[SimpleNamespace]:
    with build(describe(shared_db)) as app:
        tasks = workflow_app.register(app)
        tasks.app = app
        tasks.folder = running
        yield tasks
    eventually(
        lambda: not shared_db.execute("SELECT 1 FROM horsies_workflow_tasks n JOIN horsies_tasks t ON t.id = n.task_id"
                                      " WHERE n.status = 'ENQUEUED' AND t.terminal_at IS NOT NULL"))  # fmt: skip
    check_invariants(shared_db)


def traced(folder: Path, name: str) -> list[str]:
    """What the tasks of this name noted, in the order of their starts; one process runs them one after the other."""
    files = sorted((folder / "ledger").glob("trace-*"), key=lambda file: file.stat().st_mtime)
    lines = [line for file in files for line in file.read_text().split()]
    return [line for line in lines if line.startswith(name)]


def test_a_signal_moves_a_run(t: SimpleNamespace, shared_db: Database) -> None:
    """signal before the node waits: kept; and a notification moves a run that waits"""
    wait = wait_for_signal("go", int, node_id="wait")
    last = t.number.node(node_id="last")(from_node(wait))
    spec = t.app.workflow("approval", [wait, last], output=last)
    early, late = spec.start(), spec.start()
    early.signal(wait, 5)
    assert early.get(20_000).unwrap() == 5
    eventually(lambda: {node.node_id: node.status for node in late.tasks()}["wait"] == "WAITING")
    began = time.monotonic()
    late.signal("go", 6)
    assert late.get(20_000).unwrap() == 6
    assert time.monotonic() - began < BOUND_S  # by notification, not by recovery


def test_a_value_of_a_wrong_type(t: SimpleNamespace, shared_db: Database) -> None:
    """value with a wrong type (by SQL): taker fails WORKER_SERIALIZATION_ERROR"""
    wait = wait_for_signal("go", int, node_id="wait")
    last = t.number.node(node_id="last")(from_node(wait))
    handle = t.app.workflow("approval", [wait, last], output=last).start()
    assert shared_db.value("SELECT horsies_signal(%s, 'go', '\"five\"')", handle.workflow_id) == "DELIVERED"
    assert handle.get(20_000).is_err()
    assert handle.result_for(last).err_value.error_code == "WORKER_SERIALIZATION_ERROR"


def test_a_sleep_ends_and_is_not_early(t: SimpleNamespace, shared_db: Database) -> None:
    """sleep across pause: never early"""
    first = t.number.node(node_id="first")(1)
    rest = sleep(0.3, node_id="rest", waits_for=[first])
    last = t.number.node(node_id="last", waits_for=[rest])(2)
    handle = t.app.workflow("nap", [first, rest, last], output=last).start()
    assert handle.get(20_000).unwrap() == 2
    slept = shared_db.value(
        "SELECT date_part('epoch', completed_at - started_at) FROM horsies_workflow_tasks"
        " WHERE workflow_id = %s AND node_id = 'rest'", handle.workflow_id,
    )  # fmt: skip
    assert slept >= 0.3


def test_a_run_that_starts_later(t: SimpleNamespace, shared_db: Database) -> None:
    """`start_at`: the run is PENDING"""
    node = t.number.node(node_id="one")(1)
    handle = t.app.workflow("later", [node], output=node).start(start_at=0.5)
    assert handle.status() is WorkflowStatus.PENDING
    assert handle.get(20_000).unwrap() == 1
    assert shared_db.value("SELECT started_at >= start_at FROM horsies_workflows WHERE id = %s", handle.workflow_id)


def test_a_deadline_stops_a_running_task(t: SimpleNamespace, shared_db: Database) -> None:
    """deadline: waiting nodes SKIPPED, running tasks asked to stop, run FAILED, WORKFLOW_DEADLINE"""
    long = t.traced.node(node_id="long")("long", seconds=60.0)
    after = t.number.node(node_id="after", waits_for=[long])(1)
    handle = t.app.workflow("slow", [long, after]).start(deadline=1.5)
    assert handle.get(20_000).err_value.error_code == "WORKFLOW_DEADLINE"
    eventually(
        lambda: {node.node_id: node.status.value for node in handle.tasks()} == {"long": "FAILED", "after": "SKIPPED"},
        timeout=20,
    )  # fmt: skip
    assert shared_db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'RUNNING'") == 0


def test_a_loop_of_five_rounds(t: SimpleNamespace, shared_db: Database) -> None:
    """Continue as output with nothing else open: the new run takes the old one's place: depth constant"""
    node = t.countdown.node(node_id="again")(5)
    handle = t.app.workflow("countdown", [node], output=node).start()
    assert handle.get(20_000).unwrap() == 0
    assert len(traced(t.folder, "countdown")) == 6
    info = handle.info()
    assert info is not None
    assert (info.continues, info.depth) == (5, 0)


def test_a_task_that_cannot_continue(t: SimpleNamespace) -> None:
    """`Continue[T]` returned by a task: T must be the node's type; outside a workflow a contract error"""
    node = t.continue_as_text.node(node_id="text")()
    handle = t.app.workflow("wrong", [node], output=node).start()
    assert handle.get(20_000).is_err()
    error = handle.result_for(node).err_value
    assert error.error_code == "RETURN_TYPE_MISMATCH"
    assert "returns str, and the task returns int" in error.message
    assert t.countdown.send(3).get(20_000).err_value.error_code == "RETURN_TYPE_MISMATCH"
    assert t.countdown.send(0).get(20_000).ok == 0


def test_a_saga_whose_worker_dies_while_it_undoes(db: Database, tmp_path: Path) -> None:
    """order, arguments: one at a time by `ended_seq` descending; a worker that is killed in the middle of a
    compensation delays it, and nothing is left out"""
    with ExitStack() as stack:
        app = stack.enter_context(build(describe(db)))
        t = workflow_app.register(app)
        victim = stack.enter_context(
            ended(start_worker(describe(db), tmp_path, app=workflow_app.APP, processes=1), code=None)
        )
        victim.wait_up()
        one = t.book.node(node_id="one", compensate=t.unbook)(1)
        two = t.book.node(node_id="two", compensate=t.unbook, waits_for=[one])(2, seconds=2.0)
        three = t.book.node(node_id="three", compensate=t.unbook, waits_for=[two])(3)
        bad = t.fail.node(node_id="bad", waits_for=[three])()
        handle = app.workflow("saga", [one, two, three, bad]).start()
        eventually(lambda: "unbook-2" in traced(tmp_path, "unbook"), timeout=30)  # it takes two seconds
        victim.kill_all()
        rescuer = stack.enter_context(ended(start_worker(describe(db), tmp_path, app=workflow_app.APP, processes=1)))
        rescuer.wait_up()
        error = handle.get(60_000).err_value
        assert (error.error_code, error.data["cause"]["error_code"]) == ("WORKFLOW_FAILED", "BROKEN")
        assert traced(tmp_path, "book") == ["book-1", "book-2", "book-3"]
        assert traced(tmp_path, "unbook") == ["unbook-3", "unbook-2", "unbook-2", "unbook-1"]
        states = {node.node_id: node.status.value for node in handle.tasks() if node.node_id.startswith("undo")}
        assert states == dict.fromkeys(("undo-1-three", "undo-2-two", "undo-3-one"), "COMPLETED")
    check_invariants(db, slack_s=0)
