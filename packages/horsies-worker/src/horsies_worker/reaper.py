"""Heals what other workers left behind: overdue tasks, claims without a holder, running tasks without a sign of life.

One reaper sweeps at a time, by a transaction lock. It judges others only after it has itself been in contact with the
database for as long as the threshold: after an outage nobody's beats could land, and nobody is to blame.
"""

import logging
import random
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from horsies.codec import DecodeError, decode_untyped_result, encode_error
from horsies.config import AppConfig
from horsies.errors import OperationalErrorCode, OutcomeCode
from horsies.options import TaskOptions
from horsies.registry import Registry
from horsies.result import TaskError
from horsies_worker.child.logs import about
from horsies_worker.claims import options_of
from horsies_worker.decide import Transition, decide
from horsies_worker.finalizer import is_data_error
from horsies_worker.jobs import Outcome, OutcomeKind
from horsies_worker.queries import EXPIRED_RESULT, REAPER_LOCK, Queries
from horsies_worker.service import Service
from horsies_worker.session import SET_LOCAL_LIMITS, Session
from horsies_worker.syncpoints import reached

_log = logging.getLogger("horsies.worker")

BATCH: Final = 500
_END_OF_TIME: Final = datetime(9000, 1, 1, tzinfo=UTC)
"""As "finished" of a crash: the statement brings it back to its own now."""
_KIND_OF: Final[Mapping[str, OutcomeKind]] = {
    OperationalErrorCode.WORKER_CRASHED: OutcomeKind.CRASHED,
    OutcomeCode.TASK_CANCELLED: OutcomeKind.CANCELLED,
    OutcomeCode.TASK_TIMEOUT: OutcomeKind.TIMEOUT,
}
"""A staged row keeps the result alone; these codes are reserved, so they tell how the attempt ended."""


