"""Runs that wait cost nothing: what recovery and the clocks read does not grow with them."""

from datetime import timedelta
from typing import Any

import pytest

from horsies_worker.database.queries import Queries
from horsies_worker.identity import Identity
from tests.integration.test_query_plans import session_on
from tests.support.postgres import Database

QUERIES = Queries(None, Identity())
WAITING = 20_000
GRACE = timedelta(0)
LOOKS: dict[str, list[Any]] = {
    "unadvanced_workflows": [GRACE, 500],
    "unsettled_stopped_workflows": [GRACE, 500],
    "due_workflows": [500, timedelta(seconds=30)],
}
RUNS = """INSERT INTO horsies_workflows (id, name, status, started_at, nodes_left, wake_at, parent_workflow_id,
                                         parent_task_index, depth, unsettled)
SELECT {prefix} || n, 'waits', {status}, now(), 2, {clock}, {parent}, {index}, {depth}, {unsettled}
  FROM generate_series(1, {count}) AS n"""
NODES = """INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, kind, status,
                                               signal_name, sub_workflow_id, wake_at, updated_at)
SELECT gen_random_uuid(), {prefix} || n, 0, 'first', 'go', {kind}, {status}, {name}, {child}, {clock},
       now() - interval '1 hour'
  FROM generate_series(1, {count}) AS n"""


def add_runs(db: Database, count: int) -> None:
    """Runs that wait for a signal, runs that wait in a workflow inside, runs that start later, and early signals."""
    later = "now() + interval '1 day'"
    plain = {"parent": "NULL", "index": "NULL", "depth": "0", "unsettled": "false", "count": count}
    db.execute(RUNS.format(prefix="'signal-'", status="'RUNNING'", clock=later, **plain))
    db.execute(RUNS.format(prefix="'later-'", status="'PENDING'", clock=later, **plain))
    db.execute(RUNS.format(prefix="'outer-'", status="'RUNNING'", clock="NULL", **plain))
    inside = {"parent": "'outer-' || n", "index": "0", "depth": "1", "unsettled": "true", "count": count}
    db.execute(RUNS.format(prefix="'inner-'", status="'RUNNING'", clock="NULL", **inside))
    waits = {"kind": "'signal'", "status": "'WAITING'", "name": "'go'", "child": "NULL", "clock": later}
    for prefix in ("'signal-'", "'inner-'"):
        db.execute(NODES.format(prefix=prefix, count=count, **waits))
    running = {"kind": "'workflow'", "status": "'RUNNING'", "name": "NULL", "child": "'inner-' || n", "clock": "NULL"}
    db.execute(NODES.format(prefix="'outer-'", count=count, **running))
    db.execute(
        "INSERT INTO horsies_workflow_signals (id, workflow_id, name, value, noticed, created_at)"
        f" SELECT 'early-' || n, 'signal-' || n, 'another', '1', true, now() - interval '1 hour'"
        f" FROM generate_series(1, {count}) AS n"
    )


@pytest.mark.breaks("G1", "G2", "G3", "G4", "G5", "W4", "W6", "W8")
async def test_recovery_and_clocks_read_nothing_of_runs_that_wait(db: Database) -> None:
    async with session_on(db) as session:
        for name, values in LOOKS.items():  # on empty tables, as by a worker of a new database
            await session.prepare(name, *values)
        add_runs(db, 10)
        few = {name: (await session.explain(name, *values)).all for name, values in LOOKS.items()}
        db.execute("DELETE FROM horsies_workflows")
        add_runs(db, WAITING)
        for name, values in LOOKS.items():
            plan = await session.explain(name, *values)
            # the depth of an index may grow by a level or two
            assert plan.all <= few[name] + 40, (name, few[name], plan.all)
            assert plan.all < 100
