"""Writing tasks, independent of who carries the statements.

The logic is a generator that asks for statements and is given rows: the app's own pool, an asyncpg or
SQLAlchemy session of the caller and a synchronous psycopg or Django connection all drive the same code.
"""

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, NamedTuple, TypeVar

from horsies._pg.statements import load
from horsies.send import NewTasks, SendErrorCode, TaskSendError

R = TypeVar("R")
Request = tuple[str, tuple[Any, ...]]
Rows = Sequence[Sequence[Any]]
Script = Generator[Request, Rows, R]

_RACES = 5
"""A look after a lost race sees the winner; only a transaction that cannot see it loses five in a row."""


class Written(NamedTuple):
    """Where the task is. `is_duplicate`: another live task holds the unique key, and this is its id."""

    task_id: str
    is_duplicate: bool


def write_task(tasks: NewTasks, schema: str | None, *, fresh: bool) -> Script[Written]:
    """The first of them, in one statement unless the id or the key is taken. `fresh` promises that the id is not,
    because it was minted a moment ago and never sent."""
    statements = load("horsies._pg", "tasks.sql", schema)
    plan, task_id, sha = tasks.plan, tasks.ids[0], tasks.shas[0]
    values = (
        task_id, plan.task_name, plan.queue_name, plan.priority, tasks.args[0], tasks.kwargs[0], tasks.sent_at,
        plan.eta, plan.delay, plan.good_until, plan.ttl, plan.max_retries, plan.task_options, sha,
    )  # fmt: skip
    if fresh and plan.unique_key is None:
        yield statements["insert_fresh_task"].sql, values
        return Written(task_id, False)
    for _ in range(_RACES):
        if plan.unique_key is None:
            if (yield statements["insert_task"].sql, values):
                return Written(task_id, False)
            rows = yield statements["find_conflict_batch"].sql, ([task_id],)
            if rows:
                _require_same(task_id, sha, rows[0][1])
                return Written(task_id, False)
        else:
            rows = yield statements["insert_unique_task"].sql, (*values, plan.unique_key)
            if rows:
                holder, found, is_fresh, _rank = rows[0]
                if holder == task_id and not is_fresh:
                    _require_same(task_id, sha, found)
                return Written(holder, holder != task_id)
    raise TaskSendError(
        SendErrorCode.ENQUEUE_FAILED,
        f"task {plan.task_name!r}: another transaction that cannot be seen from here holds its "
        f"{'unique key' if plan.unique_key else 'id'}",
        task_ids=[task_id],
    )


def write_batch(tasks: NewTasks, schema: str | None, *, fresh: bool) -> Script[None]:
    """All or none, in one statement. Ids that exist already must be the same tasks; `fresh` promises that none
    does."""
    statements = load("horsies._pg", "tasks.sql", schema)
    plan = tasks.plan
    written = yield (
        statements["insert_fresh_task_batch" if fresh else "insert_task_batch"].sql,
        (
            # nearly always nobody has positional-only arguments, and a column of nothing need not be encoded
            tasks.ids, tasks.args if any(tasks.args) else None, tasks.kwargs, tasks.shas, plan.task_name,
            plan.queue_name, plan.priority, tasks.sent_at, plan.eta, plan.delay, plan.good_until, plan.ttl,
            plan.max_retries, plan.task_options,
        ),
    )  # fmt: skip
    if written[0][0] == len(tasks.ids):
        return
    rows = yield statements["find_conflict_batch"].sql, (tasks.ids,)
    found = {row[0]: row[1] for row in rows}
    for task_id, sha in zip(tasks.ids, tasks.shas, strict=True):
        _require_same(task_id, sha, found.get(task_id))


def _require_same(task_id: str, sha: str, found: object) -> None:
    if found != sha:
        raise TaskSendError(
            SendErrorCode.PAYLOAD_MISMATCH,
            f"task id {task_id} is taken by a task with other arguments or options; it was left untouched",
            task_ids=[task_id],
        )


def drive(script: Script[R], execute: Callable[..., Rows]) -> R:
    """Run a script on a synchronous connection: `execute(sql, *values)`."""
    try:
        sql, values = next(script)
        while True:
            sql, values = script.send(execute(sql, *values))
    except StopIteration as end:
        return end.value


async def drive_async(script: Script[R], execute: Callable[..., Awaitable[Rows]]) -> R:
    """Run a script on an asynchronous connection."""
    try:
        sql, values = next(script)
        while True:
            sql, values = script.send(await execute(sql, *values))
    except StopIteration as end:
        return end.value