class Reaper(Service):
    name = "reaper"

    def __init__(self, config: AppConfig, registry: Registry, session: Session, queries: Queries) -> None:
        super().__init__(config.recovery.check_interval_ms / 1000, config.resilience)
        self._recovery = config.recovery
        self._registry = registry
        self._session = session
        self._queries = queries
        self._in_contact_since: float | None = None
        self._last_answer = 0.0
        # A fault that keeps us waiting keeps the beats of the living waiting as well. What it may last before they look
        # dead is the threshold less one interval of beats; a quarter of that is told from it by far.
        self._slow_s = (
            min(
                config.recovery.running_stale_threshold_ms - config.recovery.runner_heartbeat_interval_ms,
                config.recovery.claimed_stale_threshold_ms - config.recovery.claimer_heartbeat_interval_ms,
            )
            / 4000
        )

    async def run_once(self) -> None:
        try:
            while await self._session.run(self._sweep):
                pass
        except Exception:
            self._in_contact_since = None
            raise

    async def _ask(self, connection: Any, name: str, *values: Any) -> list[Any]:
        """One statement of the sweep. One that was slow, or came late (a frozen process, a long pause before the
        connection was there), counts as a loss of contact: it may have waited for a lock that stopped everybody."""
        asked = time.monotonic()
        rows = await connection.fetch(self._queries.sql(name), *values)
        now = time.monotonic()
        late = now - self._last_answer > 1.1 * self._interval_s + self._slow_s
        if self._in_contact_since is None or late or now - asked > self._slow_s:
            self._in_contact_since = now
        self._last_answer = now
        return rows

    def _may_judge(self, threshold_ms: int) -> bool:
        since = self._in_contact_since
        return since is not None and time.monotonic() - since >= threshold_ms / 1000

    async def _sweep(self, connection: Any) -> bool:
        """One short transaction; True when a batch was full and there may be more."""
        recovery = self._recovery
        async with connection.transaction(isolation="read_committed"):
            if self._session.pooled:
                await connection.execute(SET_LOCAL_LIMITS)
            await self._ask(connection, "wait_until_writable")
            (is_active,) = await self._ask(connection, "try_reaper_lock", REAPER_LOCK)
            if not is_active[0]:
                return False
            await reached("in_sweep")
            expired = await self._ask(connection, "expire_overdue", EXPIRED_RESULT, BATCH)
            requeued: list[Any] = []
            if recovery.auto_requeue_stale_claimed and self._may_judge(recovery.claimed_stale_threshold_ms):
                threshold = timedelta(milliseconds=recovery.claimed_stale_threshold_ms)
                requeued = await self._ask(connection, "requeue_expired_claims", threshold, BATCH)
            stale: list[Any] = []
            if recovery.auto_fail_stale_running and self._may_judge(recovery.running_stale_threshold_ms):
                stale = await self._ask(
                    connection,
                    "stale_running",
                    timedelta(milliseconds=recovery.running_stale_threshold_ms),
                    timedelta(milliseconds=recovery.finalizing_stale_threshold_ms),
                    BATCH,
                )
                if not self._may_judge(recovery.running_stale_threshold_ms):
                    stale = []  # that very statement was held up
                stale = await self._end(connection, stale)
        for what, rows in (("expired", expired), ("requeued a stale claim of", requeued), ("recovered", stale)):
            for row in rows:
                _log.warning("reaper: %s task %s", what, row["id"], extra=about(row["id"]))
        return max(len(expired), len(requeued), len(stale)) == BATCH

    async def _end(self, connection: Any, rows: Sequence[Mapping[str, Any]]) -> list[Any]:
        """End these; returns the ones that were. One that takes no end is told of and left: it must not keep the sweep
        from all others."""
        if not rows:
            return []
        ends = [self._end_of(row) for row in rows]
        try:
            async with connection.transaction():  # a savepoint
                written = await self._queries.finalize(connection, ends, [row["claimed_by_worker_id"] for row in rows])
            return [row for row in rows if row["id"] in written]
        except Exception as error:
            if not is_data_error(error):
                raise
            if len(rows) == 1:
                _log.critical("reaper: task %s cannot be ended: %s", rows[0]["id"], error, extra=about(rows[0]["id"]))
                return []
        half = len(rows) // 2
        return await self._end(connection, rows[:half]) + await self._end(connection, rows[half:])

    def _end_of(self, row: Mapping[str, Any]) -> Transition:
        in_hand_since: datetime | None = row["finalizing_at"]
        staged = None if in_hand_since is None else _staged(row)
        definition = self._registry.get(row["task_name"])
        registered = definition.options if definition is not None else TaskOptions()
        budget: int = row["max_retries"]
        if row["task_options"] is None:
            budget = max(budget, registered.max_retries)
        return decide(
            task_id=row["id"],
            generation=row["claim_generation"],
            attempt=row["retry_count"] + 1,
            options=options_of(row["task_name"], row["task_options"], registered),
            budget=budget,
            # a staged outcome is work that was done; without one it is a crash
            outcome=staged or _crash(row),
            started=row["started_at"],
            finished=_END_OF_TIME if staged is None or in_hand_since is None else in_hand_since,
            random=random.random,
        )


def _crash(row: Mapping[str, Any]) -> Outcome:
    reason = f"no sign of life from worker {row['claimed_by_worker_id']}, process {row['worker_pid']}"
    return Outcome(
        kind=OutcomeKind.CRASHED,
        result=encode_error(TaskError(OperationalErrorCode.WORKER_CRASHED, reason)),
        error_code=OperationalErrorCode.WORKER_CRASHED.value,
        error_message=reason,
        failed_reason=reason,
        retry_after_ms=None,
        started_mono=0.0,
        finished_mono=0.0,
        pid=row["worker_pid"],
        process_name=row["worker_process_name"] or "",
    )


def _staged(row: Mapping[str, Any]) -> Outcome | None:
    text = row["result"]
    if text is None:
        return None
    try:
        result = decode_untyped_result(text, task_name=row["task_name"])
    except DecodeError:
        return None
    error = result.err
    code = None if error is None else str(error.error_code)
    return Outcome(
        kind=OutcomeKind.OK if code is None else _KIND_OF.get(code, OutcomeKind.ERR),
        result=text,
        error_code=code,
        error_message=None if error is None else error.message,
        failed_reason=error.message if error is not None and code in _KIND_OF else None,
        retry_after_ms=None if error is None else error.retry_after_ms,
        started_mono=0.0,
        finished_mono=0.0,
        pid=row["worker_pid"],
        process_name=row["worker_process_name"] or "",
    )
