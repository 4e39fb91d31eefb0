"""Writes new tasks by `execute(sql, *values)`: of the app's pool, or of the caller's own connection.

A synchronous connection (psycopg, Django) is driven by `at_once`, where no `await` ever suspends.
"""

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, TypeVar

from horsies._pg.statements import load
from horsies.errors import SendErrorCode, TaskSendError
from horsies.new_tasks import NewTasks

R = TypeVar("R")
Rows = Sequence[Sequence[Any]]
Execute = Callable[..., Rows]
ExecuteAsync = Callable[..., Awaitable[Rows]]
Write = Callable[[ExecuteAsync], Coroutine[Any, Any, R]]

_RACES = 5
"""After a lost race the next statement sees the winner's row; only a transaction whose snapshot is older loses five
times."""


class Written(NamedTuple):
    """The id of the task. `is_duplicate`: the id is that of another live task with the same unique key."""

    task_id: str
    is_duplicate: bool


async def write_task(execute: ExecuteAsync, tasks: NewTasks, schema: str | None, *, fresh: bool) -> Written:
    """Write the first of the tasks, in one statement unless the id or the unique key is taken. `fresh` says that no row
    can have the id yet: it was made for this send and never sent."""
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
    """Write all tasks or none, in one statement. Rows that exist already must be the same tasks; `fresh` says that no
    row can have one of the ids yet."""
    statements = load("horsies._pg", "tasks.sql", schema)
    plan = tasks.plan
    written = await execute(
        statements["insert_fresh_task_batch" if fresh else "insert_task_batch"].sql,
        # few tasks have positional-only arguments: NULL instead of an array of NULLs need not be encoded
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
    """Run `write` on a synchronous connection."""

    async def answered(sql: str, *values: Any) -> Rows:
        return execute(sql, *values)

    work = write(answered)
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    work.close()
    raise AssertionError("the write awaited something other than its statements")
