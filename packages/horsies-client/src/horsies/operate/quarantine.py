"""Tasks in quarantine: those that crashed as often as the `max_crashes` of their policy allows. They are FAILED with
CRASH_LIMIT and have no state of their own, so every list of failed tasks shows them too."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from typing import Final, Protocol

from horsies._checks import Checks
from horsies.errors import OperationalErrorCode
from horsies.operate.filters import TaskCursor, TaskFilter, id_list
from horsies.operate.reading import COUNT_BOUND
from horsies.operate.views import RetryResult, TaskPage, TaskState
from horsies.status import TaskStatus

CRASH_LIMIT: Final = OperationalErrorCode.CRASH_LIMIT.value


def in_quarantine(filter: TaskFilter | None = None) -> TaskFilter:
    """The tasks of the filter that are in quarantine; raises ConfigurationError for a filter by state or error code."""
    filter = filter or TaskFilter()
    checks = Checks("TaskFilter")
    for name in ("statuses", "error_codes", "code_part"):
        if getattr(filter, name) is not None:
            fix = "leave it out, or use list_tasks and retry_tasks"
            checks.add(name, "tasks in quarantine are all FAILED with CRASH_LIMIT", fix)
    checks.finish()
    return replace(filter, statuses=frozenset({TaskStatus.FAILED}), error_codes=(CRASH_LIMIT,))


class Tasks(Protocol):
    """The verbs of the broker that this needs."""

    async def list_tasks(
        self, filter: TaskFilter | None = None, limit: int = 100, after: TaskCursor | None = None
    ) -> TaskPage: ...
    async def count_tasks(self, filter: TaskFilter | None = None, bound: int = COUNT_BOUND) -> int: ...
    async def get_task_states(self, task_ids: Iterable[str]) -> dict[str, TaskState]: ...
    async def get_time(self) -> datetime: ...
    async def retry_tasks(
        self, task_ids: Iterable[str], *, ended_before: datetime | None = None
    ) -> dict[str, RetryResult]: ...
    async def purge_tasks(self, filter: TaskFilter, limit: int | None = None) -> int: ...


class Quarantine:
    """Get it with `broker.quarantine`. A filter says nothing about states and error codes here."""

    def __init__(self, broker: Tasks) -> None:
        self._broker = broker

    async def list(
        self, filter: TaskFilter | None = None, limit: int = 100, after: TaskCursor | None = None
    ) -> TaskPage:
        """A page of them, the last ended first. `after` is the `next` of the page before."""
        return await self._broker.list_tasks(in_quarantine(filter), limit, after)

    async def count(self, filter: TaskFilter | None = None, bound: int = COUNT_BOUND) -> int:
        """How many there are; counting stops at `bound`."""
        return await self._broker.count_tasks(in_quarantine(filter), bound)

    async def release(self, task_ids: Iterable[str]) -> dict[str, RetryResult]:
        """Run these again under their ids, with their crashes counted anew, and return the outcome for every one.

        A task that is not in quarantine is left alone (NOT_QUARANTINED). One of a workflow runs again with its workflow
        (IN_WORKFLOW): `broker.workflows.retry`.
        """
        ids = id_list(task_ids)
        seen_at = await self._broker.get_time()
        states = await self._broker.get_task_states(ids)
        wrong = {one for one, state in states.items() if state.error_code != CRASH_LIMIT}
        results = await self._broker.retry_tasks([one for one in ids if one not in wrong], ended_before=seen_at)
        return results | dict.fromkeys(sorted(wrong), RetryResult.NOT_QUARANTINED)

    async def purge(self, filter: TaskFilter | None = None, limit: int | None = None) -> int:
        """Delete them, the oldest first, with their attempts; returns how many."""
        return await self._broker.purge_tasks(in_quarantine(filter), limit)
