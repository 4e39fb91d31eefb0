"""The overview: counts by state, queues, workers, rates, alerts and the newest failures."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from horsies.operate import reading
from horsies.operate.doctor import Finding
from horsies.operate.doctor.work import schedule_findings
from horsies.operate.schedule_state import FORGOTTEN_AFTER, LISTED_FOR, OVERDUE_AFTER
from horsies.operate.session import Fetch
from horsies.operate.views import QueueStatus
from horsies.status import TASK_TERMINAL_STATES, TaskStatus
from horsies_tui.data.alerts import FAILING_SPAN, alerts
from horsies_tui.data.models import Count, Ends, Failing, Overview
from horsies_tui.data.series import LOOK_ROWS_NOW, Rates

Estimates = Callable[[Fetch], Awaitable[Mapping[str, int]]]
"""Reads the planner's estimate of the tasks in each state."""

COUNT_BOUND: Final = 5_000
SURELY_BEYOND: Final = 4
"""When the planner estimates this many times the bound, the tasks are not counted up to it."""
QUEUE_BOUND: Final = 500
FAILURES_SEEN: Final = 100
FAILING_SHOWN: Final = 12


async def overview(fetch: Fetch, window: timedelta, rates: Rates, estimates: Estimates) -> Overview:
    queues, workers = await reading.queues(fetch, QUEUE_BOUND)
    counts = _live_counts(queues, known := await estimates(fetch)) | await _ended_counts(fetch, known)
    curves = await rates.look(fetch)
    failing = await fetch("failing", window, FAILURES_SEEN, FAILING_SHOWN)
    quarantined = sum(row["found"] for row in await fetch("quarantined"))
    found = alerts(queues, workers, await _recent_ends(fetch), await _schedule_findings(fetch), quarantined)
    return Overview(
        counts, tuple(queues), tuple(workers), curves, found, tuple(Failing.from_row(row) for row in failing)
    )  # fmt: skip


def _live_counts(queues: Sequence[QueueStatus], known: Mapping[str, int]) -> dict[TaskStatus, Count]:
    is_cut = any(queue.is_bounded for queue in queues)
    waiting = sum(queue.ready + queue.delayed for queue in queues)
    return {
        TaskStatus.PENDING: Count(max(waiting, known.get("PENDING", 0)) if is_cut else waiting, is_cut),
        TaskStatus.CLAIMED: Count(sum(queue.claimed for queue in queues)),
        TaskStatus.RUNNING: Count(sum(queue.running for queue in queues)),
    }


async def _ended_counts(fetch: Fetch, known: Mapping[str, int]) -> dict[TaskStatus, Count]:
    ended: dict[str, int] = {}
    is_cut = sum(known.get(status, 0) for status in TASK_TERMINAL_STATES) > SURELY_BEYOND * COUNT_BOUND
    if not is_cut:
        ended = {row["status"]: row["tasks"] for row in await fetch("ended_counts", COUNT_BOUND)}
        is_cut = sum(ended.values()) >= COUNT_BOUND
    return {
        status: Count(max(ended.get(status, 0), known.get(status, 0)) if is_cut else ended.get(status, 0), is_cut)
        for status in TaskStatus
        if status.is_terminal
    }


async def _recent_ends(fetch: Fetch) -> Ends:
    (row,) = await fetch("failed_now", FAILING_SPAN.total_seconds(), LOOK_ROWS_NOW)
    span = timedelta(seconds=row["oldest_s"]) if row["tasks"] >= LOOK_ROWS_NOW else FAILING_SPAN
    return Ends(row["tasks"], row["failed"], span)


async def _schedule_findings(fetch: Fetch) -> list[Finding]:
    (row,) = await fetch("schedule_facts", LISTED_FOR, OVERDUE_AFTER, FORGOTTEN_AFTER)
    return list(schedule_findings(row))


def status_estimates(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The planner's estimate of the tasks in each state; empty before the first ANALYZE."""
    if not rows or rows[0]["statuses"] is None or rows[0]["rows"] < 0:
        return {}
    row = rows[0]
    return {status: round(row["rows"] * share) for status, share in zip(row["statuses"], row["shares"], strict=True)}
