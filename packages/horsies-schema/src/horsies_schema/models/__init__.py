"""SQLAlchemy models of every horsies table, for people who query them.

The migrations own the database; these models describe it. A test creates one database from each and
demands that they are equal, down to the text of every CHECK and partial index, so a difference is a
failing test, not a surprise. `create_all()` is not a way to install horsies: it makes no triggers and functions.
"""

from horsies_schema.models.base import Base
from horsies_schema.models.queues import QueueState, RateLimit, SharedLimit, UniqueKey
from horsies_schema.models.schedules import Schedule, SchedulerInstance, ScheduleRun, ScheduleState
from horsies_schema.models.tasks import Heartbeat, Task, TaskAttempt, TaskName, TaskSet
from horsies_schema.models.workers import WorkerInstance, WorkerState
from horsies_schema.models.workflows import Workflow, WorkflowSignal, WorkflowTask

__all__ = [
    "Base",
    "Heartbeat",
    "QueueState",
    "RateLimit",
    "Schedule",
    "ScheduleRun",
    "ScheduleState",
    "SchedulerInstance",
    "SharedLimit",
    "Task",
    "TaskAttempt",
    "TaskName",
    "TaskSet",
    "UniqueKey",
    "WorkerInstance",
    "WorkerState",
    "Workflow",
    "WorkflowSignal",
    "WorkflowTask",
]
