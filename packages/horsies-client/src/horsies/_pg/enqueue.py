"""Writes new tasks by `execute(sql, *values)`: of the app's pool, or of the caller's own connection.

A synchronous connection (psycopg, Django) is driven by `at_once`, where no `await` ever suspends.
"""

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from horsies._pg.refusals import worded
from horsies._pg.statements import Statement, load
from horsies._pg.transient import NoAnswerError, is_answer, sqlstate
from horsies._pg.unique_sends import send_unique
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


_OF_THE_INSERT = frozenset({"22", "23", "25", "42"})
"""Classes of errors that come before the commit: data, constraints, a read-only transaction, rights, missing names."""


_MISMATCH = "ZH001"
"""An id is taken by another task; raised by `horsies_send_calls`."""


class Written(NamedTuple):
    """The id of the task. `is_duplicate`: the id is that of another task, which holds the same unique key."""

    task_id: str
    is_duplicate: bool


async def write_task(
    execute: ExecuteAsync, tasks: NewTasks, schema: str | None, *, fresh: bool, alone: bool
) -> Written:
    """Write the first of the tasks, in one statement unless the id or the unique key is taken. `fresh` says that no row
    can have the id yet: it was made for this send and never sent. `alone`: not in a transaction of the caller."""
    plan, task_id, sha = tasks.plan, tasks.ids[0], tasks.shas[0]
    if plan.keep_seconds is not None and plan.unique is None:
        held = await write_calls(execute, Calls.of(tasks), schema)
        return Written(held.get(0, task_id), bool(held))
    statements = load("horsies._pg", "tasks.sql", schema)
    group = tasks.groups[0] if tasks.groups is not None else None
    if fresh and alone and tasks.unique_key is None:
        await _call(execute, statements, "send_task", tasks, group, task_id, tasks.args[0], tasks.kwargs[0], sha)
        return Written(task_id, False)
    if plan.unique is not None:
        found = await send_unique(execute, tasks, plan.unique, group, schema, alone=alone)
        if found.sha is not None:
            require_same(tasks, 0, found.sha)
        return Written(found.task_id, found.task_id != task_id)
    values = (
        task_id, plan.task_name, plan.queue_name, plan.priority, tasks.args[0], tasks.kwargs[0], tasks.sent_at,
        plan.eta, plan.delay, plan.good_until, plan.ttl, plan.max_retries, plan.task_options, sha, tasks.metadata,
        group,
    )  # fmt: skip
    if fresh and tasks.unique_key is None:
        await execute(statements["insert_fresh_task"].sql, *values)
        return Written(task_id, False)
    for _ in range(_RACES):
        if tasks.unique_key is None:
            if await execute(statements["insert_task"].sql, *values):
                return Written(task_id, False)
            rows = await execute(statements["find_conflict_batch"].sql, [task_id])
            if rows:
                require_same(tasks, 0, rows[0][1])
                return Written(task_id, False)
        else:
            rows = await execute(statements["insert_unique_task"].sql, *values, tasks.unique_key)
            if rows:
                holder, found, is_fresh, _rank = rows[0]
                if holder == task_id and not is_fresh:
                    require_same(tasks, 0, found)
                return Written(holder, holder != task_id)
    raise TaskSendError(
        SendErrorCode.ENQUEUE_FAILED,
        f"task {plan.task_name!r}: another transaction that cannot be seen from here holds its "
        f"{'unique key' if tasks.unique_key else 'id'}",
        task_ids=[task_id],
    )


async def write_batch(execute: ExecuteAsync, tasks: NewTasks, schema: str | None, *, fresh: bool, alone: bool) -> None:
    """Write all tasks or none, in one statement. Rows that exist already must be the same tasks; `fresh` says that no
    row can have one of the ids yet. `alone`: not in a transaction of the caller."""
    if tasks.plan.keep_seconds is not None:
        await write_calls(execute, Calls.of(tasks), schema)
        return
    statements = load("horsies._pg", "tasks.sql", schema)
    # few tasks have positional-only arguments: NULL instead of an array of NULLs need not be encoded
    columns = (tasks.ids, tasks.args if any(tasks.args) else None, tasks.kwargs, tasks.shas)
    if fresh and alone:
        await _call(execute, statements, "send_task_batch", tasks, tasks.groups, *columns)
        return
    statement = statements["insert_fresh_task_batch" if fresh else "insert_task_batch"]
    written = await execute(statement.sql, *columns, *_shared_values(tasks), tasks.groups)
    if written[0][0] == len(tasks.ids):
        return
    rows = await execute(statements["find_conflict_batch"].sql, tasks.ids)
    found = {row[0]: row[1] for row in rows}
    for at, task_id in enumerate(tasks.ids):
        require_same(tasks, at, found.get(task_id))


