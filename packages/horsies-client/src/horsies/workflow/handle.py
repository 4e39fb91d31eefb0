"""`WorkflowHandle`: a run, from the side of whoever started it or knows its id."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from horsies._awaited import Awaited, err
from horsies.errors import OperationalErrorCode, RetrievalCode
from horsies.result import TaskError, TaskResult
from horsies.workflow.context import NodeKey, key_of

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen, Waiters
    from horsies.app import Horsies
    from horsies.status import WorkflowStatus
    from horsies.workflow.info import PausedRun, WorkflowInfo, WorkflowNodeInfo
    from horsies.workflow.nodes import Node
    from horsies.workflow.spec import WorkflowSpec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class WorkflowHandle(Awaited[T_co]):
    """Refers to a run by its id; can be rebuilt anywhere with `app.workflow_handle(workflow_id)`."""

    __slots__ = ("_spec", "workflow_id")

    _kind = "workflow"
    _not_found = RetrievalCode.WORKFLOW_NOT_FOUND
    _never = "never started"

    def __init__(self, app: Horsies, workflow_id: str, *, spec: WorkflowSpec[T_co] | None = None) -> None:
        self._app = app
        self._result = None
        self._spec = spec
        self.workflow_id = workflow_id

    def __repr__(self) -> str:
        name = f" {self._spec.name}" if self._spec else ""
        return f"<WorkflowHandle{name} {self.workflow_id}>"

    # -- result ----------------------------------------------------------------------------------

    @property
    def _id(self) -> str:
        return self.workflow_id

    def _seen(self, waiters: Waiters, *, at_once: bool) -> Awaitable[Seen | None]:
        return (waiters.look_at_workflow if at_once else waiters.wait_for_workflow)(self.workflow_id)

    def _decode(self, ended: Seen) -> TaskResult[Any, TaskError]:
        from horsies.codec import DecodeError, decode_untyped_result

        if ended.result is None:
            message = f"workflow {self.workflow_id} is {ended.status} without a result"
            return err(RetrievalCode.RESULT_NOT_AVAILABLE, message)
        spec = self._spec or self._app.workflows.known(ended.task_name, ended.definition_key)
        try:
            if spec is None:
                return decode_untyped_result(ended.result, task_name=ended.task_name)
            return spec.codec.decode_result(ended.result)
        except DecodeError as error:
            return err(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error))

    # -- looking ---------------------------------------------------------------------------------

    def status(self) -> WorkflowStatus | None:
        """Where the run is; None when there is no such run."""
        return self._app.run_sync("status", self.status_async)

    async def status_async(self) -> WorkflowStatus | None:
        """See `status`."""
        info = await self.info_async()
        return None if info is None else info.status

    def info(self) -> WorkflowInfo | None:
        """What the database knows of the run now; None when there is no such run."""
        return self._app.run_sync("info", self.info_async)

    async def info_async(self) -> WorkflowInfo | None:
        """See `info`."""
        return await self._app.get_broker().workflows.info(self.workflow_id)

    def tasks(self) -> list[WorkflowNodeInfo]:
        """The run's nodes, in the order of their definition."""
        return self._app.run_sync("tasks", self.tasks_async)

    async def tasks_async(self) -> list[WorkflowNodeInfo]:
        """See `tasks`."""
        return await self._app.get_broker().workflows.nodes(self.workflow_id)

    def paused(self) -> list[PausedRun]:
        """Where the run is paused: itself, or workflows inside it, each with the nodes that failed there."""
        return self._app.run_sync("paused", self.paused_async)

    async def paused_async(self) -> list[PausedRun]:
        """See `paused`."""
        return await self._app.get_broker().workflows.paused(self.workflow_id)

    def results(self) -> dict[str, TaskResult[Any, TaskError]]:
        """The results of all nodes that have ended, by node id; a skipped one has err UPSTREAM_SKIPPED."""
        return self._app.run_sync("results", self.results_async)

    async def results_async(self) -> dict[str, TaskResult[Any, TaskError]]:
        """See `results`."""
        from horsies.codec import DecodeError, decode_untyped_result

        texts = await self._texts(None)
        known = await self._keys()
        found: dict[str, TaskResult[Any, TaskError]] = {}
        for node_id, text in texts.items():
            if text is None:
                continue
            try:
                found[node_id] = known[node_id].decode(text) if node_id in known else decode_untyped_result(text)
            except DecodeError as error:
                found[node_id] = err(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error))
        return found

    def result_for(self, node: Node[T] | NodeKey[T]) -> TaskResult[T, TaskError]:
        """The result of one node, typed; err RESULT_NOT_READY until it has ended, RESULT_NOT_AVAILABLE when it ended
        without a stored result."""
        return self._app.run_sync("result_for", lambda: self.result_for_async(node))

    async def result_for_async(self, node: Node[T] | NodeKey[T]) -> TaskResult[T, TaskError]:
        """See `result_for`."""
        key = key_of(node)
        texts = await self._texts([key.node_id])
        if key.node_id not in texts:
            message = f"workflow {self.workflow_id} has no node {key.node_id!r}, or does not exist"
            return err(RetrievalCode.RESULT_NOT_AVAILABLE, message)
        text = texts[key.node_id]
        if text is None:
            return err(RetrievalCode.RESULT_NOT_READY, f"node {key.node_id!r} has not ended")
        return key.decode(text)

    async def _texts(self, node_ids: Sequence[str] | None) -> Mapping[str, str | None]:
        return await self._app.get_broker().workflows.results(self.workflow_id, node_ids)

    async def _keys(self) -> Mapping[str, NodeKey[Any]]:
        spec = self._spec
        if spec is None:
            info = await self.info_async()
            spec = None if info is None else self._app.workflows.known(info.name, info.definition_key)
        return {} if spec is None else {wired.node_id: wired.node.key for wired in spec.wired}

    def diagram(self, style: str = "text") -> str:
        """The graph with the state of every node: as text, or as a Mermaid flowchart (`style="mermaid"`)."""
        return self._app.run_sync("diagram", lambda: self.diagram_async(style))

    async def diagram_async(self, style: str = "text") -> str:
        """See `diagram`."""
        from horsies.workflow.diagram import draw

        return draw(await self.info_async(), await self.tasks_async(), style)

    # -- acting ----------------------------------------------------------------------------------

    def pause(self) -> bool:
        """Start nothing more of it, nor of the workflows inside; what runs goes on. False when it was not running."""
        return self._app.run_sync("pause", self.pause_async)

    async def pause_async(self) -> bool:
        """See `pause`."""
        return await self._app.get_broker().workflows.pause(self.workflow_id)

    def resume(self) -> bool:
        """Go on with a paused run, and with what is paused inside it. False when nothing of it was paused."""
        return self._app.run_sync("resume", self.resume_async)

    async def resume_async(self) -> bool:
        """See `resume`."""
        return await self._app.get_broker().workflows.resume(self.workflow_id)

    def cancel(self) -> bool:
        """End the run: what has not started never will, what runs is asked to stop. False when it had ended."""
        return self._app.run_sync("cancel", self.cancel_async)

    async def cancel_async(self) -> bool:
        """See `cancel`."""
        return await self._app.get_broker().workflows.cancel(self.workflow_id)

    def retry(self, node: Node[Any] | NodeKey[Any] | str | None = None) -> bool:
        """Run again what failed, and what was skipped for it; completed nodes keep their results. For a run that has
        failed, was cancelled or is paused, and for the paused workflows inside it; what was paused goes on.

        With a node, in any run that has not completed: only that one and what was skipped for it; if it is a workflow
        that is paused, what failed in there. What depends on it and has not started waits for its new end.
        False when there is nothing to retry."""
        return self._app.run_sync("retry", lambda: self.retry_async(node))

    async def retry_async(self, node: Node[Any] | NodeKey[Any] | str | None = None) -> bool:
        """See `retry`."""
        name = node if isinstance(node, str | None) else key_of(node).node_id
        done = await self._app.get_broker().workflows.retry(self.workflow_id, name)
        if done:
            self._result = None
        return done
