"""Workflows when workers die at the worst moment, when two parents end at the same instant, and with very wide maps."""

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from horsies import SuccessCase, SuccessPolicy, WorkflowHandle, WorkflowSpec, from_node, result_from
from tests.support import workflow_app
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import BOUND_S, build
from tests.support.workers import WorkerProcess, check_invariants, describe, ended, start_worker
from tests.support.workflow_model import build as build_graph, compare, random_graph

POINTS = (
    "before_finalize", "after_finalize", "before_workflow_phase", "workflow_locked", "workflow_settled",
    "workflow_enqueued", "before_workflow_commit", "after_workflow_commit",
)  # fmt: skip


def dozen(t: SimpleNamespace, queue: str) -> WorkflowSpec[str]:
    """Twelve nodes: a diamond, an `any`, a quorum, a failure that somebody takes, a workflow inside, a map."""

    def node(name: str, waits: Any = (), **options: Any) -> Any:
        return t.traced.node(node_id=name, queue_name=queue, waits_for=waits, **options)(f"{queue}.{name}")

    top = node("top")
    left, right = node("left", [top]), node("right", [top])
    bottom = node("bottom", [left, right])
    bad = t.fail.node(node_id="bad", queue_name=queue)()
    skipped = node("skipped", [bad])
    taken = t.code_of.node(node_id="taken", queue_name=queue, allow_failed_deps=True)(result_from(bad))
    one_of = node("one_of", [left, bad], join="any")
    two_of = node("two_of", [left, right, bad], join="quorum", min_success=2)
    inside = t.app.workflow("inside", [first := node("inner-1"), node("inner-2", [first])], output=first)
    sub = inside.node(node_id="sub", waits_for=[top])
    items = t.spread.node(node_id="items", queue_name=queue)(5)
    squares = t.square.node(node_id="squares", queue_name=queue).map(items_from=items)
    nodes = [top, left, right, bottom, bad, skipped, taken, one_of, two_of, sub, items, squares]
    assert len(nodes) == 12
    policy = SuccessPolicy([SuccessCase([bottom, taken, one_of, two_of, sub, squares])])
    return t.app.workflow(f"dozen {queue}", nodes, output=bottom, success_policy=policy)


EXPECTED = dict.fromkeys(
    ("top", "left", "right", "bottom", "taken", "one_of", "two_of", "sub", "items", "squares"), "COMPLETED"
) | {"bad": "FAILED", "skipped": "SKIPPED"}


@pytest.mark.long
def test_kill_matrix_of_the_workflow_phase(db: Database, tmp_path: Path) -> None:
    config: dict[str, Any] = {"queues": dict.fromkeys(POINTS)}
    # a victim must not be rescued by another one before it is dead
    innocent = {"auto_fail_stale_running": False, "auto_requeue_stale_claimed": False,
                "crashed_worker_recovery_grace_ms": 0}  # fmt: skip
    with ExitStack() as stack:
        app = stack.enter_context(build(describe(db, **config)))
        t = workflow_app.register(app)
        t.app = app
        victims: dict[str, WorkerProcess] = {}
        runs: dict[str, WorkflowHandle[str]] = {}
        for point in POINTS:
            process = start_worker(
                describe(db, **config, recovery=innocent), tmp_path, f"--queues={point}", app=workflow_app.APP,
                processes=1, sync_points={point: tmp_path / point},
            )  # fmt: skip
            victims[point] = stack.enter_context(ended(process, code=None))
        for process in victims.values():
            process.wait_up()
        for point in POINTS:
            runs[point] = dozen(t, point).start()
        for point in POINTS:
            eventually((tmp_path / point).exists, timeout=40, describe=f"{point} is reached")
        gone = [one for process in victims.values() for one in process.offspring()]
        for process in victims.values():
            process.kill_all()
        eventually(lambda: not any(map(lives, gone)))
        # whoever waited in a transaction has lost it; the nodes are as the last commit left them
        rescuer = stack.enter_context(ended(start_worker(describe(db, **config), tmp_path, app=workflow_app.APP)))
        rescuer.wait_up()
        up = time.monotonic()
        eventually(
            lambda: not db.execute("SELECT id FROM horsies_workflows WHERE completed_at IS NULL"),
            timeout=3 * BOUND_S, describe="every workflow has ended",
        )  # fmt: skip
        assert time.monotonic() - up < 2 * BOUND_S
        for point, run in runs.items():
            assert run.get(1_000).ok == f"{point}.bottom", point
            assert {node.node_id: node.status.value for node in run.tasks()} == EXPECTED, point
            assert run.results()["taken"].ok == "BROKEN"
            assert run.results()["squares"].ok == [0, 1, 4, 9, 16]
        # nothing was started that no attempt tells of
        starts = Counter(line for file in (tmp_path / "ledger").glob("trace-*") for line in file.read_text().split())
        attempts = Counter(
            {
                row[0]: row[1]
                for row in db.execute(
                    "SELECT t.kwargs::json ->> 'label', count(*) FROM horsies_tasks t JOIN horsies_task_attempts a"
                    " ON a.task_id = t.id WHERE t.task_name = 'traced' GROUP BY 1"
                )
            }
        )
        names = ("top", "left", "right", "bottom", "one_of", "two_of", "inner-1", "inner-2")
        assert starts.keys() == {f"{point}.{name}" for point in POINTS for name in names}
        assert all(starts[label] <= attempts[label] for label in starts)
    check_invariants(db, slack_s=0)


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.long
def test_random_graphs_while_workers_are_killed(db: Database, tmp_path: Path) -> None:
    """Three workers, one of which is killed again and again; runs are paused and resumed meanwhile."""
    chance = random.Random(7)
    graphs = [random_graph(chance) for _ in range(40)]
    with ExitStack() as stack:
        app = stack.enter_context(build(describe(db)))
        t = workflow_app.register(app)

        def start() -> WorkerProcess:
            return stack.enter_context(ended(start_worker(describe(db), tmp_path, app=workflow_app.APP), code=None))

        workers = [start() for _ in range(3)]
        for process in workers:
            process.wait_up()
        runs = [build_graph(app, t, graph, f"g{at}").start() for at, graph in enumerate(graphs)]
        for _ in range(5):
            victim = workers.pop(0)
            for run in chance.sample(runs, 5):
                run.pause()
            victim.kill_all()
            workers.append(start())
            for run in runs:
                run.resume()
            workers[-1].wait_up()

        def all_ended() -> bool:
            for (workflow_id,) in db.execute("SELECT id FROM horsies_workflows WHERE status = 'PAUSED'"):
                app.workflow_handle(workflow_id).resume()  # a failure pauses some of them by themselves
            return not db.execute("SELECT id FROM horsies_workflows WHERE completed_at IS NULL")

        eventually(all_ended, timeout=60, interval=0.2, describe="every workflow has ended")
        for at, (graph, run) in enumerate(zip(graphs, runs, strict=True)):
            states = [node.status.value for node in run.tasks()]
            assert compare(graph, run.status(), states, run.results()) == [], at
        assert db.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    check_invariants(db, slack_s=0)


