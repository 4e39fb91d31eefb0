"""Writing tasks, independent of who carries the statements.

The logic is a generator that asks for statements and is given rows: the app's own pool, an asyncpg or
SQLAlchemy session of the caller and a synchronous psycopg or Django connection all drive the same code.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from horsies._pg.statements import load
from horsies.send import NewTask, SendErrorCode, TaskSendError

R = TypeVar("R")
Request = tuple[str, tuple[Any, ...]]
Rows = Sequence[Sequence[Any]]
Script = Generator[Request, Rows, R]

_RACES = 5
"""A look after a lost race sees the winner; only a transaction that cannot see it loses five in a row."""


@dataclass(frozen=True, slots=True)
class Written:
    """Where the task is. `is_duplicate`: another live task holds the unique key, and this is its id."""

    task_id: str
    is_duplicate: bool


def write_task(task: NewTask, schema: str | None) -> Script[Written]:
    """One statement, unless the id or the key is taken."""
    statements = load("horsies._pg", "tasks.sql", schema)
    plan = task.plan
    values = (
        task.id, plan.task_name, plan.queue_name, plan.priority, task.args, task.kwargs, task.sent_at, plan.eta,
        plan.delay, plan.good_until, plan.ttl, plan.max_retries, plan.task_options, task.enqueue_sha,
    )  # fmt: skip
    for _ in range(_RACES):
        if plan.unique_key is None:
            if (yield statements["insert_task"].sql, values):
                return Written(task.id, False)
            rows = yield statements["find_conflict_batch"].sql, ([task.id],)
            if rows:
                _require_same(task, rows[0][1])
                return Written(task.id, False)
        else:
            rows = yield statements["insert_unique_task"].sql, (*values, plan.unique_key)
            if rows:
                holder, sha, is_fresh, _rank = rows[0]
                if holder == task.id and not is_fresh:
                    _require_same(task, sha)
                return Written(holder, holder != task.id)
    raise TaskSendError(
        SendErrorCode.ENQUEUE_FAILED,
        f"task {plan.task_name!r}: another transaction that cannot be seen from here holds its "
        f"{'unique key' if plan.unique_key else 'id'}",
        tasks=[task],
    )


def write_batch(tasks: Sequence[NewTask], schema: str | None, *, fresh: bool) -> Script[None]:
    """All or none, in one statement. Ids that exist already must be the same tasks; `fresh` promises that
    none does, because they were minted a moment ago and never sent."""
    statements = load("horsies._pg", "tasks.sql", schema)
    plan = tasks[0].plan
    written = yield (
        statements["insert_fresh_task_batch" if fresh else "insert_task_batch"].sql,
        (
            [task.id for task in tasks], [task.args for task in tasks], [task.kwargs for task in tasks],
            [task.enqueue_sha for task in tasks], plan.task_name, plan.queue_name, plan.priority, tasks[0].sent_at,
            plan.eta, plan.delay, plan.good_until, plan.ttl, plan.max_retries, plan.task_options,
        ),
    )  # fmt: skip
    if written[0][0] == len(tasks):
        return
    rows = yield statements["find_conflict_batch"].sql, ([task.id for task in tasks],)
    found = {row[0]: row[1] for row in rows}
    for task in tasks:
        _require_same(task, found.get(task.id))


def _require_same(task: NewTask, found: object) -> None:
    if found != task.enqueue_sha:
        raise TaskSendError(
            SendErrorCode.PAYLOAD_MISMATCH,
            f"task id {task.id} is taken by a task with other arguments or options; it was left untouched",
            tasks=[task],
        )


def drive(script: Script[R], execute: Callable[[str, tuple[Any, ...]], Rows]) -> R:
    """Run a script on a synchronous connection."""
    try:
        request = next(script)
        while True:
            request = script.send(execute(*request))
    except StopIteration as end:
        return end.value


async def drive_async(script: Script[R], execute: Callable[[str, tuple[Any, ...]], Awaitable[Rows]]) -> R:
    """Run a script on an asynchronous connection."""
    try:
        request = next(script)
        while True:
            request = script.send(await execute(*request))
    except StopIteration as end:
        return end.value
