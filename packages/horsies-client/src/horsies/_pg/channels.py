"""The names of the notification channels. A notification is only a hint to read the tables."""

from typing import Final

TASK_NEW: Final = "task_new"
"""Tasks became claimable, in any queue; the payload is one of their ids."""
TASK_DONE: Final = "task_done"
"""The task with this id reached a terminal state."""
TASK_CANCEL: Final = "task_cancel"
"""The worker that runs the task with this id is asked to stop it."""
QUEUE_STATE: Final = "queue_state"
"""The queue with this name was paused or resumed."""
SCHEDULE_STATE: Final = "schedule_state"
"""The schedule with this name was paused, resumed or asked to run."""
WORKFLOW_DONE: Final = "workflow_done"
"""The workflow with this id reached a terminal state."""
WORKFLOW_STEP: Final = "workflow_step"
"""A worker should advance a workflow: `w:` and its id, or `t:` and the id of one of its tasks that ended elsewhere."""


def task_queue(queue_name: str) -> str:
    """Tasks became claimable in this queue. Drivers quote the name, which may hold upper case, dots and dashes."""
    return f"task_queue_{queue_name}"