@pytest.mark.long
def test_two_hundred_diamonds_whose_parents_end_at_the_same_instant(db: Database, tmp_path: Path) -> None:
    """Two workers of two slots: the two parents of a diamond wait for one moment, each in another worker."""
    config: dict[str, Any] = {"queues": {"left": None, "right": None}}
    with ExitStack() as stack:
        app = stack.enter_context(build(describe(db, **config)))
        t = workflow_app.register(app)
        workers = [
            stack.enter_context(
                ended(start_worker(describe(db, **config), tmp_path, f"--queues={name}", app=workflow_app.APP))
            )
            for name in ("left", "right")
        ]
        for process in workers:
            process.wait_up()
        # two by two, so that both parents have begun when their moment comes
        began = time.time() + 1.0
        runs: list[WorkflowHandle[str]] = []
        for number in range(200):
            moment = began + number // 2 * 0.03
            parents = [
                t.at_same_time.node(node_id=name, queue_name=name)(f"{name}-{number}", moment)
                for name in ("left", "right")
            ]
            bottom = t.join.node(node_id="bottom", queue_name="left", waits_for=parents)(f"join-{number}")
            runs.append(app.workflow("diamond", [*parents, bottom], output=bottom).start())
        for number, run in enumerate(runs):
            assert run.get(60_000).ok == f"join-{number}"
        starts = Counter(line for file in (tmp_path / "ledger").glob("trace-*") for line in file.read_text().split())
        assert starts == {f"join-{number}": 1 for number in range(200)}
        together = db.value(
            """SELECT count(*) FROM (SELECT n.workflow_id FROM horsies_workflow_tasks n
               WHERE cardinality(n.dependencies) = 0 GROUP BY n.workflow_id
               HAVING max(n.completed_at) - min(n.completed_at) < interval '5 ms') AS x"""
        )
        assert together >= 50, f"only {together} diamonds ended at the same instant"
    check_invariants(db, slack_s=0)


@pytest.mark.long
def test_ten_thousand_items(db: Database, tmp_path: Path) -> None:
    """Bounded memory in the worker, and no statement of it above a few megabytes."""
    with ExitStack() as stack:
        app = stack.enter_context(build(describe(db)))
        t = workflow_app.register(app)
        process = start_worker(describe(db), tmp_path, app=workflow_app.APP)
        stack.enter_context(ended(process))
        process.wait_up()
        t.number.send(1).get(10_000)
        before = psutil.Process(process.pid).memory_info().rss
        items = t.spread.node()(10_000)
        squares = t.square.node().map(items_from=items)
        summed = t.total.node()(from_node(squares))
        run = app.workflow("many", [items, squares, summed], output=summed).start()
        peak = before
        while run.get(200).is_err():
            peak = max(peak, psutil.Process(process.pid).memory_info().rss)
            assert process.is_running
            assert app.workflow_handle(run.workflow_id).status() is not None
        assert run.get(1_000).unwrap() == sum(x * x for x in range(10_000))
        assert peak - before < 64 * 2**20, f"the worker grew by {(peak - before) / 2**20:.0f} MB"
        largest = db.value("SELECT max(octet_length(kwargs)) FROM horsies_tasks")
        assert largest < 1_000_000
    check_invariants(db, slack_s=0)
