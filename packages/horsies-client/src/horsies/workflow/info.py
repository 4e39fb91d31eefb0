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

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(**_columns(cls, row, NodeStatus))
