"""What `testing.inline` says is what a real worker does: random tasks and random workflows, run by both."""

import os
import random
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

from horsies import OutcomeCode, SignalError, TaskError, TaskResult, UsageError, WorkflowStatus, gather, testing
from tests.support import kit_app, testing_app, workflow_app
from tests.support.apps import UNREACHABLE, make_app
from tests.support.kit_graphs import random_workflow
from tests.support.postgres import Database
from tests.support.waiting import eventually
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


def test_workflows_that_wait_branch_continue_and_compensate_end_alike(db: Database, tmp_path: Path) -> None:
    imagined = make_app(UNREACHABLE)
    tasks = kit_app.register(imagined)
    inline: dict[str, Any] = {}
    with testing.inline(imagined) as sends:
        for name, case in kit_app.CASES.items():
            handle = case.build(imagined, tasks).start(**case.options)
            if case.signals:
                assert handle.status() is WorkflowStatus.RUNNING
                sends.advance(timedelta(seconds=1))
            for signal, value, path in case.signals:
                handle.signal(signal, value, path=path)
            inline[name] = _told(handle)

    config = describe(db)
    with ended(start_worker(config, tmp_path, app=kit_app.APP)) as worker, build_app(config) as app:
        worker.wait_up()
        tasks = kit_app.register(app)
        handles = {name: case.build(app, tasks).start(**case.options) for name, case in kit_app.CASES.items()}
        for name, case in kit_app.CASES.items():
            for signal, value, path in case.signals:
                _signal(handles[name], signal, value, path)
        real = {name: _told(handle) for name, handle in handles.items()}

    different = [
        f"{name}\n  inline: {inline[name]}\n  worker: {real[name]}" for name in inline if inline[name] != real[name]
    ]
    assert not different, "\n".join(different)
    assert {str(status) for status, _, _ in inline.values()} == {"COMPLETED", "FAILED"}


def test_random_sends_end_alike(db: Database, tmp_path: Path) -> None:
    """Metadata and what inherits it, groups, unique keys, delays, snoozes, tasks that send, batch tasks."""
    imagined = make_app(UNREACHABLE, propagate_metadata=["tenant"])
    tasks = kit_app.register(imagined)
    with testing.inline(imagined):
        handles = [kit_app.random_send(tasks, random.Random(seed)) for seed in _seeds(110)]
        inline = [(handle.is_duplicate, _without_id(handle.get())) for handle in handles]

    config = describe(db, propagate_metadata=["tenant"])
    with ended(start_worker(config, tmp_path, app=kit_app.APP)) as worker, build_app(config) as app:
        worker.wait_up()
        tasks = kit_app.register(app)
        handles = [kit_app.random_send(tasks, random.Random(seed)) for seed in _seeds(110)]
        real = [(handle.is_duplicate, _without_id(handle.get(timeout_ms=60_000))) for handle in handles]

    different = [
        f"{seed}\n  inline: {one}\n  worker: {other}"
        for seed, one, other in zip(_seeds(110), inline, real, strict=True)
        if one != other
    ]
    assert not different, "\n".join(different)
    assert len({repr(one) for one in inline}) > 40
    assert {one[0] for one in inline} == {False, True}


def test_random_workflows_of_every_kind_of_node_end_alike(db: Database, tmp_path: Path) -> None:
    """Branches, maps, partial maps, workflows inside, signals, sleeps, continuations, compensations."""
    seeds = _seeds(40)
    imagined = make_app(UNREACHABLE)
    tasks = kit_app.register(imagined)
    with testing.inline(imagined) as sends:
        handles = [random_workflow(imagined, tasks, seed, f"w{seed}", minute=0.02).start() for seed in seeds]
        for handle in handles:
            _feed(handle)
        sends.advance(timedelta(minutes=1))
        inline = [_told_without_numbers(handle) for handle in handles]

    config = describe(db)
    with ended(start_worker(config, tmp_path, app=kit_app.APP)) as worker, build_app(config) as app:
        worker.wait_up()
        tasks = kit_app.register(app)
        handles = [random_workflow(app, tasks, seed, f"w{seed}", minute=0.02).start() for seed in seeds]
        for handle in handles:
            _feed(handle)
        real = [_told_without_numbers(handle) for handle in handles]

    different = [
        f"seed {seed}\n  inline: {one}\n  worker: {other}"
        for seed, one, other in zip(seeds, inline, real, strict=True)
        if one != other
    ]
    assert not different, "\n".join(different)
    assert {str(one[0]) for one in inline} == {"COMPLETED", "FAILED"}


def _seeds(count: int) -> list[int]:
    first = int(os.environ.get("HORSIES_TEST_HONESTY_SEED", "0"))
    return list(range(first, first + count))


def _without_id(result: TaskResult[Any, TaskError]) -> Any:
    """The message of RESULT_NOT_AVAILABLE names the task."""
    return re.sub(r"task [0-9a-f-]{36}", "task", repr(result)) if result.is_err() else result


def _feed(handle: Any) -> None:
    """Send more signals than the run has nodes that wait for one."""
    for name in ("s0", "s1"):
        for _ in range(10):
            try:
                handle.signal(name, 12)
            except SignalError as error:
                assert error.code == OutcomeCode.WORKFLOW_ENDED  # noqa: PT017


def _told_without_numbers(handle: Any) -> Any:
    """Compensations are numbered in the order of ends, which differs among nodes that run in parallel."""
    status, result, results = _told(handle)
    return (
        status,
        repr(result),
        sorted((re.sub(r"^undo-\d+", "undo", name), repr(one)) for name, one in results.items()),
    )


def _signal(handle: Any, name: str, value: Any, path: str | None) -> None:
    """Send the signal once the workflow at the path has started."""

    def is_sent() -> bool:
        try:
            return handle.signal(name, value, path=path).delivered
        except UsageError:
            return False

    eventually(is_sent)


def _told(handle: Any) -> tuple[Any, TaskResult[Any, TaskError], dict[str, TaskResult[Any, TaskError]]]:
    result = handle.get(timeout_ms=60_000)
    return handle.status(), result, handle.results()


def _let_fail(graph: Graph) -> None:
    """Which nodes have ended when a run pauses depends on how fast they were."""
    graph.on_error = "fail"
    for plan in graph.nodes:
        if plan.inside is not None:
            _let_fail(plan.inside)
