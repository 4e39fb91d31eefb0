"""What the tests of the table of cases share: answers for tasks, a clock that can be moved, and what a run looks like.

A case is one row of the table in the design: signals, times, branches, Continue and compensation.
"""

import json
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from horsies import Continue, TaskError, WorkflowHandle, WorkflowStatus
from tests.support import invariants, workflow_app
from tests.support.apps import make_app
from tests.support.engine import Engine, dying_at
from tests.support.postgres import Database

NAMES = ("number", "plus", "fail", "spread", "square", "total", "code_of", "is_true", "book", "unbook", "countdown")
POINTS = (
    "workflow_locked", "workflow_settled", "workflow_enqueued", "before_workflow_commit", "after_workflow_commit"
)  # fmt: skip
HOUR = 3_600.0


class Answers:
    """Answers for tasks, by their meaning. Numbers in `broken` make `number` and `book` fail, and `unbook` of the
    booking with this number; `looping` answers `countdown` with Continue."""

    def __init__(self, *broken: int, looping: Callable[[int], Continue[Any]] | None = None) -> None:
        self.broken = set(broken)
        self.broken_undo = set[int]()
        self.looping = looping
        self.calls: list[tuple[str, Mapping[str, Any]]] = []

    def __call__(self, name: str, given: Mapping[str, Any]) -> Any:
        self.calls.append((name, given))
        number = given.get("n", 0)
        refused = self.broken_undo if name == "unbook" else self.broken
        if name == "fail" or (name in ("number", "book", "unbook", "square") and (given.get("x", number)) in refused):
            return TaskError("BROKEN", "as the test wanted")
        match name:
            case "plus":
                return given["a"] + given["b"]
            case "spread":
                return list(range(number))
            case "square":
                return given["x"] ** 2
            case "total":
                return sum(given["numbers"])
            case "code_of":
                return given["result"].get("err", {}).get("error_code", "ok")
            case "is_true" | "unbook":
                return given["value"]
            case "book":
                return number * 10
            case "countdown" if number and self.looping is not None:
                return self.looping(number)
            case _:
                return number

    @property
    def undone(self) -> list[int]:
        """The bookings that were undone, in the order of the calls."""
        return [given["n"] for name, given in self.calls if name == "unbook"]


@asynccontextmanager
async def tasks(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with make_app(db) as app:
        found = workflow_app.register(app)
        found.app = app
        yield found


def pass_time(db: Database, seconds: float) -> None:
    """Move every time of every table back: as if so much time had passed."""
    for table, columns in db.execute(
        "SELECT table_name, array_agg(column_name::text) FROM information_schema.columns"
        " WHERE table_schema = current_schema() AND table_name LIKE 'horsies!_%%' ESCAPE '!'"
        " AND data_type = 'timestamp with time zone' AND is_generated = 'NEVER' GROUP BY table_name"
    ):
        moved = ", ".join(f"{name} = {name} - make_interval(secs => {seconds})" for name in columns)
        db.execute(f"UPDATE {table} SET {moved}")


async def states(handle: WorkflowHandle[Any]) -> dict[str, str]:
    return {node.node_id: node.status.value for node in await handle.tasks_async()}


def reasons(db: Database, workflow_id: str) -> dict[str, str]:
    """Why nodes were skipped."""
    return dict(
        db.execute(
            "SELECT node_id, skip_reason FROM horsies_workflow_tasks"
            " WHERE workflow_id = %s AND skip_reason IS NOT NULL",
            workflow_id,
        )
    )


def given_to(db: Database, workflow_id: str, node_id: str) -> Any:
    """The value that a node completed with."""
    text = db.value(
        "SELECT result FROM horsies_workflow_tasks WHERE workflow_id = %s AND node_id = %s", workflow_id, node_id
    )
    return None if text is None else json.loads(text)["ok"]


def child_of(db: Database, workflow_id: str, node_id: str) -> str:
    """The run inside this node."""
    return db.value(
        "SELECT sub_workflow_id FROM horsies_workflow_tasks WHERE workflow_id = %s AND node_id = %s",
        workflow_id, node_id,
    )  # fmt: skip


async def end_some(engine: Engine, answer: Any) -> int:
    """One round: run every task that can be claimed, and take the steps."""
    rows = await engine.claim()
    engine.advancers[0].tasks_ended(await engine.end(rows, answer))
    await engine.advance()
    return len(rows)


async def with_deaths(engine: Engine, answer: Any, seed: int) -> None:
    """Work until nothing changes, while steps die at every point; then without deaths."""
    chance = random.Random(seed)
    async with dying_at(dict.fromkeys(POINTS, 0.3), chance):
        for _ in range(6):
            await end_some(engine, answer)
            await engine.recover()
    await engine.drain(answer)


async def ended_as(handle: WorkflowHandle[Any], status: WorkflowStatus) -> Any:
    """The run has ended like this; its result."""
    assert await handle.status_async() is status
    return await handle.get_async(1_000)


def check(db: Database) -> None:
    found = invariants.check(db, slack_s=0, wf_grace_s=0)
    assert not found, found
