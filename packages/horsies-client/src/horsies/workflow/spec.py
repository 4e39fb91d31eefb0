"""`WorkflowSpec`: a workflow that can be started, or be a node of another workflow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Final, TypeVar

from horsies._hints import WORKFLOW, known_options, missing
from horsies.workflow.graph import Graph, SubWorkflowNode
from horsies.workflow.nodes import listed

if TYPE_CHECKING:
    from horsies.result import Continued
    from horsies.workflow.handle import WorkflowHandle
    from horsies.workflow.nodes import Join, Node, Task
    from horsies.workflow.run_options import Moment
    from horsies.workflow.start import Start

T_co = TypeVar("T_co", covariant=True)
_ARGUMENTS: Final = "arguments belong to the nodes, or to build_with of a workflow class: Nightly.build(5).start()"


class WorkflowSpec(Graph[T_co]):
    """A workflow that can be started. Made by `app.workflow(...)` or a `WorkflowDefinition`."""

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, WORKFLOW, "workflow")

    def node(
        self,
        *,
        node_id: str | None = None,
        waits_for: Sequence[Node[Any]] = (),
        join: Join = "all",
        min_success: int | None = None,
        allow_failed_deps: bool = False,
        group: str | None = None,
        when: Node[bool] | None = None,
        unless: Node[bool] | None = None,
        compensate: Task[Concatenate[T_co, ...], Any] | None = None,
    ) -> SubWorkflowNode[T_co]:
        """This workflow as a node of another one. `group`: that of its nodes; None: that of the run around it.
        `compensate`: the task that undoes the whole workflow; without it, its nodes are undone one by one."""
        return SubWorkflowNode(self, node_id=node_id, waits_for=listed(waits_for) or waits_for, join=join,
                               min_success=min_success, allow_failed_deps=allow_failed_deps, group=group, when=when,
                               unless=unless, compensate=compensate)  # fmt: skip

    @known_options(_ARGUMENTS)
    def start(
        self,
        *,
        workflow_id: str | None = None,
        connection: Any = None,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        start_at: Moment | None = None,
        deadline: Moment | None = None,
    ) -> WorkflowHandle[T_co]:
        """Start a run. `workflow_id`: an id of your own, for a start that you may repeat: a UUID. `connection`: your
        own connection or session; the run exists if and only if your transaction commits. `metadata`: small JSON values
        that every task of the run inherits. `group`: the group of all nodes that have none of their own, by `group=` or
        by the `group_by` of their task, also in nested workflows.

        `priority`: of all nodes that have none of their own. `unique_key`: one live run of this workflow per key; a
        further start returns the handle of the live one. `start_at`: start later (seconds, a timedelta or an aware
        datetime). `deadline`: when the run has not ended by then, it is stopped and fails with WORKFLOW_DEADLINE;
        seconds and a timedelta count from its start. Raises `TaskSendError`."""
        from horsies.workflow.run_options import RunOptions
        from horsies.workflow.start import Start

        options = RunOptions(metadata, group, priority, unique_key, start_at, deadline)
        return Start(self, workflow_id, connection, options).announced().send()

    @known_options(_ARGUMENTS)
    async def start_async(
        self,
        *,
        workflow_id: str | None = None,
        connection: Any = None,
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        priority: int | None = None,
        unique_key: str | None = None,
        start_at: Moment | None = None,
        deadline: Moment | None = None,
    ) -> WorkflowHandle[T_co]:
        """See `start`."""
        from horsies.workflow.run_options import RunOptions
        from horsies.workflow.start import Start

        options = RunOptions(metadata, group, priority, unique_key, start_at, deadline)
        return await Start(self, workflow_id, connection, options).announced().send_async()

    def continued(self, wanted: Any, /) -> Continued[T_co]:
        """For `Continue`: the text that a task of this result type stores to go on as this workflow."""
        from horsies.result import Continued
        from horsies.workflow.continuing import continue_text

        return Continued(*continue_text(self, wanted))

    def prepared_start(self, workflow_id: str, group: str | None = None) -> Start[T_co]:
        """The start of a run for the scheduler, which executes its statement in a transaction of its own."""
        from horsies.workflow.run_options import RunOptions
        from horsies.workflow.start import Start

        return Start(self, workflow_id, None, RunOptions(group=group))
