"""Writing tasks, independent of who carries the statements.

`execute(sql, *values)` does: of the app's own pool, of an asyncpg or SQLAlchemy session of the caller, or of a
synchronous psycopg or Django connection, where nothing that is awaited ever waits (`at_once`).
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from horsies._pg.statements import load
from horsies.send import NewTasks, SendErrorCode, TaskSendError

R = TypeVar("R")
Rows = Sequence[Sequence[Any]]
Execute = Callable[..., Rows]
ExecuteAsync = Callable[..., Awaitable[Rows]]
Write = Callable[[ExecuteAsync], Coroutine[Any, Any, R]]

_RACES = 5
"""A look after a lost race sees the winner; only a transaction that cannot see it loses five in a row."""


class Written(NamedTuple):
    """Where the task is. `is_duplicate`: another live task holds the unique key, and this is its id."""

    task_id: str
    is_duplicate: bool


async def write_task(execute: ExecuteAsync, tasks: NewTasks, schema: str | None, *, fresh: bool) -> Written:
    """The first of them, in one statement unless the id or the key is taken. `fresh` promises that the id is not,
    because it was minted a moment ago and never sent."""
    statements = load("horsies._pg", "tasks.sql", schema)
    plan, task_id, sha = tasks.plan, tasks.ids[0], tasks.shas[0]
    values = (
        task_id, plan.task_name, plan.queue_name, plan.priority, tasks.args[0], tasks.kwargs[0], tasks.sent_at,
        plan.eta, plan.delay, plan.good_until, plan.ttl, plan.max_retries, plan.task_options, sha,
    )  # fmt: skip
    if fresh and plan.unique_key is None:
        await execute(statements["insert_fresh_task"].sql, *values)
        return Written(task_id, False)
    for _ in range(_RACES):
        if plan.unique_key is None:
            if await execute(statements["insert_task"].sql, *values):
                return Written(task_id, False)
            rows = await execute(statements["find_conflict_batch"].sql, [task_id])
            if rows:
                _require_same(tasks, 0, rows[0][1])
                return Written(task_id, False)
        else:
            rows = await execute(statements["insert_unique_task"].sql, *values, plan.unique_key)
            if rows:
                holder, found, is_fresh, _rank = rows[0]
                if holder == task_id and not is_fresh:
                    _require_same(tasks, 0, found)
                return Written(holder, holder != task_id)
    raise TaskSendError(
        SendErrorCode.ENQUEUE_FAILED,
        f"task {plan.task_name!r}: another transaction that cannot be seen from here holds its "
        f"{'unique key' if plan.unique_key else 'id'}",
        task_ids=[task_id],
    )


async def write_batch(execute: ExecuteAsync, tasks: NewTasks, schema: str | None, *, fresh: bool) -> None:
    """All or none, in one statement. Ids that exist already must be the same tasks; `fresh` promises that none
    does."""
    statements = load("horsies._pg", "tasks.sql", schema)
    plan = tasks.plan
    written = await execute(
        statements["insert_fresh_task_batch" if fresh else "insert_task_batch"].sql,
        # nearly always nobody has positional-only arguments, and a column of nothing need not be encoded
        tasks.ids, tasks.args if any(tasks.args) else None, tasks.kwargs, tasks.shas, plan.task_name, plan.queue_name,
        plan.priority, tasks.sent_at, plan.eta, plan.delay, plan.good_until, plan.ttl, plan.max_retries,
        plan.task_options,
    )  # fmt: skip
    if written[0][0] == len(tasks.ids):
        return
    rows = await execute(statements["find_conflict_batch"].sql, tasks.ids)
    found = {row[0]: row[1] for row in rows}
    for at, task_id in enumerate(tasks.ids):
        _require_same(tasks, at, found.get(task_id))


def _require_same(tasks: NewTasks, at: int, found: object) -> None:
    task_id = tasks.ids[at]
    if found not in (tasks.shas[at], tasks.plan.older_sha(tasks.args[at], tasks.kwargs[at])):
        raise TaskSendError(
            SendErrorCode.PAYLOAD_MISMATCH,
            f"task id {task_id} is taken by a task with other arguments or options; it was left untouched",
            task_ids=[task_id],
        )


def at_once(write: Write[R], execute: Execute) -> R:
    """Write on a synchronous connection."""

    async def answered(sql: str, *values: Any) -> Rows:
        return execute(sql, *values)

    work = write(answered)
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise AssertionError("it awaited something else than its statements")
