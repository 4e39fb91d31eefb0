"""Outcomes, from a child's report or from its death. Pure."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from horsies.errors import OperationalErrorCode
from horsies_worker.execute import error_report, stopped_report
from horsies_worker.forensics import Exit, describe
from horsies_worker.jobs import Outcome, OutcomeKind
from horsies_worker.wire import Report, StopCode

if TYPE_CHECKING:
    from horsies_worker.child_process import ChildProcess
    from horsies_worker.handed import Handed


def outcome_of(report: Report, started: float | None, finished: float, child: ChildProcess) -> Outcome:
    return Outcome(
        report.kind,
        report.result,
        report.error_code,
        report.error_message,
        report.failed_reason,
        report.retry_after_ms,
        started,
        finished,
        child.pid,
        child.name,
    )


def unstarted_cancel(child: ChildProcess) -> Outcome:
    """Cancelled before it began: `started_mono` is None, so no attempt took place."""
    return outcome_of(stopped_report(StopCode.CANCEL, None), None, time.monotonic(), child)


def ended_by_death(handed: Handed, end: Exit, child: ChildProcess) -> Outcome | None:
    """The outcome of a job that ran when its child died; None when nobody may hear of it any more."""
    started, finished = child.started_at(handed), time.monotonic()
    how = describe(end)
    stop = handed.stop
    if stop is not None:
        if stop.code is StopCode.ABANDON:
            return None
        report = stopped_report(stop.code, None)
        report.failed_reason = f"{report.error_message}: {how}"
        return outcome_of(report, started, finished, child)
    if end.killed_by_us:
        how = f"the child process was killed to stop another task in it; {how}"
    report = error_report(OperationalErrorCode.WORKER_CRASHED, how)
    report.kind = OutcomeKind.CRASHED
    report.failed_reason = how
    return outcome_of(report, started, finished, child)
