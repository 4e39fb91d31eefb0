"""`SubWorkflowSummary`: how the nodes of a workflow inside another one ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from horsies.result import TaskError, TaskResult
from horsies.status import WorkflowStatus

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True)
class SubWorkflowSummary(Generic[T_co]):
    """The end of the workflow in a node. A map counts its items. Nodes that undo others are not counted."""

    status: WorkflowStatus
    output: T_co | None
    """The value of its output; None when it failed, or has none."""
    total_tasks: int
    completed_tasks: int
    failed_tasks: int
    skipped_tasks: int
    error_summary: str | None = None
    """The code and the message of its error."""


def summary_of(counts: Mapping[str, Any], result: TaskResult[T, TaskError] | None) -> SubWorkflowSummary[T]:
    """The summary of a run with these counts, in a node with this result."""
    error = None if result is None else result.err
    told = None if error is None else f"{error.error_code}: {error.message}" if error.message else str(error.error_code)
    return SubWorkflowSummary(
        WorkflowStatus(counts["status"]),
        None if result is None else result.ok,
        counts["total"],
        counts["completed"],
        counts["failed"],
        counts["skipped"],
        told,
    )
