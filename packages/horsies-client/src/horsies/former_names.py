"""Names of the original horsies (0.x) whose meaning is the same here under another name, for code that moves."""

from typing import Any

from horsies.errors import BuiltInCode as BuiltInTaskCode
from horsies.schedule import Pattern as SchedulePattern
from horsies.status import (
    NODE_TERMINAL_STATES as WORKFLOW_TASK_TERMINAL_STATES,
    AttemptOutcome as TaskAttemptOutcome,
    NodeStatus as WorkflowTaskStatus,
)
from horsies.workflow.graph import WorkflowDefinitionError as WorkflowValidationError
from horsies.workflow.nodes import Node

AnyNode = Node[Any]

__all__ = [
    "WORKFLOW_TASK_TERMINAL_STATES", "AnyNode", "BuiltInTaskCode", "SchedulePattern", "TaskAttemptOutcome",
    "WorkflowTaskStatus", "WorkflowValidationError",
]  # fmt: skip