class Calls(NamedTuple):
    """Calls of several kinds, as columns."""

    kinds: list[str]
    """The columns that the calls of one kind share, each a JSON object."""
    of_kind: list[int] | None
    """The place of each call's kind, from 1; None: all are of the first."""
    ids: list[str]
    args: list[str | None]
    kwargs: list[str | None]
    shas: list[str]
    groups: list[str | None] | None
    sent_at: datetime

    @classmethod
    def of(cls, tasks: NewTasks) -> "Calls":
        kinds = [tasks.plan.kind(tasks.metadata, tasks.unique_key)]
        return cls(kinds, None, tasks.ids, tasks.args, tasks.kwargs, tasks.shas, tasks.groups, tasks.sent_at)


async def write_calls(execute: ExecuteAsync, calls: Calls, schema: str | None) -> dict[int, str]:
    """Write all calls or none, in one statement that can be repeated. Returns the place of each call, from 0, whose
    unique key another live task holds, and the id of that task."""
    statement = load("horsies._pg", "tasks.sql", schema)["send_calls"]
    try:
        rows = await execute(
            statement.sql, f"[{','.join(calls.kinds)}]", calls.ids, calls.of_kind,
            calls.args if any(calls.args) else None, calls.kwargs, calls.shas, calls.groups, calls.sent_at,
        )  # fmt: skip
    except Exception as error:
        if sqlstate(error) != _MISMATCH:
            raise
        spoken = getattr(error, "orig", None) or error
        told = str(spoken).partition("\n")[0]
        taken = [task_id for task_id in dict.fromkeys(calls.ids) if task_id in told]
        raise TaskSendError(SendErrorCode.PAYLOAD_MISMATCH, told, task_ids=taken) from error
    return {row[0] - 1: row[1] for row in rows}


async def _call(
    execute: ExecuteAsync, statements: Mapping[str, Statement], name: str, tasks: NewTasks, groups: Any, *columns: Any
) -> None:
    """Call a procedure that commits the rows, then notifies. An error may come after the commit: the queue of
    notifications is full, its lock was not granted in time, or the statement was cancelled."""
    try:
        await execute(statements[name].sql, *columns, *_shared_values(tasks), groups)
    except Exception as error:
        code = sqlstate(error)
        if code is None or code[:2] in _OF_THE_INSERT or not is_answer(error):
            raise
        try:
            rows = await execute(statements["find_conflict_batch"].sql, tasks.ids)
        except Exception as unread:
            if not is_answer(unread):
                raise  # the connection was lost: that says that the outcome is unknown, and is repeated
            raise NoAnswerError(worded(error)) from error
        if {row[0]: row[1] for row in rows} != dict(zip(tasks.ids, tasks.shas, strict=True)):
            raise


def _shared_values(tasks: NewTasks) -> tuple[Any, ...]:
    plan = tasks.plan
    return (
        plan.task_name, plan.queue_name, plan.priority, tasks.sent_at, plan.eta, plan.delay, plan.good_until, plan.ttl,
        plan.max_retries, plan.task_options, tasks.metadata,
    )  # fmt: skip


def require_same(tasks: NewTasks, at: int, found: object) -> None:
    """Raise unless `found`, the fingerprint of the row that has the id, is that of this task."""
    task_id = tasks.ids[at]
    if tasks.other_shas is not None:
        other = tasks.other_shas[at]
    else:
        other = tasks.plan.older_sha(tasks.args[at], tasks.kwargs[at])
    if found not in (tasks.shas[at], other):
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
