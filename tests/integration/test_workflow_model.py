"""Random graphs against a small model: 350 of them, with failures, joins, workflows inside, pauses, cancels, retries
and deaths.

The engine gets many graphs at a time, and has two workers whose steps die at random. What fails, fails again: a retry,
of a run or of a node, at any moment, changes nothing of how a graph ends; nor does a cancel that is followed by one.
"""

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from horsies import NodeStatus, TaskError, UsageError
from horsies.status import TaskStatus
from horsies.workflow.control import WorkflowControl
from tests.support import invariants, workflow_app
from tests.support.apps import make_app
from tests.support.engine import Engine, dying_at
from tests.support.hands import end_of
from tests.support.postgres import Database
from tests.support.workflow_model import build, compare, random_graph

GRAPHS, SEEDS = 25, 7
NAMES = ["work", "judge", "weigh", "listed", "each"]
POINTS = dict.fromkeys(
    ("workflow_locked", "workflow_settled", "workflow_enqueued", "before_workflow_commit", "after_workflow_commit"),
    0.03,
)


def answer(name: str, given: Any) -> int | list[Any] | TaskError:
    if given["fails"]:
        return TaskError("WANTED")
    if "r" in given:
        assert given["r"].get("err", {}).get("error_code") != "RESULT_NOT_READY"
    match name:
        case "listed":
            return list(range(given["n"] % 4))
        case "weigh":
            return given["n"] + sum(result.get("ok", 1000) for node, result in given["ctx"]["results"].items() if node)
        case "judge":
            return given["n"] + given["r"].get("ok", 1000)
        case _:
            return given["n"] + given.get("item", 0) + given.get("a", 0)


async def paused_among(engine: Engine, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Tasks that were just claimed although their workflow is paused."""
    return await engine.hands.connection.fetch(
        "SELECT n.task_id FROM horsies_workflow_tasks n JOIN horsies_workflows w ON w.id = n.workflow_id"
        " WHERE n.task_id = ANY ($1) AND w.status = 'PAUSED'", [row["id"] for row in rows],
    )  # fmt: skip


async def end(engine: Engine, rows: Sequence[Mapping[str, Any]], chance: random.Random) -> list[str]:
    """Half of the tasks that were asked to stop do so; the others have ended for themselves before they heard of it."""
    found = await engine.hands.connection.fetch(
        "SELECT id FROM horsies_tasks WHERE id = ANY ($1) AND cancel_requested_at IS NOT NULL",
        [row["id"] for row in rows],
    )
    stopped = {row["id"] for row in found if chance.random() < 0.5}
    ends = [end_of(row, TaskStatus.CANCELLED, error_code="TASK_CANCELLED") for row in rows if row["id"] in stopped]
    written = await engine.hands.finalize(ends) if ends else {}
    return [*written, *await engine.end([row for row in rows if row["id"] not in stopped], answer)]


async def retry(control: WorkflowControl, workflow_id: str, chance: random.Random) -> None:
    ended = (NodeStatus.FAILED, NodeStatus.SKIPPED)
    failed = [node.node_id for node in await control.nodes(workflow_id) if node.status in ended]
    # a source is not retried under a workflow inside that still takes it
    with suppress(UsageError):
        await control.retry(workflow_id, chance.choice([None, *failed]))


@pytest.mark.breaks(
    "W5"
)  # a completed node keeps its result when a failed one that it was allowed to follow is retried
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_random_graphs_end_as_the_model_says(db: Database, seed: int) -> None:
    chance = random.Random(seed)
    graphs = [random_graph(chance) for _ in range(GRAPHS)]
    async with make_app(db) as app, Engine.on(db, NAMES) as engine:
        tasks = workflow_app.register(app)
        handles = [await build(app, tasks, graph, f"g{at}").start_async() for at, graph in enumerate(graphs)]
        control = app.get_broker().workflows
        held: list[Mapping[str, Any]] = []  # run on, into the next rounds
        async with dying_at(POINTS, chance):
            for _ in range(60):
                rows = list(await engine.claim(chance.randint(1, 30)))
                assert not await paused_among(engine, rows)
                rows += held
                chance.shuffle(rows)
                held = [rows.pop() for _ in range(len(rows) // 3)]
                for at in range(0, len(rows), 7):
                    ended = await end(engine, rows[at : at + 7], chance)
                    if chance.random() < 0.9:  # else the worker died between the two transactions
                        chance.choice(engine.advancers).tasks_ended(ended)
                if chance.random() < 0.5:
                    handle = chance.choice(handles)
                    await (control.pause if chance.random() < 0.5 else control.resume)(handle.workflow_id)
                if chance.random() < 0.3:
                    await control.cancel(chance.choice(handles).workflow_id)
                if chance.random() < 0.5:
                    await retry(control, chance.choice(handles).workflow_id, chance)
                await engine.advance()
        await end(engine, held, chance)
        # everybody lives again; what was paused goes on, as often as a failure pauses it again
        for _ in range(200):
            moved = await engine.drain(answer)
            paused = [row[0] for row in db.execute("SELECT id FROM horsies_workflows WHERE status = 'PAUSED'")]
            for workflow_id in paused:
                await control.resume(workflow_id)
            stopped = db.execute("SELECT id FROM horsies_workflows WHERE status = 'CANCELLED' AND depth = 0")
            for (workflow_id,) in stopped:
                await retry(control, workflow_id, chance)
            await engine.recover()
            if not moved and not paused and not stopped:
                break
        for at, (graph, handle) in enumerate(zip(graphs, handles, strict=True)):
            states = [node.status.value for node in await control.nodes(handle.workflow_id)]
            status, results = await handle.status_async(), await handle.results_async()
            assert compare(graph, status, states, results) == [], (seed, at)
    assert [one for one in invariants.check(db, slack_s=0, wf_grace_s=0) if one.rule != "W5"] == []
