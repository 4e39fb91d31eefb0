"""What the database knows of a run and of its nodes: plain frozen values for people and tools."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, Self

from horsies.status import NodeStatus, WorkflowStatus


def _columns(cls: type[Any], row: Mapping[str, Any], states: Callable[[str], StrEnum]) -> dict[str, Any]:
    """By name; an extra column is no error, a newer schema may have more."""
    return {field.name: row[field.name] for field in fields(cls)} | {"status": states(row["status"])}


@dataclass(frozen=True, slots=True)
class WorkflowInfo:
    """One row of `horsies_workflows`, without result and error. Times are the database's."""

    id: str
    name: str
    status: WorkflowStatus
    on_error: str
    definition_key: str | None
    parent_workflow_id: str | None
    depth: int
    nodes_left: int
    sent_at: datetime
    created_at: datetime
    started_at: datetime | None
    completed_at: datetime | None
    updated_at: datetime

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(**_columns(cls, row, WorkflowStatus))


@dataclass(frozen=True, slots=True)
class WorkflowNodeInfo:
    """One node of a run."""

    task_index: int
    node_id: str
    task_name: str
    dependencies: list[int]
    join_type: str
    is_subworkflow: bool
    sub_workflow_id: str | None
    task_id: str | None
    status: NodeStatus
    started_at: datetime | None
    completed_at: datetime | None
    sub_workflow_status: WorkflowStatus | None = None
    """Of the workflow in this node, if it has begun."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        values = _columns(cls, row, NodeStatus)
        if values["sub_workflow_status"] is not None:
            values["sub_workflow_status"] = WorkflowStatus(values["sub_workflow_status"])
        return cls(**values)


@dataclass(frozen=True, slots=True)
class PausedRun:
    """A run that is paused, or a workflow inside it that is."""

    id: str
    name: str
    path: tuple[str, ...]
    """The nodes that lead to it from the run that was asked about; empty for that run itself."""
    failed: tuple[tuple[str, str | None], ...]
    """Its first failed nodes, each with its task's error code. None of them: it was paused by request."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        failed = tuple(zip(row["failed"], row["codes"], strict=True))
        return cls(row["id"], row["name"], tuple(row["path"]), failed)

    def __str__(self) -> str:
        where = f"the workflow in {'/'.join(self.path)} ({self.id})" if self.path else "this run"
        why = ", ".join(f"{node} failed" + (f" ({code})" if code else "") for node, code in self.failed)
        return f"{where} is paused: {why or 'by request'}"
