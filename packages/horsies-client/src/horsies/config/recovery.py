"""RecoveryConfig: how soon silence counts as death, and how long history is kept.

A heartbeat may be late by one interval on a healthy machine (a busy event loop, one slow commit),
so every threshold is at least twice its heartbeat: one lost beat never condemns a task.
"""

from dataclasses import dataclass

from horsies._checks import Checks

_SECOND = 1_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_CENTURY_HOURS = 876_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """Thresholds and intervals in milliseconds, retention in hours. All problems are raised together."""

    auto_requeue_stale_claimed: bool = True
    """Return CLAIMED tasks whose claimer fell silent to PENDING. Always safe: user code never ran."""

    claimed_stale_threshold_ms: int = 120_000
    """Silence after which a CLAIMED task is stale. 1 s to 1 h, at least 2x the claimer heartbeat."""

    auto_fail_stale_running: bool = True
    """End RUNNING tasks whose runner fell silent (WORKER_CRASHED), or retry them if their policy lists that code."""

    running_stale_threshold_ms: int = 300_000
    """Silence, not duration, after which a RUNNING task is stale. 1 s to 2 h, at least 2x the runner heartbeat."""

    finalizing_stale_threshold_ms: int = 300_000
    """How long a result in hand may wait to be written. 1 s to 2 h, at least 2x the runner heartbeat."""

    crashed_worker_recovery_grace_ms: int = 10_000
    """Wait before finishing workflow progress that a dead worker left half done. 0: a minute, and at once when a worker
    starts or is found dead."""

    retired_task_grace_ms: int = 86_400_000
    """How long a task waits whose name live workers knew before and no longer know; then it fails,
    WORKER_RESOLUTION_ERROR. An app that was scaled to zero has this long to come back. 0 to 30 days."""

    check_interval_ms: int = 30_000
    """How often the reaper looks for stale tasks. 1 s to 10 min."""

    runner_heartbeat_interval_ms: int = 30_000
    """How often a worker vouches for its RUNNING tasks. 1 s to 2 min."""

    claimer_heartbeat_interval_ms: int = 30_000
    """How often a worker vouches for its CLAIMED tasks. 1 s to 2 min."""

    worker_state_interval_ms: int = 5_000
    """How often a worker writes its snapshot. One whose snapshots and session are gone for three of these is known to
    be dead, and its tasks are recovered then, long before the thresholds. 1 s to 1 min."""

    heartbeat_retention_hours: int | None = 24
    """Age at which heartbeat rows are pruned; None keeps them. 1 h to 100 years, as all three."""

    worker_state_retention_hours: int | None = 168
    """Age at which worker snapshots are pruned; None keeps them."""

    terminal_record_retention_hours: int | None = 720
    """Age, counted from the end, at which finished tasks and workflows are pruned; None keeps them."""

    def __post_init__(self) -> None:
        checks = Checks("RecoveryConfig")
        checks.boolean("auto_requeue_stale_claimed", self.auto_requeue_stale_claimed)
        checks.boolean("auto_fail_stale_running", self.auto_fail_stale_running)

        def in_ms(field: str, low: int, high: int) -> bool:
            return checks.integer(field, getattr(self, field), low, high, unit="ms")

        runner_ok = in_ms("runner_heartbeat_interval_ms", _SECOND, 2 * _MINUTE)
        claimer_ok = in_ms("claimer_heartbeat_interval_ms", _SECOND, 2 * _MINUTE)
        in_ms("check_interval_ms", _SECOND, 10 * _MINUTE)
        in_ms("worker_state_interval_ms", _SECOND, _MINUTE)
        in_ms("retired_task_grace_ms", 0, 30 * 24 * _HOUR)
        in_ms("crashed_worker_recovery_grace_ms", 0, 7 * 24 * _HOUR)
        # A threshold is compared with its heartbeat only when both make sense alone: two complaints
        # about one typo would hide which of the two values is wrong.
        if in_ms("claimed_stale_threshold_ms", _SECOND, _HOUR) and claimer_ok:
            self._twice(checks, "claimed_stale_threshold_ms", "claimer_heartbeat_interval_ms")
        for field in ("running_stale_threshold_ms", "finalizing_stale_threshold_ms"):
            if in_ms(field, _SECOND, 2 * _HOUR) and runner_ok:
                self._twice(checks, field, "runner_heartbeat_interval_ms")

        for field in ("heartbeat_retention_hours", "worker_state_retention_hours", "terminal_record_retention_hours"):
            checks.integer(field, getattr(self, field), 1, _CENTURY_HOURS, optional=True, unit="hours")
        checks.finish()

    def _twice(self, checks: Checks, threshold: str, heartbeat: str) -> None:
        given: int = getattr(self, threshold)
        beat: int = getattr(self, heartbeat)
        if given < 2 * beat:
            checks.add(
                threshold,
                f"{given:_} ms is less than twice {heartbeat} ({beat:_} ms):"
                " one late heartbeat would condemn a live task",
                f"raise it to {2 * beat:_} or more, or lower {heartbeat} to {given // 2:_} or less",
            )
