"""The settings of the fleet, and the bounds that follow from them."""

from collections.abc import Mapping
from typing import Any, Final

STALE_S: Final = 4.0
"""Silence after which a task counts as lost. Heartbeats come every second; a process of a busy machine may be late."""
CHECK_S: Final = 1.0
GRACE_S: Final = 1.0
BOUND_S: Final = STALE_S + CHECK_S + 5.0
"""Every recovery must be visible within this time."""
FREEZE_S: Final = 2 * STALE_S
"""How long a worker is frozen or cut off: long enough that the others take its tasks."""

RECOVERY: Final[Mapping[str, int]] = {
    "runner_heartbeat_interval_ms": 1_000,
    "claimer_heartbeat_interval_ms": 1_000,
    "running_stale_threshold_ms": int(STALE_S * 1000),
    "claimed_stale_threshold_ms": int(STALE_S * 1000),
    "finalizing_stale_threshold_ms": int(STALE_S * 1000),
    "check_interval_ms": int(CHECK_S * 1000),
    "crashed_worker_recovery_grace_ms": int(GRACE_S * 1000),
    "worker_state_interval_ms": 1_000,
}
RESILIENCE: Final[Mapping[str, Any]] = {
    "notify_poll_interval_ms": 1_000, "reconnect_initial_ms": 20, "reconnect_max_ms": 500,
}  # fmt: skip

WORKERS: Final = 3
PROCESSES: Final = 2
SCHEDULERS: Final = 2
PRODUCERS: Final = 2
SENDS_PER_SECOND: Final = 12.0
"""Of all producers together: less than the fleet can run, so that what it completes says whether it works."""
WORKFLOW_EVERY_S: Final = 2.0

CLUSTER_CAP: Final = 5
QUEUE_CAPS: Final[Mapping[str, int]] = {"capped": 2}
GROUP_CAP: Final = 1
RATE: Final = (10, 1.0)
"""Starts of the queue `rated` in any window of so many seconds."""

SCHEDULES: Final[Mapping[str, int]] = {"code-2s": 2, "code-5s": 5}
STORED_SCHEDULES: Final[Mapping[str, int]] = {"stored-2s": 2, "stored-5s": 5}
ASYNC_TASKS: Final = ("nap",)

SECRET: Final = "hunter2-planted"
"""The password in every URL, and an argument of some tasks: no log may have it."""
MARK: Final = "HORSIES_SOAK_RUN"
"""An environment variable of all processes of a run, so that orphans are found."""
