"""`RecoveryConfig`: after which silence a task or worker counts as lost, and how long rows are kept.

A heartbeat may be late by one interval on a healthy machine (a busy event loop, one slow commit), so every threshold is
at least twice its heartbeat interval: one lost heartbeat never fails a task.
"""

from dataclasses import dataclass

from horsies._checks import Checks
from horsies._hints import known_settings

_SECOND = 1_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_CENTURY_HOURS = 876_000


@known_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """Thresholds and intervals in milliseconds, retention in hours."""

    auto_requeue_stale_claimed: bool = True
    """Return stale CLAIMED tasks to PENDING. Always safe, because user code has not run."""

    claimed_stale_threshold_ms: int = 120_000
    """Time without a heartbeat after which a CLAIMED task is stale. 2 s to 1 h, at least 2x its interval."""

    auto_fail_stale_running: bool = True
    """Fail stale RUNNING tasks with WORKER_CRASHED, or retry them if their policy lists that code."""

    running_stale_threshold_ms: int = 300_000
    """Time without a heartbeat, not running time, after which a RUNNING task is stale. 2 s to 2 h, at least 2x its
    interval."""

    finalizing_stale_threshold_ms: int = 300_000
    """How long a finished task's result may wait to be written. 2 s to 2 h, at least 2x the runner heartbeat."""

    crashed_worker_recovery_grace_ms: int = 10_000
    """Delay before another worker completes a workflow step that a dead worker left unfinished. 0: a minute, and at
    once when a worker starts or is found dead."""

    retired_task_grace_ms: int = 86_400_000
    """How long a task waits whose name workers of its queue knew before and no live one knows, before it fails with
    WORKER_RESOLUTION_ERROR; counted from the later of the last time it was known and the time the task was ready. An
    app that was scaled to zero has this long to come back. 0 to 30 days."""

    check_interval_ms: int = 30_000
    """How often the reaper searches for stale tasks. 1 s to 10 min."""

    runner_heartbeat_interval_ms: int = 30_000
    """Heartbeat interval of RUNNING tasks. 1 s to 2 min."""

    claimer_heartbeat_interval_ms: int = 30_000
    """Heartbeat interval of CLAIMED tasks. 1 s to 2 min."""

    worker_state_interval_ms: int = 5_000
    """How often a worker writes its snapshot. A worker without a snapshot and a session for three intervals is dead,
    and its tasks are recovered then, long before the thresholds. 1 s to 1 min."""

    heartbeat_retention_hours: int | None = 24
    """Age at which heartbeat rows are pruned; None keeps them. 1 h to 100 years, as all three."""

    worker_state_retention_hours: int | None = 168
    """Age at which worker snapshots are pruned; None keeps them."""

    terminal_record_retention_hours: int | None = 720
    """Age, counted from the end, at which finished tasks and workflows are pruned; None keeps them. A task with
    `keep_for` has a time of its own."""

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
        for field, high, heartbeat, is_sound in (
            ("claimed_stale_threshold_ms", _HOUR, "claimer_heartbeat_interval_ms", claimer_ok),
            ("running_stale_threshold_ms", 2 * _HOUR, "runner_heartbeat_interval_ms", runner_ok),
            ("finalizing_stale_threshold_ms", 2 * _HOUR, "runner_heartbeat_interval_ms", runner_ok),
        ):
            # An invalid heartbeat is reported alone: two problems for one typo would hide which value is wrong.
            beat = getattr(self, heartbeat) if is_sound else _SECOND
            check_two_beats(
                checks,
                field,
                getattr(self, field),
                high,
                heartbeat,
                beat,
                "one late heartbeat would condemn a live task",
            )

        for field in ("heartbeat_retention_hours", "worker_state_retention_hours", "terminal_record_retention_hours"):
            checks.integer(field, getattr(self, field), 1, _CENTURY_HOURS, optional=True, unit="hours")
        checks.finish()


def check_two_beats(
    checks: Checks,
    field: str,
    value: object,
    high: int,
    heartbeat: str,
    beat: int,
    harm: str,
    *,
    optional: bool = False,
) -> None:
    """Check that a time limit has room for two heartbeats. The shortest heartbeat is 1 s, so that a limit of less than
    2 s has only one remedy."""
    if isinstance(value, int) and 2 * _SECOND <= value < 2 * beat:
        checks.add(
            field,
            f"{value:_} ms is less than twice {heartbeat} ({beat:_} ms): {harm}",
            f"raise it to {2 * beat:_} or more, or lower {heartbeat} to {value // 2:_} or less",
        )
    else:
        checks.integer(field, value, 2 * beat, high, optional=optional, unit="ms")
