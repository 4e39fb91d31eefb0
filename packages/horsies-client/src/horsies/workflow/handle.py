"""`WorkflowHandle`: a run, from the side of whoever started it or knows its id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from horsies._checks import shown
from horsies.errors import OperationalErrorCode, RetrievalCode
from horsies.ids import is_storable_id
from horsies.result import TaskError, TaskResult
from horsies.workflow.context import NodeKey

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen
    from horsies.app import Horsies
    from horsies.status import WorkflowStatus
    from horsies.workflow.info import WorkflowInfo, WorkflowNodeInfo
    from horsies.workflow.nodes import Node
    from horsies.workflow.spec import WorkflowSpec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class WorkflowHandle(Generic[T_co]):
    """Refers to a run by its id; can be rebuilt anywhere with `app.workflow_handle(workflow_id)`."""

    __slots__ = ("_app", "_result", "_spec", "workflow_id")

    def __init__(self, app: Horsies, workflow_id: str, *, spec: WorkflowSpec[T_co] | None = None) -> None:
        self._app = app
        self._spec = spec
        self._result: TaskResult[T_co, TaskError] | None = None
        self.workflow_id = workflow_id

    def __repr__(self) -> str:
        name = f" {self._spec.name}" if self._spec else ""
        return f"<WorkflowHandle{name} {self.workflow_id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WorkflowHandle) and self.workflow_id == other.workflow_id

    def __hash__(self) -> int:
        return hash(self.workflow_id)

    # -- result ----------------------------------------------------------------------------------

    def get(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """Wait for the run's end and return its output. Never raises for what the run or the database did: a
        time-out is an err WAIT_TIMEOUT, also while the run is paused. A final result is kept here."""
        from horsies.sync import refuse_on_a_loop

        refuse_on_a_loop("get")
        if self._result is not None:
            return self._result
        return self._app.run_sync("get", lambda: self.get_async(timeout_ms))

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """See `get`."""
        if self._result is not None:
            return self._result
        if timeout_ms is not None and timeout_ms < 0:
            raise ValueError(f"timeout_ms must not be negative, got {timeout_ms}")
        if not is_storable_id(self.workflow_id):
            return _err(RetrievalCode.WORKFLOW_NOT_FOUND, f"{shown(self.workflow_id)} cannot be the id of a workflow")
        import asyncio

        waiters = self._app.database.here().waiters
        bound = asyncio.timeout(timeout_ms / 1000 if timeout_ms else None)
        try:
            async with bound:
                look = waiters.look_at_workflow if timeout_ms == 0 else waiters.wait_for_workflow
                seen = await look(self.workflow_id)
        except Exception as error:
            if not bound.expired():
                return self._broker_error(error)
            if waiters.last_error is not None:
                return self._broker_error(waiters.last_error)
            return self._not_ended(timeout_ms)
        if seen is None:
            message = f"there is no workflow {self.workflow_id}: never started, or pruned since"
            return _err(RetrievalCode.WORKFLOW_NOT_FOUND, message)
        if not seen.status.is_terminal:
            return self._not_ended(timeout_ms)
        self._result = self._decode(seen)
        return self._result

    def _not_ended(self, timeout_ms: int | None) -> TaskResult[Any, TaskError]:
        return _err(RetrievalCode.WAIT_TIMEOUT, f"workflow {self.workflow_id} has not ended within {timeout_ms} ms")

    def _broker_error(self, error: BaseException) -> TaskResult[Any, TaskError]:
        text = self._app.config.broker.redact(f"{type(error).__name__}: {error}")
        message = f"the result of workflow {self.workflow_id} could not be read: {text}"
        return _err(OperationalErrorCode.BROKER_ERROR, message)

    def _decode(self, ended: Seen) -> TaskResult[Any, TaskError]:
        from horsies.codec import DecodeError, decode_untyped_result

        if ended.result is None:
            message = f"workflow {self.workflow_id} is {ended.status} without a result"
            return _err(RetrievalCode.RESULT_NOT_AVAILABLE, message)
        spec = self._spec or self._app.workflows.known(ended.task_name, ended.definition_key)
        try:
            if spec is None:
                return decode_untyped_result(ended.result, task_name=ended.task_name)
            return spec.codec.decode_result(ended.result)
        except DecodeError as error:
            return _err(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error))

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
                found[node_id] = _err(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error))
        return found

    def result_for(self, node: Node[T] | NodeKey[T]) -> TaskResult[T, TaskError]:
        """The result of one node, typed; err RESULT_NOT_READY while it has none."""
        return self._app.run_sync("result_for", lambda: self.result_for_async(node))

    async def result_for_async(self, node: Node[T] | NodeKey[T]) -> TaskResult[T, TaskError]:
        """See `result_for`."""
        key = node if isinstance(node, NodeKey) else node.key
        texts = await self._texts([key.node_id])
        if key.node_id not in texts:
            message = f"workflow {self.workflow_id} has no node {key.node_id!r}, or does not exist"
            return _err(RetrievalCode.RESULT_NOT_AVAILABLE, message)
        text = texts[key.node_id]
        if text is None:
            return _err(RetrievalCode.RESULT_NOT_READY, f"node {key.node_id!r} has not ended")
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
        """Go on with a paused run. False when it was not paused."""
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
        """Run again what failed, and what was skipped for it; completed nodes keep their results. With a node: only
        that one and what was skipped for it. False when there is nothing to retry."""
        return self._app.run_sync("retry", lambda: self.retry_async(node))

    async def retry_async(self, node: Node[Any] | NodeKey[Any] | str | None = None) -> bool:
        """See `retry`."""
        name = node if isinstance(node, str | None) else (node if isinstance(node, NodeKey) else node.key).node_id
        done = await self._app.get_broker().workflows.retry(self.workflow_id, name)
        if done:
            self._result = None
        return done


def _err(code: RetrievalCode | OperationalErrorCode, message: str) -> TaskResult[Any, TaskError]:
    return TaskResult(err=TaskError(code, message))
