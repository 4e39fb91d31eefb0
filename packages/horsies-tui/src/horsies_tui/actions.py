"""The table of actions, which footer, help, palette and confirmation read. This module does not import Textual."""

from dataclasses import dataclass
from typing import Final

from horsies._text import plural


@dataclass(frozen=True, slots=True)
class Action:
    """An action that changes rows."""

    id: str
    key: str
    label: str
    """The label in the footer."""
    noun: str
    """The kind of its targets, in the singular."""
    verb: str
    """The verb of the confirmation: `Cancel 3 tasks?`"""
    done: str
    """The participle of the report: `3 tasks cancelled`."""
    means: str
    """The consequences, for the confirmation."""
    right: str
    """The field of `Rights` that it needs."""
    screens: frozenset[str]
    states: frozenset[str]
    """The states of the targets that it applies to."""
    is_shown: bool = True
    """Whether the footer shows its key; help and palette always do."""
    asked: str = ""
    """The report when a worker or a scheduler carries it out: `the worker was asked`."""
    takes: str = ""
    """What it applies to, in words; empty: the names of the states."""

    def question(self, count: int) -> str:
        return f"{self.verb} {plural(count, self.noun)}?"

    def report(self, count: int) -> str:
        return f"{plural(count, self.noun)} {self.done}"


_TASK_SCREENS: Final = frozenset({"tasks", "task", "worker"})
_SCHEDULE_SCREENS: Final = frozenset({"schedules", "schedule"})
_SCHEDULES: Final = frozenset({"active", "paused", "data active", "data paused"})
_RUN_SCREENS: Final = frozenset({"workflows", "workflow"})

ACTIONS: Final = (
    Action(
        "cancel", "c", "Cancel", "task", "Cancel", "cancelled",
        "What waits never runs. What runs is asked to stop; its worker stops it.",
        "may_cancel", _TASK_SCREENS | {"stale"}, frozenset({"PENDING", "CLAIMED", "RUNNING"}),
        asked="asked to stop",
    ),
    Action(
        "retry", "R", "Retry", "task", "Retry", "sent back to the queue",
        "The same task runs again under its id, at once. Its history stays.",
        "may_retry", _TASK_SCREENS, frozenset({"FAILED", "CANCELLED", "EXPIRED"}),
    ),
    Action(
        "purge", "X", "Purge", "task", "Purge", "deleted",
        "The rows of these ended tasks and of their attempts are deleted; waiters see that there is no such task.",
        "may_purge", _TASK_SCREENS, frozenset({"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"}),
        is_shown=False,
    ),
    Action(
        "requeue_stale", "Q", "Requeue", "stale task", "Requeue", "sent back to the queue",
        "Claimed tasks go back to their queue. Safe: their code has not run.",
        "may_requeue", frozenset({"stale"}), frozenset({"CLAIMED"}),
    ),
    Action(
        "fail_stale", "F", "Fail", "stale task", "Fail", "failed",
        "Running tasks without a sign of life end FAILED, WORKER_CRASHED. They are not retried by this.",
        "may_fail", frozenset({"stale"}), frozenset({"RUNNING"}),
    ),
    Action(
        "pause_queue", "P", "Pause/resume", "queue", "Pause or resume", "switched",
        "A paused queue is not claimed from; what runs goes on. A paused one is resumed.",
        "may_pause_queue", frozenset({"overview"}), frozenset({"open", "paused"}),
    ),
    Action(
        "set_policy", "S", "Set limits", "policy", "Override", "overridden",
        "It holds from the next claim on, in every worker, until it is unset; what runs goes on.",
        "may_set_policy", frozenset({"queue"}), frozenset({"declared", "overridden"}),
    ),
    Action(
        "unset_policy", "U", "Unset limits", "override", "Take back", "taken back",
        "What the app declares holds again, from the next claim on.",
        "may_set_policy", frozenset({"queue"}), frozenset({"overridden"}),
    ),
    Action(
        "pause_workflow", "P", "Pause/resume", "workflow", "Pause or resume", "switched",
        "Of a paused one nothing new starts; what runs goes on. A paused one is resumed.",
        "may_pause_workflow", _RUN_SCREENS, frozenset({"RUNNING", "PAUSED"}),
    ),
    Action(
        "cancel_workflow", "c", "Cancel", "workflow", "Cancel", "cancelled",
        "What has not started never will, what runs is asked to stop, workflows inside included.",
        "may_pause_workflow", _RUN_SCREENS, frozenset({"PENDING", "RUNNING", "PAUSED"}),
    ),
    Action(
        "retry_workflow", "R", "Retry", "workflow", "Retry", "set going again",
        "What failed, and what was skipped for it, runs again. Completed nodes keep their results.",
        "may_pause_workflow", _RUN_SCREENS, frozenset({"FAILED", "CANCELLED"}),
    ),
    Action(
        "retry_node", "N", "Retry node", "node", "Retry", "set going again",
        "This node, and what was skipped for it, runs again. Completed nodes keep their results.",
        "may_pause_workflow", frozenset({"workflow"}), frozenset({"FAILED", "SKIPPED", "PAUSED"}),
    ),
    Action(
        "signal", "s", "Signal", "signal", "Send", "delivered",
        "A node that waits for this name gets the value; without one, it is kept for the next that will.",
        "may_signal", frozenset({"workflow"}), frozenset({"PENDING", "RUNNING", "PAUSED"}),
    ),
    Action(
        "drain_worker", "D", "Drain/resume", "worker", "Drain or resume", "switched",
        "A drained worker finishes what runs, claims nothing more and stays alive. A drained one claims again.",
        "may_control_worker", frozenset({"workers"}), frozenset({"alive", "late", "draining", "drained"}),
        asked="asked; it acts with its next heartbeat",
    ),
    Action(
        "grow_worker", "plus", "One child more", "worker", "Add a child process to", "grown",
        "One more child process starts at once, until the worker restarts.",
        "may_control_worker", frozenset({"workers"}), frozenset({"alive", "late", "draining", "drained"}),
        asked="asked to start one more child",
    ),
    Action(
        "shrink_worker", "minus", "One child fewer", "worker", "Take a child process from", "shrunk",
        "One child process leaves when it has no task, until the worker restarts. Nothing is interrupted.",
        "may_control_worker", frozenset({"workers"}), frozenset({"alive", "late", "draining", "drained"}),
        asked="asked to let one child leave",
    ),
    Action(
        "run_schedule", "n", "Run now", "schedule", "Run", "run",
        "One run beside its slots, made by the next scheduler that looks. A paused one runs too.",
        "may_run_schedule", _SCHEDULE_SCREENS, _SCHEDULES,
        asked="asked to run",
    ),
    Action(
        "pause_schedule", "P", "Pause/resume", "schedule", "Pause or resume", "switched",
        "The slots of a paused schedule pass without a run. A paused one is resumed.",
        "may_run_schedule", _SCHEDULE_SCREENS, _SCHEDULES,
    ),
    Action(
        "remove_schedule", "D", "Remove", "schedule", "Remove", "removed",
        "It has no further run, and its history is deleted. One in code of the same name keeps the history, and runs "
        "again unless it is paused.",
        "may_remove_schedule", _SCHEDULE_SCREENS, frozenset({"data active", "data paused"}),
        takes="schedules that were made at run time",
    ),
)  # fmt: skip

BY_ID: Final = {action.id: action for action in ACTIONS}
TYPE_ABOVE: Final = 20
"""For more rows than this, the operator has to type their number."""


def for_screen(name: str) -> list[Action]:
    return [action for action in ACTIONS if name in action.screens]
