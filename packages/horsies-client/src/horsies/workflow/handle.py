"""`WorkflowHandle`: a run of a workflow, by its id."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeVar, cast, overload

from horsies._awaited import Awaited, err
from horsies.errors import BrokerError, OperationalErrorCode, RetrievalCode
from horsies.result import TaskError, TaskResult
from horsies.status import WorkflowStatus
from horsies.workflow.context import HasKey, NodeKey, key_of
from horsies.workflow.defined import workflows_of

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen
    from horsies._runtime import AppRuntime
    from horsies.workflow.graph import Graph
    from horsies.workflow.info import PausedRun, WorkflowInfo, WorkflowNodeInfo, WorkflowNodeResult
    from horsies.workflow.run_options import Moment
    from horsies.workflow.signals import Signal, SignalReceipt
    from horsies.workflow.waits import SignalNode

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class WorkflowHandle(Awaited[T_co]):
    """Refers to a run by its id. `app.workflow_handle(workflow_id)` makes another one in any process."""

    __slots__ = ("_spec", "workflow_id")

    _is_workflow = True
    _not_found = RetrievalCode.WORKFLOW_NOT_FOUND

    def __init__(self, app: AppRuntime, workflow_id: str, *, spec: Graph[T_co] | None = None) -> None:
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

    def _spec_of(self, seen: Seen) -> Graph[T_co] | None:
        return self._spec or workflows_of(self._app).known(seen.task_name, seen.definition_key)

    def _decode(self, ended: Seen) -> TaskResult[T_co, TaskError]:
        spec = self._spec_of(ended)
        if self._app.stand_in is not None and (wanted := _terminal(spec, ended)) is not None:
            return self._of_terminals(cast("Any", spec), self._app.stand_in.node_texts(self.workflow_id, wanted))
        return self._decoded(ended, None if spec is None else spec.codec)

    async def _concluded(self, seen: Seen | None, timeout_ms: int | None) -> TaskResult[T_co, TaskError]:
        """The value of a run without an output is in the rows of its nodes."""
        spec = None if seen is None else self._spec_of(seen)
        if seen is None or (wanted := _terminal(spec, seen)) is None:
            return self._ended(seen, timeout_ms)
        try:
            texts = await self._app.get_broker().workflows.results(self.workflow_id, wanted)
        except BrokerError as error:
            return self._broker_error(error)
        self._result = self._of_terminals(cast("Any", spec), texts)
        return self._result

    def _of_terminals(self, spec: Graph[Any], found: Mapping[str, str | None]) -> TaskResult[Any, TaskError]:
        from horsies.workflow.terminal import terminal_results

        return TaskResult(ok=terminal_results(spec, self._unwrapped(found)))

    # -- looking ---------------------------------------------------------------------------------

    def status(self) -> WorkflowStatus | None:
        """The state of the run; None when there is no such run."""
        return self._app.run_sync("status", self.status_async)

    async def status_async(self) -> WorkflowStatus | None:
        """See `status`."""
        if self._app.stand_in is not None:
            seen = self._app.stand_in.look(self.workflow_id, is_workflow=True)
            return None if seen is None else WorkflowStatus(seen.status)
        info = await self.info_async()
        return None if info is None else info.status

    def info(self) -> WorkflowInfo | None:
        """The row of the run; None when there is no such run."""
        return self._app.run_sync("info", self.info_async)

    async def info_async(self) -> WorkflowInfo | None:
        """See `info`."""
        return await self._app.get_broker().workflows.info(self.workflow_id)

    @overload
    def tasks(self, path: str | None = None, *, include_results: Literal[False] = False) -> list[WorkflowNodeInfo]: ...
    @overload
    def tasks(self, path: str | None = None, *, include_results: Literal[True]) -> list[WorkflowNodeResult]: ...
    def tasks(self, path: str | None = None, *, include_results: bool = False) -> Sequence[WorkflowNodeInfo]:
        """The run's nodes, in the order of their definition. `path`: those of a workflow inside it, by the nodes that
        lead there: `"outer/inner"`, `"orders/item[3]"`. `include_results`: each with its result, and with a summary of
        the workflow in it."""
        if include_results:
            return self._app.run_sync("tasks", lambda: self.tasks_async(path, include_results=True))
        return self._app.run_sync("tasks", lambda: self.tasks_async(path))

    @overload
    async def tasks_async(
        self, path: str | None = None, *, include_results: Literal[False] = False
    ) -> list[WorkflowNodeInfo]: ...
    @overload
    async def tasks_async(
        self, path: str | None = None, *, include_results: Literal[True]
    ) -> list[WorkflowNodeResult]: ...
    async def tasks_async(
        self, path: str | None = None, *, include_results: bool = False
    ) -> Sequence[WorkflowNodeInfo]:
        """See `tasks`."""
        control = self._app.get_broker().workflows
        run_id = await control.run_at(self.workflow_id, path)
        nodes = await control.nodes(run_id)
        if not include_results:
            return nodes
        from horsies.workflow.info import WorkflowNodeResult

        inner = self if run_id == self.workflow_id else WorkflowHandle[Any](self._app, run_id)
        results = await inner.results_async()
        counts = await control.inner_counts(run_id)
        return [WorkflowNodeResult.of(node, results.get(node.node_id), counts.get(node.node_id)) for node in nodes]

    def paused(self) -> list[PausedRun]:
        """The paused runs of the tree: the run itself or workflows nested in it, each with its failed nodes, or marked
        as paused along with the run around it."""
        return self._app.run_sync("paused", self.paused_async)

    async def paused_async(self) -> list[PausedRun]:
        """See `paused`."""
        return await self._app.get_broker().workflows.paused(self.workflow_id)

    def results(self) -> dict[str, TaskResult[Any, TaskError]]:
        """The results of all nodes that have ended, by node id; a skipped node has an err UPSTREAM_SKIPPED."""
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

    @overload
    def result_for(self, node: str) -> TaskResult[Any, TaskError]: ...
    @overload
    def result_for(self, node: HasKey[T] | NodeKey[T]) -> TaskResult[T, TaskError]: ...
    def result_for(self, node: Any) -> TaskResult[Any, TaskError]:
        """The typed result of one node; err RESULT_NOT_READY until it has ended, RESULT_NOT_AVAILABLE when it ended
        without a stored result. By a path, such as `"orders/item[3]"`, the result of a node inside, as plain JSON."""
        return self._app.run_sync("result_for", lambda: self.result_for_async(node))

    @overload
    async def result_for_async(self, node: str) -> TaskResult[Any, TaskError]: ...
    @overload
    async def result_for_async(self, node: HasKey[T] | NodeKey[T]) -> TaskResult[T, TaskError]: ...
    async def result_for_async(self, node: Any) -> TaskResult[Any, TaskError]:
        """See `result_for`."""
        if isinstance(node, str):
            return await self._result_at(node)
        key: NodeKey[Any] = key_of(node)
        texts = await self._texts([key.node_id])
        if key.node_id not in texts:
            message = f"workflow {self.workflow_id} has no node {key.node_id!r}, or does not exist"
            return err(RetrievalCode.RESULT_NOT_AVAILABLE, message)
        text = texts[key.node_id]
        if text is None:
            return err(RetrievalCode.RESULT_NOT_READY, f"node {key.node_id!r} has not ended")
        return key.decode(text)

    async def _result_at(self, path: str) -> TaskResult[Any, TaskError]:
        from horsies.codec import decode_untyped_result

        control = self._app.get_broker().workflows
        last = (await control.locate(self.workflow_id, path))[-1]
        text = (await control.results(last.workflow_id, [last.node_id]))[last.node_id]
        if text is None:
            return err(RetrievalCode.RESULT_NOT_READY, f"node {path!r} has not ended")
        return decode_untyped_result(self._app.envelopes.unwrap_result(text))

    async def _texts(self, node_ids: Sequence[str] | None) -> Mapping[str, str | None]:
        if self._app.stand_in is not None:
            found = self._app.stand_in.node_texts(self.workflow_id, node_ids)
        else:
            found = await self._app.get_broker().workflows.results(self.workflow_id, node_ids)
        return self._unwrapped(found)

    def _unwrapped(self, found: Mapping[str, str | None]) -> Mapping[str, str | None]:
        unwrap = self._app.envelopes.unwrap_result
        return {node_id: None if text is None else unwrap(text) for node_id, text in found.items()}

    async def _keys(self) -> Mapping[str, NodeKey[Any]]:
        spec = self._spec
        if spec is None:
            info = await self.info_async()
            spec = None if info is None else workflows_of(self._app).known(info.name, info.definition_key)
        return {} if spec is None else {wired.node_id: wired.node.key for wired in spec.wired}

    def diagram(self, style: str = "text") -> str:
        """The graph with the state of every node: as text, or as a Mermaid flowchart (`style="mermaid"`)."""
        return self._app.run_sync("diagram", lambda: self.diagram_async(style))

    async def diagram_async(self, style: str = "text") -> str:
        """See `diagram`."""
        from horsies.workflow.diagram import draw

        return draw(await self.info_async(), await self.tasks_async(), style)

    # -- acting ----------------------------------------------------------------------------------

    @overload
    def signal(
        self, node: SignalNode[T], value: T, *, signal_id: str | None = None, path: str | None = None,
        connection: Any = None,
    ) -> SignalReceipt: ...  # fmt: skip
    @overload
    def signal(
        self, node: str, value: Any = None, *, signal_id: str | None = None, path: str | None = None,
        connection: Any = None,
    ) -> SignalReceipt: ...  # fmt: skip
    def signal(
        self, node: Any, value: Any = None, *, signal_id: str | None = None, path: str | None = None,
        connection: Any = None,
    ) -> SignalReceipt:  # fmt: skip
        """Send a signal to the run: to a node of `wait_for_signal`, or by the signal's name. It is kept until a node
        waits for it; one signal feeds one node, the oldest first.

        `signal_id`: an id of your own, such as that of a webhook: a second signal with this id is ignored
        (`delivered` is False). `path`: to a workflow inside the run, by the nodes that lead to it: `"orders/item[3]"`.
        `connection`: your own connection or session; the signal exists if and only if your transaction commits. Raises
        `SignalError` when the run has ended or does not exist, `TaskSendError` when the value does not fit."""
        return self._signal(node, value, signal_id, path, connection).send()

    @overload
    async def signal_async(
        self, node: SignalNode[T], value: T, *, signal_id: str | None = None, path: str | None = None,
        connection: Any = None,
    ) -> SignalReceipt: ...  # fmt: skip
    @overload
    async def signal_async(
        self, node: str, value: Any = None, *, signal_id: str | None = None, path: str | None = None,
        connection: Any = None,
    ) -> SignalReceipt: ...  # fmt: skip
    async def signal_async(
        self, node: Any, value: Any = None, *, signal_id: str | None = None, path: str | None = None,
        connection: Any = None,
    ) -> SignalReceipt:  # fmt: skip
        """See `signal`."""
        return await self._signal(node, value, signal_id, path, connection).send_async()

    def _signal(self, node: Any, value: Any, signal_id: str | None, path: str | None, connection: Any) -> Signal:
        from horsies.workflow.signals import Signal, encode_signal

        # the workflow of the run says nothing of one inside it
        spec = self._spec if path is None else None
        name, text = encode_signal(node, value, spec, workflows_of(self._app))
        return Signal(self._app, self.workflow_id, name, text, signal_id=signal_id, path=path, connection=connection)

    def pause(self) -> bool:
        """Start no more nodes of the run and of the workflows nested in it; running tasks go on. False when the run was
        not running, or undoes what it did."""
        return self._app.run_sync("pause", self.pause_async)

    async def pause_async(self) -> bool:
        """See `pause`."""
        return await self._app.get_broker().workflows.pause(self.workflow_id)

    def resume(self) -> bool:
        """Resume a paused run and the workflows that were paused along with it. A workflow inside that is paused for
        its own failure, or by its id, stays paused. If the run itself is not paused, or only because of workflows
        inside it, those are resumed. False when none of them was paused."""
        return self._app.run_sync("resume", self.resume_async)

    async def resume_async(self) -> bool:
        """See `resume`."""
        return await self._app.get_broker().workflows.resume(self.workflow_id)

    def cancel(self) -> bool:
        """Cancel the run: nodes that have not started never will, running tasks are asked to stop. False when the run
        had ended."""
        return self._app.run_sync("cancel", self.cancel_async)

    async def cancel_async(self) -> bool:
        """See `cancel`."""
        return await self._app.get_broker().workflows.cancel(self.workflow_id)

    def retry(self, node: HasKey[Any] | NodeKey[Any] | str | None = None, *, deadline: Moment | None = None) -> bool:
        """Run failed nodes again, and the nodes that were skipped because of them; completed nodes keep their results.
        Works on a run that failed, was cancelled or is paused, and on paused workflows nested in it, which are resumed.

        With a node, in any run that has not completed: retry only this node and the nodes that were skipped because of
        it; if it is a paused workflow, the failed nodes in that. Nodes that depend on it and have not started wait for
        its new end. A path names a node inside: `"orders/item[3]"`.

        A run that has undone what it did runs those nodes again. If a compensation failed, the run goes on undoing from
        there. `deadline`: a new one for a run that has ended; without it, the run has none any more.

        In a cancelled run, either form also runs the nodes again that the cancel skipped or stopped; a task of such a
        node that is still running is waited for. False when there is nothing to retry. Raises `UsageError` when the run
        has no such node."""
        return self._app.run_sync("retry", lambda: self.retry_async(node, deadline=deadline))

    async def retry_async(
        self, node: HasKey[Any] | NodeKey[Any] | str | None = None, *, deadline: Moment | None = None
    ) -> bool:
        """See `retry`."""
        name = node if isinstance(node, str | None) else key_of(node).node_id
        done = await self._app.get_broker().workflows.retry(self.workflow_id, name, deadline)
        if done:
            self._result = None
        return done


def _terminal(spec: Graph[Any] | None, seen: Seen) -> list[str] | None:
    """The nodes whose results are the value of a completed run."""
    if spec is None or spec.output is not None or seen.status is not WorkflowStatus.COMPLETED:
        return None
    from horsies.workflow.terminal import terminal_ids

    found = terminal_ids(spec)
    return None if found is None else sorted(found)
