"""`map_workflow`: one run of a workflow per item of a list."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar, overload

from horsies.result import TaskError, TaskResult
from horsies.workflow.graph import MapWorkflowNode, map_workflow_node
from horsies.workflow.nodes import MAX_WIDTH, Join, Node, listed
from horsies.workflow.spec import WorkflowSpec

Item = TypeVar("Item")
T = TypeVar("T")


@overload
def map_workflow(
    items_from: Node[Sequence[Item]],
    build: Callable[[Item], WorkflowSpec[T]],
    *,
    partial: Literal[False] = False,
    max_width: int = MAX_WIDTH,
    node_id: str | None = None,
    waits_for: Sequence[Node[Any]] = (),
    join: Join = "all",
    min_success: int | None = None,
    allow_failed_deps: bool = False,
    group: str | None = None,
    when: Node[bool] | None = None,
    unless: Node[bool] | None = None,
) -> MapWorkflowNode[list[T]]: ...
@overload
def map_workflow(
    items_from: Node[Sequence[Item]],
    build: Callable[[Item], WorkflowSpec[T]],
    *,
    partial: Literal[True],
    max_width: int = MAX_WIDTH,
    node_id: str | None = None,
    waits_for: Sequence[Node[Any]] = (),
    join: Join = "all",
    min_success: int | None = None,
    allow_failed_deps: bool = False,
    group: str | None = None,
    when: Node[bool] | None = None,
    unless: Node[bool] | None = None,
) -> MapWorkflowNode[list[TaskResult[T, TaskError]]]: ...
def map_workflow(
    items_from: Node[Any],
    build: Callable[[Any], WorkflowSpec[Any]],
    *,
    partial: bool = False,
    max_width: int = MAX_WIDTH,
    node_id: str | None = None,
    waits_for: Sequence[Node[Any]] = (),
    join: Join = "all",
    min_success: int | None = None,
    allow_failed_deps: bool = False,
    group: str | None = None,
    when: Node[bool] | None = None,
    unless: Node[bool] | None = None,
) -> MapWorkflowNode[Any]:
    """A node that runs a workflow for each item of the list that `items_from` returns, all in parallel.

    `build` is called once, while the workflow is defined, with a placeholder for the item that may be handed on to
    nodes: `map_workflow(orders, lambda order: Ship.build_with(order))`. The result is the list of the outputs, in the
    order of the items; the node fails if one of the runs fails. `partial`: it always completes, with a list of
    `TaskResult`s."""
    return map_workflow_node(
        items_from, build, partial=partial, max_width=max_width, node_id=node_id,
        waits_for=listed(waits_for) or waits_for, join=join, min_success=min_success,
        allow_failed_deps=allow_failed_deps, group=group, when=when, unless=unless,
    )  # fmt: skip
