"""Writes a send whose key outlives its task, or that changes the task which holds the key: one call of a function."""

from typing import TYPE_CHECKING, NamedTuple

from horsies._pg.statements import load
from horsies.errors import SendErrorCode, TaskSendError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from typing import Any

    from horsies.new_tasks import NewTasks
    from horsies.uniqueness import Uniqueness

    ExecuteAsync = Callable[..., Awaitable[Sequence[Sequence[Any]]]]


class Holder(NamedTuple):
    """The task that holds the key after the send."""

    task_id: str
    sha: str | None
    """Its fingerprint, if this send, or one with the same id, has made the task."""


async def send_unique(
    execute: "ExecuteAsync",
    tasks: "NewTasks",
    unique: "Uniqueness",
    group: str | None,
    schema: str | None,
    *,
    alone: bool,
) -> Holder:
    """Send the first of the tasks, or let the holder of its key take it over. It can be repeated after a lost answer:
    the function knows the id."""
    plan, task_id = tasks.plan, tasks.ids[0]
    rows = await execute(
        load("horsies._pg", "unique_keys.sql", schema)["send_unique"].sql,
        task_id, tasks.args[0], tasks.kwargs[0], tasks.shas[0], plan.task_name, plan.queue_name, plan.priority,
        tasks.sent_at, plan.eta, unique.delay, plan.good_until, plan.ttl, plan.max_retries, plan.task_options,
        tasks.metadata, group, tasks.unique_key, unique.mode, unique.unique_for, unique.debounce, unique.max_wait,
        plan.keep_seconds, alone,
    )  # fmt: skip
    holder_id, sha, outcome = rows[0]
    if outcome == "lost":
        raise TaskSendError(
            SendErrorCode.ENQUEUE_FAILED,
            f"task {plan.task_name!r}: another transaction that cannot be seen from here holds its unique key",
            task_ids=[task_id],
        )
    return Holder(holder_id, sha if holder_id == task_id else None)
