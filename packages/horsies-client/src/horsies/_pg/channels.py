"""The names of the notification channels. A notification is only a hint to read the tables."""

from typing import Final

TASK_NEW: Final = "task_new"
"""Tasks became claimable, in any queue; the payload is one of their ids."""
TASK_GROUPED: Final = "task_grouped"
"""Tasks with a group became claimable; the payload is their queue, and behind a space their group if it is one group.
`task_new` and `task_queue_<name>` tell of tasks without a group."""
TASK_DONE: Final = "task_done"
"""The task with this id reached a terminal state. The owner of the database can switch this channel off."""
TASKS_ENDED: Final = "tasks_ended"
"""While `task_done` is switched off, once per transaction: tasks of the worker with this id ended; empty if none had
claimed them."""
TASK_CANCEL: Final = "task_cancel"
"""The worker that runs the task with this id is asked to stop it."""
QUEUE_STATE: Final = "queue_state"
"""The queue with this name was paused or resumed, or its policy or a limit that it shares was changed."""
WORKER_CONTROL: Final = "worker_control"
"""An operator wants the worker with this id to drain, to resume, or to have another number of children."""
SCHEDULE_STATE: Final = "schedule_state"
"""The schedule with this name was paused, resumed or asked to run; empty: schedules were made, changed or deleted."""
WORKFLOW_DONE: Final = "workflow_done"
"""The workflow with this id reached a terminal state. It is switched off with `task_done`."""
WORKFLOWS_ENDED: Final = "workflows_ended"
"""While `workflow_done` is switched off, once per transaction: workflows ended; no payload."""
WORKFLOW_STEP: Final = "workflow_step"
"""A worker should advance a workflow: `w:` and its id, or `t:` and the id of one of its tasks that ended elsewhere."""


def task_queue(queue_name: str) -> str:
    """Tasks became claimable in this queue. Drivers quote the name, which may hold upper case, dots and dashes."""
    return f"task_queue_{queue_name}"


def task_done(task_id: str) -> str:
    """The task with this id, or another one of its bucket, reached a terminal state; the payload is its id.

    The bucket is the last two characters of the id. `horsies.ids` gives all ids of a process the same ones; ids of
    another origin, also those that are no UUIDs, end in any characters. The trigger names the channel by the same rule.
    """
    return f"task_done_{task_id[-2:]}"


def workflow_done(workflow_id: str) -> str:
    """The workflow with this id, or another one of its bucket, reached a terminal state; the payload is its id."""
    return f"workflow_done_{workflow_id[-2:]}"
