"""What `testing.inline` says is what a real worker does: random tasks and random workflows, run by both."""

import random
from pathlib import Path
from typing import Any

from horsies import TaskError, TaskResult, gather, testing
from tests.support import testing_app, workflow_app
from tests.support.apps import UNREACHABLE, make_app
from tests.support.postgres import Database
from tests.support.worker_app import build as build_app
from tests.support.workers import describe, ended, start_worker
from tests.support.workflow_model import Graph, build, random_graph

CASES = 120
GRAPHS = 25


def test_random_tasks_end_alike(db: Database, tmp_path: Path) -> None:
    chance = random.Random(20261117)
    names = ("scripted", "scripted_async", "scripted_once")
    cases = [(chance.choice(names), testing_app.random_steps(chance)) for _ in range(CASES)]
    assert {step.kind for _, steps in cases for step in steps} == set(testing_app.KINDS)
    config = testing_app.described(db.url)

    imagined = testing_app.make({**config, "url": UNREACHABLE})
    tasks = vars(testing_app.register(imagined))
    with testing.inline(imagined) as sends:
        inline = [tasks[name].send(steps).get() for name, steps in cases]

    with ended(start_worker(config, tmp_path, app=testing_app.APP)) as worker, testing_app.make(config) as app:
        worker.wait_up()
        tasks = vars(testing_app.register(app))
        handles = [tasks[name].send(steps) for name, steps in cases]
        real = gather(handles, timeout_ms=120_000)
        attempts = [len(handle.attempts()) for handle in handles]

    different = [
        f"{name} {steps}\n  inline: {one!r}\n  worker: {other!r}"
        for (name, steps), one, other in zip(cases, inline, real, strict=True)
        if one != other
    ]
    assert not different, "\n".join(different)
    assert [len(sent.attempts) for sent in sends.sent()] == attempts
    assert len(set(attempts)) == 3


def test_random_workflows_end_alike(db: Database, tmp_path: Path) -> None:
    chance = random.Random(20261117)
    graphs = [random_graph(chance) for _ in range(GRAPHS)]
    for graph in graphs:
        _let_fail(graph)

    imagined = make_app(UNREACHABLE)
    tasks = workflow_app.register(imagined)
    with testing.inline(imagined):
        specs = [build(imagined, tasks, graph, f"g{at}") for at, graph in enumerate(graphs)]
        inline = [_told(spec.start()) for spec in specs]

    with ended(start_worker(describe(db), tmp_path, app=workflow_app.APP)) as worker, build_app(describe(db)) as app:
        worker.wait_up()
        tasks = workflow_app.register(app)
        handles = [build(app, tasks, graph, f"g{at}").start() for at, graph in enumerate(graphs)]
        for handle in handles:
            assert handle.get(timeout_ms=60_000).err != TaskError("WAIT_TIMEOUT")
        real = [_told(handle) for handle in handles]

    different = [
        f"{graph}\n  inline: {one}\n  worker: {other}"
        for graph, one, other in zip(graphs, inline, real, strict=True)
        if one != other
    ]
    assert not different, "\n".join(different)
    assert {str(one[0]) for one in inline} == {"COMPLETED", "FAILED"}


def _told(handle: Any) -> tuple[Any, TaskResult[Any, TaskError], dict[str, TaskResult[Any, TaskError]]]:
    return handle.status(), handle.get(timeout_ms=60_000), handle.results()


def _let_fail(graph: Graph) -> None:
    """Which nodes have ended when a run pauses depends on how fast they were."""
    graph.on_error = "fail"
    for plan in graph.nodes:
        if plan.inside is not None:
            _let_fail(plan.inside)
