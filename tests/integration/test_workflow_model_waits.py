"""Random graphs with every kind of node against a small model: signals and clocks at random times, pauses, cancels,
retries and deaths.

As in `test_workflow_model`, what fails, fails again, so that no retry changes how a graph ends. Compensations fail at
random while workers die, and work at last. `just model` runs more seeds.
"""

import os
import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from horsies import NodeStatus, UsageError
from horsies.status import TaskStatus
from horsies.workflow.control import WorkflowControl
from tests.support import invariants
from tests.support.apps import make_app
from tests.support.engine import Engine, dying_at
from tests.support.hands import end_of
from tests.support.payload_codecs import SealCodec
from tests.support.postgres import Database
from tests.support.workflow_plan_app import NAMES, Plans
from tests.support.workflow_plan_checks import EARLY, Rows, broken_rules
from tests.support.workflow_plans import Graph, Plan, random_graph

GRAPHS, SEEDS = 33, int(os.environ.get("HORSIES_TEST_MODEL_SEEDS", "4"))
ENCODED = [(1_000 + seed, True) for seed in range(max(1, SEEDS // 8))]
"""Seeds that run with a payload codec."""
POINTS = dict.fromkeys(
    ("workflow_locked", "workflow_settled", "workflow_enqueued", "before_workflow_commit", "after_workflow_commit"),
    0.03,
)


class Driver:
    """What happens to runs from outside, at random."""

    def __init__(self, db: Database, engine: Engine, plans: Plans, control: WorkflowControl, seed: int) -> None:
        self.chance = random.Random(seed)
        self.engine = engine
        self.plans = plans
        self.control = control
        self.sent: list[tuple[str, str, str]] = []

    async def rows(self, sql: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        return await self.engine.hands.connection.fetch(sql, *values)

    async def end(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        """Half of the tasks that were asked to stop do so; the others have ended for themselves before they heard of
        it."""
        ids = [row["id"] for row in rows]
        found = await self.rows(
            "SELECT id FROM horsies_tasks WHERE id = ANY ($1) AND cancel_requested_at IS NOT NULL", ids
        )
        stopped = {row["id"] for row in found if self.chance.random() < 0.5}
        ends = [end_of(row, TaskStatus.CANCELLED, error_code="TASK_CANCELLED") for row in rows if row["id"] in stopped]
        written = await self.engine.hands.finalize(ends) if ends else {}
        left = [row for row in rows if row["id"] not in stopped]
        return [*written, *await self.engine.end(left, self.plans.answer)]

    async def signal(self, often: float) -> None:
        """Send signals, also to nodes that do not wait yet, to runs that have ended, and more than nodes wait for."""
        found = await self.rows(
            "SELECT n.workflow_id, n.signal_name, w.completed_at IS NOT NULL OR w.ends_as IS NOT NULL AS is_over"
            " FROM horsies_workflow_tasks n JOIN horsies_workflows w ON w.id = n.workflow_id"
            " WHERE n.kind = 'signal' AND n.signal_name NOT LIKE 'never%' ORDER BY n.workflow_id, n.task_index"
        )
        for row in found:
            if self.chance.random() > often:
                continue
            kind, _, text = row["signal_name"].partition("-")
            value = text if kind == "told" else "true" if int(text) % 2 else "false"
            signal_id = f"signal-{len(self.sent)}"
            outcome = await self.control.signal(row["workflow_id"], row["signal_name"], value, signal_id=signal_id)
            assert outcome == ("WORKFLOW_ENDED" if row["is_over"] else "DELIVERED")
            if outcome == "DELIVERED":
                self.sent.append((row["workflow_id"], row["signal_name"], signal_id))
                self.step(f"s:{row['workflow_id']}")
        if self.sent and self.chance.random() < 0.3:  # the same once more, with another value: it is ignored
            workflow_id, name, signal_id = self.chance.choice(self.sent)
            assert await self.control.signal(workflow_id, name, "77", signal_id=signal_id) == "REPEATED"

    def step(self, payload: str) -> None:
        """A notification, which may be lost."""
        if self.chance.random() < 0.7:
            self.chance.choice(self.engine.advancers).on_step(payload)

    async def move_clocks(self, often: float) -> None:
        """Let the time of waits come. Of signals only where none is to come, or one has been sent, which then wins."""
        rows = await self.rows(
            "SELECT n.id, n.workflow_id FROM horsies_workflow_tasks n WHERE n.status = 'WAITING'"
            " AND n.wake_at > now() AND (n.kind = 'sleep' OR n.signal_name LIKE 'never%' OR EXISTS ("
            "   SELECT FROM horsies_workflow_signals s WHERE s.workflow_id = n.workflow_id AND s.name = n.signal_name"
            "      AND s.consumed_at IS NULL) AND (SELECT count(*) FROM horsies_workflow_tasks o"
            "      WHERE o.workflow_id = n.workflow_id AND o.signal_name = n.signal_name AND o.status = 'WAITING') = 1)"
            " ORDER BY n.workflow_id, n.task_index"
        )
        chosen = [row for row in rows if self.chance.random() < often]
        nodes, runs = [row["id"] for row in chosen], [row["workflow_id"] for row in chosen]
        await self.rows("UPDATE horsies_workflow_tasks SET wake_at = now() WHERE id = ANY ($1)", nodes)
        await self.rows("UPDATE horsies_workflows SET wake_at = now() WHERE id = ANY ($1)", runs)
        if chosen and self.chance.random() < 0.7:
            self.chance.choice(self.engine.advancers).look_at_clocks()

    async def retry(self, workflow_id: str) -> None:
        ended = (NodeStatus.FAILED, NodeStatus.SKIPPED)
        failed = [node.node_id for node in await self.control.nodes(workflow_id) if node.status in ended]
        # a source is not retried under a workflow inside that still takes it
        with suppress(UsageError):
            await self.control.retry(workflow_id, self.chance.choice([None, None, *failed]))

    async def disturb(self, run_ids: Sequence[str]) -> None:
        chance = self.chance
        await self.signal(0.05)
        await self.move_clocks(0.3)
        if chance.random() < 0.5:
            act = self.control.pause if chance.random() < 0.5 else self.control.resume
            await act(chance.choice(run_ids))
        if chance.random() < 0.3:
            chosen = chance.choice(run_ids)
            await self.control.cancel(chosen)
            self.step(f"w:{chosen}")
        if chance.random() < 0.5:
            await self.retry(chance.choice(run_ids))

    async def finish(self) -> None:
        """Every worker lives again. What was paused goes on, as often as a failure pauses it again; what was cancelled
        and what could not be undone is retried."""
        for _ in range(200):
            moved = await self.engine.drain(self.plans.answer)
            paused = await self.rows("SELECT id FROM horsies_workflows WHERE status = 'PAUSED'")
            for row in paused:
                await self.control.resume(row["id"])
            stopped = await self.rows(
                "SELECT id FROM horsies_workflows w WHERE depth = 0 AND (status = 'CANCELLED' OR status = 'FAILED'"
                " AND EXISTS (SELECT FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id"
                "             AND n.compensates IS NOT NULL AND n.status = 'FAILED')) ORDER BY id"
            )
            for row in stopped:
                await self.retry(row["id"])
            waiting = await self.rows("SELECT id FROM horsies_workflow_tasks WHERE status = 'WAITING'")
            if waiting:
                await self.signal(1.0)
                await self.move_clocks(1.0)
            await self.engine.recover()
            if not moved and not paused and not stopped and not waiting:
                return
        raise AssertionError("the runs do not end")


@pytest.mark.breaks("W5", "G2")  # W5: see test_workflow_model; G2: this test moves the clocks, and watches them itself
@pytest.mark.parametrize(("seed", "is_encoded"), [*((seed, False) for seed in range(SEEDS)), *ENCODED])
async def test_random_graphs_that_wait_end_as_the_model_says(db: Database, seed: int, is_encoded: bool) -> None:
    codec = SealCodec() if is_encoded else None
    chance = random.Random(seed)
    graphs = [random_graph(chance) for _ in range(GRAPHS)]
    db.execute(EARLY)
    is_flaky = True
    async with make_app(db, payload_codec=codec) as app, Engine.on(db, NAMES, payload_codec=codec) as engine:
        plans = Plans(app, lambda: is_flaky and chance.random() < 0.15)
        driver = Driver(db, engine, plans, app.get_broker().workflows, seed)
        run_ids: list[str] = []
        for at, graph in enumerate(graphs):
            options: dict[str, Any] = {"priority": chance.choice([None, 1, 50])}
            if chance.random() < 0.3:
                options["deadline"] = 86_400
            run_ids.append((await plans.build(graph, f"g{at}").start_async(**options)).workflow_id)
        held: list[Mapping[str, Any]] = []  # run on, into the next rounds
        async with dying_at(POINTS, chance):
            for _ in range(60):
                rows = [*await engine.claim(chance.randint(1, 30)), *held]
                chance.shuffle(rows)
                held = [rows.pop() for _ in range(len(rows) // 3)]
                for at in range(0, len(rows), 7):
                    ended = await driver.end(rows[at : at + 7])
                    if chance.random() < 0.9:  # else the worker died between the two transactions
                        chance.choice(engine.advancers).tasks_ended(ended)
                await driver.disturb(run_ids)
                await engine.advance()
        is_flaky = False
        await driver.end(held)
        await driver.finish()
        rows_of = Rows(db, app.envelopes)
        wrong = [
            f"graph {at}: {problem}"
            for at, (graph, run_id) in enumerate(zip(graphs, run_ids, strict=True))
            for problem in rows_of.compare(run_id, graph)
        ]
    wrong += broken_rules(db)
    wrong += [str(one) for one in invariants.check(db, slack_s=0, wf_grace_s=0) if one.rule not in ("W5", "G2")]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("kind", ["sub", "later"])
async def test_a_workflow_that_was_undone_as_a_whole_runs_again_after_a_retry(db: Database, kind: str) -> None:
    inside = Graph([Plan("work", 3, False, [])], 0, None, "fail")
    graph = Graph([Plan(kind, 0, False, [], undo=True, inside=inside), Plan("work", 1, True, [0])], 0, None, "fail")
    db.execute(EARLY)
    ran: list[str] = []
    async with make_app(db) as app, Engine.on(db, NAMES) as engine:
        plans = Plans(app, lambda: False)

        def answer(name: str, given: Mapping[str, Any]) -> Any:
            ran.append(name if given.get("n") != 1 else "fails")
            return plans.answer(name, given)

        handle = await plans.build(graph, "trip").start_async()
        await engine.drain(answer)
        once = ["work", "fails", "undo"] if kind == "sub" else ["later", "work", "fails", "undo"]
        assert ran == once
        assert await handle.retry_async()
        await engine.drain(answer)
        assert ran == once * 2
        assert list(Rows(db).compare(handle.workflow_id, graph)) == []
    assert broken_rules(db) == []
