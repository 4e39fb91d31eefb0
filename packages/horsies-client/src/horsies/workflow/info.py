"""What operators see of a run and of its nodes: plain frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import TYPE_CHECKING, Any, ClassVar, Self

from horsies._hints import NODE_INFO, missing
from horsies._pg.rows import FromRow
from horsies.metadata import decode
from horsies.result import TaskError, TaskResult
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.summary import SubWorkflowSummary, summary_of


def _metadata(text: str) -> dict[str, Any]:
    return dict(decode(text))  # a dict, which can be copied and pickled with the rest


@dataclass(frozen=True, slots=True)
class WorkflowInfo(FromRow):
    """One row of `horsies_workflows`, without result and error. Times are the database's."""

    CONVERTED: ClassVar = {"status": WorkflowStatus, "ends_as": WorkflowStatus, "metadata": _metadata}

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
    deadline: datetime | None
    """When the run is stopped and fails."""
    start_at: datetime | None
    """When it starts, if it was to start later."""
    priority: int | None
    """Of its tasks that have none of their own."""
    release: str | None
    """`AppConfig.release` of the process that started it."""
    ends_as: WorkflowStatus | None
    """While the run undoes what it did: how it will end."""
    continues: int
    """How often a task has continued it with another graph."""
    metadata: Mapping[str, Any] | None
    """Empty when it has none; None in a list of runs, and when this role may not read it."""


@dataclass(frozen=True, slots=True)
class WorkflowNodeInfo(FromRow):
    """One node of a run."""

    CONVERTED: ClassVar = {"status": NodeStatus, "sub_workflow_status": WorkflowStatus}

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
    """The state of the workflow in this node, if that has started."""
    kind: str = "task"
    """task, workflow, map, signal or sleep."""
    wake_at: datetime | None = None
    """While it waits: when a sleep is over, or when the wait for a signal times out."""
    signal_name: str | None = None
    when_index: int | None = None
    """The node whose value decides whether this one is taken."""
    when_value: bool | None = None
    """The value with which it is taken."""
    skip_reason: str | None = None
    """Of a skipped node: upstream, not_taken, cancelled or deadline."""
    is_compensation: bool = False
    """It undoes what another node did."""

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, NODE_INFO, "node")


@dataclass(frozen=True, slots=True)
class WorkflowNodeResult(WorkflowNodeInfo):
    """One node of a run with its result: `handle.tasks(include_results=True)`."""

    result: TaskResult[Any, TaskError] | None = None
    """None until the node has ended."""
    sub_workflow_summary: SubWorkflowSummary[Any] | None = None
    """How the nodes of the workflow in this node have ended so far; None if there is none, or it has not started."""

    @classmethod
    def of(
        cls,
        node: WorkflowNodeInfo,
        result: TaskResult[Any, TaskError] | None,
        counts: Mapping[str, Any] | None,
    ) -> Self:
        known = {each.name: getattr(node, each.name) for each in fields(node)}
        return cls(**known, result=result, sub_workflow_summary=None if counts is None else summary_of(counts, result))


@dataclass(frozen=True, slots=True)
class WaitingNode(FromRow):
    """A node that waits for a signal."""

    workflow_id: str
    """The run to which the signal is sent."""
    root_workflow_id: str
    """The outermost run; the same if the node is not in a workflow inside another."""
    workflow_name: str
    node_id: str
    signal_name: str
    started_at: datetime
    """Since when it waits."""
    wake_at: datetime | None
    """When it times out."""


@dataclass(frozen=True, slots=True)
class PausedRun:
    """A paused run, or a paused workflow inside a run."""

    id: str
    name: str
    path: tuple[str, ...]
    """The nodes that lead to it from the outer run; empty for that run itself."""
    failed: tuple[tuple[str, str | None], ...]
    """Its first failed nodes, each with its task's error code; empty when it was paused by request."""
    is_paused_along: bool | None = False
    """Paused only because the run around it is, with which it is resumed. None: this role may not read the reason."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any], *, is_paused_along: bool | None) -> Self:
        failed = tuple(zip(row["failed"], row["codes"], strict=True))
        return cls(row["id"], row["name"], tuple(row["path"]), failed, is_paused_along)

    def __str__(self) -> str:
        where = f"the workflow in {'/'.join(self.path)} ({self.id})" if self.path else "this run"
        along = "along with the run around it"
        if self.is_paused_along:
            return f"{where} is paused {along}"
        why = ", ".join(f"{node} failed" + (f" ({code})" if code else "") for node, code in self.failed)
        request = "by request" if self.is_paused_along is False else f"by request, or {along}"
        return f"{where} is paused: {why or request}"
