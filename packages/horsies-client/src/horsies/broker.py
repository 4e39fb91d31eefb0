"""What operators and tools do with the database: look, cancel, retry, requeue, pause, recover by hand.

Coroutines all; `TaskHandle` and the command line offer what people need of it without a loop. The methods
that change rows return how many, or what became of the one.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, cast

from horsies._checks import Checks
from horsies._operations import Operations, is_denied
from horsies.config.queues import queue_name_problem
from horsies.errors import (
    BrokerError,
    ConfigurationError,
    OperationalErrorCode,
    OutcomeCode,
    UsageError,
)
from horsies.handle import CancelResult
from horsies.info import ExpiredTask, ScheduleInfo, StaleTask, TaskAttempt, TaskInfo, WorkerStats
from horsies.result import TaskError
from horsies.status import TaskStatus

if TYPE_CHECKING:
    from horsies.workflow.control import WorkflowControl

_UNIQUE_VIOLATION = "23505"
_CANCEL_ROUNDS = 5
"""A task may move between our two looks (retried by another operator); each round tries again."""


class PostgresBroker(Operations):
    """The operations of one app's database. Get it with `app.get_broker()`."""

    _workflows: "WorkflowControl | None" = None

    @property
    def workflows(self) -> "WorkflowControl":
        """The same for runs of workflows."""
        made = self._workflows
        if made is None:
            from horsies.workflow.control import WorkflowControl

            # Not a cached_property: Python 3.11 holds a lock for all of them while one is computed.
            made = self._workflows = WorkflowControl(self._run, self._config.broker.schema)
        return made

    # -- looking ---------------------------------------------------------------------------------

    async def get_task_info(self, task_id: str) -> TaskInfo | None:
        """Everything about one task but its arguments and result; None when there is no such task. A role that may not
        see messages gets None for `failed_reason`, `unique_key` and `progress`."""
        try:
            row = await self._row("read_task", task_id)
        except BrokerError as error:
            if not is_denied(error):
                raise
            row = await self._row("show_task", task_id)
            if row is not None:
                row = {**dict(row.items()), "failed_reason": None, "unique_key": None, "progress": None}
        return TaskInfo.from_row(row) if row is not None else None

    async def get_attempts(self, task_id: str) -> list[TaskAttempt]:
        """The finished attempts of one task, first to last; without messages for a role that may not see them."""
        try:
            rows = await self._rows("read_attempts", task_id)
        except BrokerError as error:
            if not is_denied(error):
                raise
            rows = await self._rows("show_attempts", task_id)
        return [TaskAttempt.from_row(row) for row in rows]

    async def get_stale_tasks(self, stale_threshold_minutes: float = 5) -> list[StaleTask]:
        """CLAIMED and RUNNING tasks whose worker has given no sign of life for that long, the oldest first."""
        rows = await self._rows(
            "stale_tasks", _span("stale_threshold_minutes", minutes=stale_threshold_minutes), [], 2**31 - 1
        )
        return [StaleTask.from_row(row) for row in rows]

    async def get_expired_tasks(self, limit: int = 100) -> list[ExpiredTask]:
        """Tasks that missed their `good_until`: first the ones that no sweep has met yet, then the newest ended."""
        return [ExpiredTask.from_row(row) for row in await self._rows("expired_tasks", limit)]

    async def get_worker_stats(self, seen_within_minutes: float = 5) -> list[WorkerStats]:
        """The newest snapshot of every worker that was seen within the window."""
        rows = await self._rows("worker_stats", _span("seen_within_minutes", minutes=seen_within_minutes))
        return [WorkerStats.from_row(row) for row in rows]

    async def get_paused_queues(self) -> dict[str, datetime]:
        """Paused queues, and since when."""
        return {row["queue_name"]: row["paused_at"] for row in await self._rows("paused_queues")}

    async def get_schedules(self) -> list[ScheduleInfo]:
        """The state of every schedule that a scheduler has ever served, by name."""
        return [ScheduleInfo.from_row(row) for row in await self._rows("list_schedules")]

    # -- acting on tasks -------------------------------------------------------------------------

    async def cancel(self, task_id: str) -> CancelResult:
        """Stop one task: for good when it has not started, by asking its worker when it runs."""
        return (await self.cancel_many([task_id]))[task_id]

    async def cancel_many(self, task_ids: Iterable[str]) -> dict[str, CancelResult]:
        """`cancel` for many, in one statement."""
        left = set(task_ids)
        done: dict[str, CancelResult] = {}
        for _ in range(_CANCEL_ROUNDS):
            rows = await self._rows("cancel_tasks", sorted(left))
            done.update({row["id"]: CancelResult(row["outcome"]) for row in rows})
            left.difference_update(done)
            if not left:
                break
            found = {row["id"]: TaskStatus(row["status"]) for row in await self._rows("read_ended_batch", sorted(left))}
            for task_id in list(left):
                status = found.get(task_id)
                if status is None or status.is_terminal:
                    done[task_id] = CancelResult.NOT_FOUND if status is None else CancelResult.ALREADY_ENDED
                    left.discard(task_id)
        for task_id in left:  # it moved every time we looked; its worker finds the mark of an earlier round or none
            done[task_id] = CancelResult.REQUESTED
        return done

    async def retry(self, task_id: str) -> bool:
        """Run a FAILED, CANCELLED or EXPIRED task again under the same id. False when it is in another state."""
        return bool(await self.retry_many([task_id]))

    async def retry_many(self, task_ids: Iterable[str]) -> int:
        """`retry` for many, all or none; returns how many will run again."""
        try:
            return len(await self._rows("retry_batch", sorted(set(task_ids)), None))
        except BrokerError as error:
            if getattr(error.__cause__, "sqlstate", None) != _UNIQUE_VIOLATION:
                raise
            detail = getattr(error.__cause__, "detail", None)
            raise UsageError(
                "not retried: another task that has not ended holds the same unique_key, and two with one key must "
                f"not be live at a time ({detail}); cancel or await the other one first"
            ) from error

    async def requeue(self, task_id: str) -> bool:
        """Take a CLAIMED task from the worker that holds it. False when it is in another state."""
        return bool(await self.requeue_many([task_id]))

    async def requeue_many(self, task_ids: Iterable[str]) -> int:
        """`requeue` for many; returns how many went back."""
        return len(await self._rows("requeue_claimed_batch", sorted(set(task_ids))))

    # -- recovering by hand ----------------------------------------------------------------------

    async def mark_stale_tasks_as_failed(
        self, stale_threshold_ms: int = 300_000, task_ids: Iterable[str] | None = None
    ) -> int:
        """End RUNNING tasks without a sign of life as FAILED, WORKER_CRASHED; returns how many.

        `task_ids`: only those of them. Never retries: that is the reaper's part. Use it when the workers that would
        are gone.
        """
        reason = f"no sign of life from its worker for {stale_threshold_ms} ms; failed by hand"
        result = _error_json(OperationalErrorCode.WORKER_CRASHED, reason)
        threshold = _span("stale_threshold_ms", milliseconds=stale_threshold_ms)
        return len(await self._rows("fail_stale_running", threshold, result, reason, _ids(task_ids)))

    async def requeue_stale_claimed(
        self, stale_threshold_ms: int = 120_000, task_ids: Iterable[str] | None = None
    ) -> int:
        """Send CLAIMED tasks without a sign of life back to their queue; returns how many."""
        threshold = _span("stale_threshold_ms", milliseconds=stale_threshold_ms)
        return len(await self._rows("requeue_stale_claimed", threshold, _ids(task_ids)))

    # -- queues ----------------------------------------------------------------------------------

    async def pause_queue(self, queue_name: str) -> None:
        """No worker claims from it any more; what runs goes on."""
        await self._rows("pause_queue", _checked_queue(queue_name))

    async def resume_queue(self, queue_name: str) -> bool:
        """Workers claim from it again; False when it was not paused."""
        row = await self._row("resume_queue", _checked_queue(queue_name))
        return row is not None and row["was_paused"]

    # -- schedules -------------------------------------------------------------------------------

    async def run_schedule_now(self, name: str) -> bool:
        """Ask the schedulers for one run beside the slots; False when there is no such schedule.

        A second request before the first was fulfilled is the same one. Works for a paused or disabled schedule too.
        """
        return bool(await self._rows("request_run", _storable(name)))

    async def pause_schedule(self, name: str) -> bool:
        """Its slots pass without a run until it is resumed; False when there is no such schedule."""
        return bool(await self._rows("pause_schedule", _storable(name)))

    async def resume_schedule(self, name: str) -> bool:
        """It runs again from its next slot on; False when there is no such schedule."""
        return bool(await self._rows("resume_schedule", _storable(name)))


def _error_json(code: OutcomeCode | OperationalErrorCode, message: str) -> str:
    from horsies.codec import encode_error

    return encode_error(TaskError(code, message))


def _ids(task_ids: Iterable[str] | None) -> list[str] | None:
    return None if task_ids is None else sorted(set(task_ids))


def _span(field: str, **given: float) -> timedelta:
    """How far to look back, in one unit."""
    checks = Checks("broker")
    try:
        span = timedelta(**given)
    except (OverflowError, ValueError, TypeError):  # beyond a timedelta, NaN, not a number
        span = next(iter(given.values()))
    checks.span(field, span)
    checks.finish()
    return cast("timedelta", span)


def _checked_queue(name: str) -> str:
    if problem := queue_name_problem(name, "queue_name"):
        raise ConfigurationError([problem], subject="queue")
    return name


def _storable(name: str) -> str:
    """A name that the driver can carry; one that it cannot is nobody's, and found as little as any other."""
    return name.replace("\0", "").encode(errors="replace").decode()
