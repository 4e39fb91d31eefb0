"""Ends the running tasks of a worker that is gone: with their staged outcome, or as a crash."""

import random
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from math import inf
from typing import Any, Final

from horsies._pg.refusals import worded
from horsies.codec import DecodeError, decode_untyped_result, encode_error
from horsies.errors import OperationalErrorCode, OutcomeCode
from horsies.events import RecoveryAction, TaskQuarantined, TaskRecovered
from horsies.options import TaskOptions
from horsies.registry import Registry
from horsies.result import TaskError
from horsies_worker.child.outcome import Outcome, OutcomeKind
from horsies_worker.children.apart import apart_ms
from horsies_worker.claim.claimed_task import options_of
from horsies_worker.database.queries import Queries
from horsies_worker.database.split_batch import is_row_error, write_or_split
from horsies_worker.database.transition import Transition
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.finish.decide import decide
from horsies_worker.finish.finalizer import quarantined
from horsies_worker.finish.rerun_alone import options_of_end
from horsies_worker.output.log_context import about, log

_END_OF_TIME: Final = inf
"""As "finished" of a crash: the statement brings it back to its own now."""
_KIND_OF: Final[Mapping[str, OutcomeKind]] = {
    OperationalErrorCode.WORKER_CRASHED: OutcomeKind.CRASHED,
    OutcomeCode.TASK_CANCELLED: OutcomeKind.CANCELLED,
    OutcomeCode.TASK_TIMEOUT: OutcomeKind.TIMEOUT,
    OutcomeCode.TASK_SNOOZED: OutcomeKind.SNOOZED,
}
"""A staged row keeps the result alone; these codes are reserved, so they tell how the attempt ended. A task of an older
release may have returned one itself: it counts as cancelled only where the row says that this was asked for."""


class Recovery:
    """Ends RUNNING rows that the caller's transaction has locked. The caller tells `tasks_ended` after the commit."""

    def __init__(
        self,
        queries: Queries,
        registry: Registry,
        tasks_ended: Callable[[Sequence[str]], None] = lambda _: None,
        bus: EventBus = SILENT,
        on_recovered: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_recovered`: called when tasks of other workers were ended or requeued."""
        self.bus = bus
        self._queries = queries
        self._registry = registry
        self.tasks_ended = tasks_ended
        self._on_recovered = on_recovered
        self._quarantined: list[TaskQuarantined] = []
        """What `end` found, until the commit."""

    def tell(self, action: RecoveryAction, rows: Sequence[Mapping[str, Any]]) -> None:
        """Tell the bus of these tasks, after the commit."""
        for row in rows:
            self.bus.emit(TaskRecovered(row["id"], action))
        if action == "ended":
            ended = {row["id"] for row in rows}
            events, self._quarantined = self._quarantined, []
            for event in events:
                if event.task_id in ended:
                    self.bus.emit(event)
        if rows:
            self._on_recovered()

    async def end(self, connection: Any, rows: Sequence[Mapping[str, Any]], why: str) -> list[Any]:
        """End these; returns the ones that were. One that takes no end is told of and left: it must not keep the sweep
        from all others. `why` is what became of their worker."""

        waits = _apart(rows)

        async def write(part: Sequence[Mapping[str, Any]]) -> list[Any]:
            ends = [self._end_of(row, why, waits[row["id"]]) for row in part]
            written = await self._queries.finalize(connection, ends, [row["claimed_by_worker_id"] for row in part])
            self._quarantined += quarantined(ends, written.quarantined)
            return [row for row in part if row["id"] in written]

        def refuse(row: Mapping[str, Any], error: Exception) -> list[Any]:
            log.critical("reaper: task %s cannot be ended: %s", row["id"], worded(error), extra=about(row["id"]))
            return []

        parts = await write_or_split(rows, write, refuse, transaction=connection, splits=is_row_error) if rows else []
        return [row for part in parts for row in part]

    def _end_of(self, row: Mapping[str, Any], why: str, apart_ms: int) -> Transition:
        in_hand_since: datetime | None = row["finalizing_at"]
        staged = None if in_hand_since is None else _staged(row)
        definition = self._registry.get(row["task_name"])
        registered = definition.options if definition is not None else TaskOptions()
        options, is_registered = options_of(row["task_name"], row["task_options"], registered)
        budget: int = row["max_retries"]
        if is_registered:
            budget = max(budget, registered.max_retries)
        attempt: int = row["retry_count"] + 1
        # a staged outcome is work that was done; without one it is a crash
        outcome = staged or _crash(row, why, apart_ms)
        options, budget = options_of_end(
            outcome, options, budget,
            is_batch=definition is not None and definition.batch is not None, attempt=attempt,
        )  # fmt: skip
        return decide(
            task_id=row["id"],
            generation=row["claim_generation"],
            attempt=attempt,
            options=options,
            budget=budget,
            outcome=outcome,
            started=row["started_at"].timestamp(),
            finished=_END_OF_TIME if staged is None or in_hand_since is None else in_hand_since.timestamp(),
            random=random.random,
        )


def _apart(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How much longer each task waits, because it died together with others of the same worker."""
    waits: dict[str, int] = {}
    for worker in {row["claimed_by_worker_id"] for row in rows}:
        together = [row for row in rows if row["claimed_by_worker_id"] == worker]
        found = apart_ms([row["ran_s"] for row in together])
        waits |= {row["id"]: wait for row, wait in zip(together, found, strict=True)}
    return waits


def _crash(row: Mapping[str, Any], why: str, apart_ms: int) -> Outcome:
    process = "" if row["worker_pid"] is None else f", process {row['worker_pid']}"
    reason = f"{why} (worker {row['claimed_by_worker_id']}{process})"
    return Outcome(
        kind=OutcomeKind.CRASHED,
        result=encode_error(TaskError(OperationalErrorCode.WORKER_CRASHED, reason)),
        error_code=OperationalErrorCode.WORKER_CRASHED.value,
        error_message=reason,
        failed_reason=reason,
        pid=row["worker_pid"],
        process_name=row["worker_process_name"] or "",
        apart_ms=apart_ms,
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
    kind = OutcomeKind.OK if code is None else _KIND_OF.get(code, OutcomeKind.ERR)
    if kind is OutcomeKind.CANCELLED and row["cancel_requested_at"] is None:
        kind = OutcomeKind.ERR
    return Outcome(
        kind=kind,
        result=text,
        error_code=code,
        error_message=None if error is None else error.message,
        failed_reason=error.message if error is not None and kind is not OutcomeKind.ERR else None,
        retry_after_ms=None if error is None else error.retry_after_ms,
        pid=row["worker_pid"],
        process_name=row["worker_process_name"] or "",
    )
