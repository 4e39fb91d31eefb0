"""What those parts of the schema are for that the models do not describe: indexes, functions, triggers, views, and the
table of versions. `docs/reference/schema.md` shows them, and a test compares them with a migrated database."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Routine:
    """A function or a procedure."""

    meaning: str
    called_by: str
    is_contract: bool = False
    """Whether programs of users may rely on its name, its parameters and its answer."""


VERSIONS: Final = {
    "": "The revision of this schema, written by migrations alone.",
    "version_num": "The revision that the database is at.",
    "breaking": "The newest revision that older code cannot work with; NULL: there is none.",
}
"""The table `horsies_alembic_version`, and its columns."""

INDEXES: Final = {
    "ix_horsies_tasks_claim": "The order in which a claim takes tasks without a group: one descent per queue and "
    "priority. It holds waiting tasks alone, so that finished ones cost a claim nothing.",
    "ix_horsies_tasks_grouped": "The same for tasks with a group: one descent per group.",
    "ix_horsies_tasks_grouped_age": "The oldest waiting task of a queue whose tasks have groups.",
    "ix_horsies_tasks_grouped_in_flight": "Counts the tasks of a group that are in flight.",
    "ix_horsies_tasks_withdrawn": "Finds the tasks that a pause withdrew, when it ends.",
    "ix_horsies_tasks_in_flight": "Counts tasks in flight for limits; the reaper and heartbeats read it.",
    "ix_horsies_tasks_good_until": "Finds waiting tasks that have expired.",
    "ix_horsies_tasks_next_retry_at": "Finds tasks that wait for a retry.",
    "ix_horsies_tasks_terminal_at": "Ended tasks by their end: retention, and lists of what ended last.",
    "ix_horsies_tasks_kept": "Ended tasks with a lifetime of their own, for the pruner.",
    "ix_horsies_tasks_unsuccessful": "Failed, cancelled and expired tasks, the newest of each first: lists of them "
    "pass over no successes.",
    "ix_horsies_tasks_error_code": "Tasks by error code, the newest of each first.",
    "uq_horsies_tasks_unique_key": "At most one live task of a name has a key.",
    "ix_horsies_task_attempts_error_code": "Finds attempts by how they ended.",
    "ix_horsies_task_attempts_finished_at": "The last attempts, for figures of the recent past.",
    "uq_horsies_task_attempts_task_id_attempt": "Each attempt of a task is written once.",
    "ix_horsies_heartbeats_task": "The last heartbeat of a task.",
    "ix_horsies_task_names_missing": "The names that tasks wait for in vain.",
    "ix_horsies_worker_states_worker": "The last snapshot of a worker.",
    "ix_horsies_worker_instances_open": "Workers that neither left nor were recovered: those to watch.",
    "ix_horsies_unique_keys_until": "Finds keys that are free again, for the pruner.",
    "ix_horsies_unique_keys_task_id": "Finds the key of a task.",
    "ix_horsies_schedule_state_due": "Schedules made at run time, by their next slot: those not due cost nothing.",
    "ix_horsies_schedule_state_unplanned": "Schedules made at run time that a scheduler is to plan.",
    "ix_horsies_schedule_state_requested": "Schedules made at run time that an operator wants to run now.",
    "ix_horsies_workflows_live": "Runs that have not ended.",
    "ix_horsies_workflows_completed_at": "Ended runs by their end: retention, and lists.",
    "ix_horsies_workflows_parent_workflow_id": "The runs inside a run.",
    "ix_horsies_workflows_wake_at": "The earliest clock of all runs.",
    "ix_horsies_workflows_finishing": "Runs without open nodes that were not ended, for recovery.",
    "ix_horsies_workflows_unsettled": "Ends that the run around has not taken note of, for recovery.",
    "uq_horsies_workflows_unique_key": "At most one live run has a key.",
    "uq_horsies_workflow_tasks_workflow_id_task_index": "A number stands for one node of a run.",
    "uq_horsies_workflow_tasks_workflow_id_node_id": "A name stands for one node of a run.",
    "uq_horsies_workflow_tasks_task_id": "No task has two nodes; finds the node of a task.",
    "ix_horsies_workflow_tasks_sub_workflow_id": "Finds the node of a run inside.",
    "ix_horsies_workflow_tasks_live": "The nodes of a run that are under way.",
    "ix_horsies_workflow_tasks_open": "Nodes that are to be enqueued or settled, for recovery.",
    "ix_horsies_workflow_tasks_waiting": "The nodes of a run that wait.",
    "ix_horsies_workflow_tasks_signal": "The nodes that wait for a signal, the longest wait first.",
    "ix_horsies_workflow_tasks_compensate": "The nodes of a run that can be undone.",
    "uq_horsies_workflow_tasks_compensates": "A node is undone once.",
    "ix_horsies_workflow_signals_name": "The signals of a run with a name, the oldest first.",
    "ix_horsies_workflow_signals_new": "Signals that no step of their run has looked at, for recovery.",
    "uq_horsies_workflow_signals_consumed_by": "A node is given one signal.",
}
"""Every index but those of primary keys."""

_CLIENT: Final = "the client"
_WORKER: Final = "workers"

ROUTINES: Final = {
    "horsies_send": Routine(
        "Sends a task in the transaction of the caller, and returns its id.",
        "your SQL: triggers, psql, programs in other languages", is_contract=True,
    ),
    "horsies_signal": Routine(
        "Sends a signal to a run in the transaction of the caller, and returns a word: DELIVERED, REPEATED, or why "
        "nothing was stored.",
        "your SQL, and the client", is_contract=True,
    ),
    "horsies_set_public_done": Routine(
        "Switches the channels `task_done` and `workflow_done` off or on, for every session.",
        "the owner of the tables", is_contract=True,
    ),
    "horsies_send_task": Routine("Inserts one task, commits, and then notifies in a second transaction.", _CLIENT),
    "horsies_send_tasks": Routine("The same for many calls of one task.", _CLIENT),
    "horsies_send_calls": Routine(
        "Inserts tasks with options of their own, all or none; returns those whose unique key is taken.",
        f"{_CLIENT}, and `horsies_send`",
    ),
    "horsies_send_unique": Routine(
        'Inserts a task with `unique_for`, `debounce` or `on_conflict="replace"`, or changes the holder of its key.',
        _CLIENT,
    ),
    "horsies_moment_problem": Routine("Why a JSON value is no moment; NULL when it is one.", "`horsies_send`"),
    "horsies_notify_sent": Routine(
        "Notifies of a new task, unless the workers of its queue are busy claiming.", f"{_CLIENT}, after a send"
    ),
    "horsies_notify_groups_sent": Routine("The same for tasks with groups.", f"{_CLIENT}, after a send"),
    "horsies_start_workflow": Routine("Writes a run with its nodes, and enqueues those that are ready.", _CLIENT),
    "horsies_cancel_tasks": Routine(
        "Ends waiting tasks as CANCELLED, and asks the workers of running ones to stop them.", _CLIENT
    ),
    "horsies_cancel_workflow": Routine("Ends a run as CANCELLED, with the runs inside it.", _CLIENT),
    "horsies_stop_workflows": Routine(
        "Ends a run before its nodes have ended, and those inside it; or lets it undo first what it did.",
        f"{_WORKER}, and `horsies_cancel_workflow`",
    ),
    "horsies_forget_compensations": Routine(
        "Makes the nodes run again that a run has undone, for its retry.", _CLIENT
    ),
    "horsies_purge_tasks": Routine("Deletes ended tasks, and none that live.", "operators, through the client"),
    "horsies_complete_task": Routine(
        "Ends a running attempt as COMPLETED in the transaction of its caller; a token proves that it is that attempt.",
        "`current_task().complete()`, on the task's own connection",
    ),
    "horsies_claim_grouped": Routine(
        "Claims tasks with a group, and all tasks of queues that share a limit, within limits and in turns.", _WORKER
    ),
    "horsies_rate_room": Routine("How many tokens a rate has, and when the next comes.", "claims, and lists of limits"),
    "horsies_policy_is_sound": Routine("Whether a JSON value is a policy of a queue or limit.", "CHECK constraints"),
    "horsies_is_count": Routine("Whether a JSON value is a number from 1 to 1,000,000.", "`horsies_policy_is_sound`"),
    "horsies_task_is_sound": Routine(
        "Whether a row of `horsies_tasks` is legal; an error names the rule that it breaks.", "a CHECK constraint"
    ),
    "horsies_wait_for_duty": Routine(
        "Blocks a worker until it is its turn to listen, a task is late, or its patience ends.", _WORKER
    ),
    "horsies_leave_duty": Routine("Gives the turn to listen to another worker.", _WORKER),
    "horsies_has_late_task": Routine(
        "Whether a task has waited longer than the worker on duty should take to claim it.", "`horsies_wait_for_duty`"
    ),
    "horsies_fall_asleep": Routine(
        "Marks the queues as served by a worker that waits for notifications.", "`horsies_wait_for_duty`"
    ),
    "horsies_set_awake": Routine(
        "Marks the queues as served by a worker that claims again and again, or no longer.", _WORKER
    ),
    "horsies_notify_task_changes": Routine("Announces new and ended tasks.", "triggers of `horsies_tasks`"),
    "horsies_notify_workflow_changes": Routine("Announces ended runs.", "a trigger of `horsies_workflows`"),
    "horsies_schedule_changed": Routine(
        "Keeps the state of a schedule in step with its row, counts its version up, and notifies schedulers.",
        "triggers of `horsies_schedules`",
    ),
}  # fmt: skip

TRIGGERS: Final = {
    "horsies_task_notify_trigger": "Announces new tasks, once per statement and queue, unless the session has set "
    "`horsies.notify` to `off`.",
    "horsies_task_notify_update_trigger": "Announces tasks that ended, or that became claimable again.",
    "horsies_workflow_notify_trigger": "Announces runs that ended.",
    "horsies_schedule_version_trigger": "Counts the version of a schedule up, and notes since when its timing holds.",
    "horsies_schedule_state_trigger": "Makes, resets or deletes the state of a schedule.",
    "horsies_schedule_notify_trigger": "Tells schedulers that schedules were made, changed or deleted.",
}

VIEWS: Final[dict[str, str]] = {}
"""By the name of a view: its meaning. The columns are described by comments in the database."""
