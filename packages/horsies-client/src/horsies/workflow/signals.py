"""Signals: values from outside that nodes of a run wait for. A signal is stored by one statement, on the same
connections as a send of tasks; a step of the run gives it to a node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, Final

from horsies._pg.statements import load
from horsies._text import short
from horsies.errors import HorsiesError, OutcomeCode, RetrievalCode, SendErrorCode, TaskSendError, UsageError
from horsies.ids import new_id
from horsies.payload_codec import PayloadError
from horsies.result import TaskError, TaskResult
from horsies.send import Send
from horsies.workflow.paths import refuse_path
from horsies.workflow.run_options import is_short_text
from horsies.workflow.waits import SignalNode

if TYPE_CHECKING:
    from horsies._pg.enqueue import ExecuteAsync
    from horsies._runtime import AppRuntime
    from horsies.workflow.graph import Graph

MAX_LENGTH: Final = 255
"""Characters of a signal's name and of its id."""


@dataclass(frozen=True, slots=True)
class SignalReceipt:
    """A signal that was stored."""

    signal_id: str
    delivered: bool
    """False: a signal with this id was sent before, and this one is ignored."""


class SignalError(HorsiesError):
    """A signal could not be delivered; nothing was stored. `code`: WORKFLOW_ENDED, or WORKFLOW_NOT_FOUND."""

    def __init__(self, code: OutcomeCode | RetrievalCode, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Signal(Send[SignalReceipt]):
    """One signal, ready to be sent."""

    __slots__ = ("_is_own_id", "name", "path", "value", "workflow_id")

    def __init__(
        self,
        app: AppRuntime,
        workflow_id: str,
        name: str,
        value: str,
        *,
        signal_id: str | None = None,
        path: str | None = None,
        connection: Any = None,
    ) -> None:
        for what, text in (("name", name), ("signal_id", signal_id)):
            if not is_short_text(text, MAX_LENGTH) or (text is None and what == "name"):
                why = f"{what} is {text!r:.60}: give a text of 1 to {MAX_LENGTH} characters"
                raise TaskSendError(SendErrorCode.VALIDATION_FAILED, f"signal: {why}")
        if path is not None:
            refuse_path(path)
        self._is_own_id = signal_id is None
        super().__init__(app, "signal", connection, [signal_id or new_id()])
        self.workflow_id = workflow_id
        self.name = name
        try:
            self.value = app.envelopes.wrap_value(value, "signal", name)
        except PayloadError as error:
            raise TaskSendError(SendErrorCode.VALIDATION_FAILED, f"signal {name!r}: {error}") from error
        self.path = path

    @property
    def label(self) -> str:
        return f"signal {self.name!r} to workflow {self.workflow_id}"

    async def write(self, execute: ExecuteAsync) -> str:
        statement = load("horsies._pg", "workflows.sql", self.app.schema)["signal_workflow"]
        rows = await execute(statement.sql, self.workflow_id, self.name, self.value, self.ids[0], self.path)
        return rows[0][0]

    def handle(self, written: str) -> SignalReceipt:
        match written:
            case "DELIVERED":
                return SignalReceipt(self.ids[0], True)
            case "REPEATED":  # with an id of its own, an earlier try has stored it and its answer was lost
                return SignalReceipt(self.ids[0], self._is_own_id)
            case "WORKFLOW_ENDED":
                raise SignalError(
                    OutcomeCode.WORKFLOW_ENDED,
                    f"{self.label}: the run has ended, or undoes what it did; nothing was stored",
                )
            case "WORKFLOW_NOT_FOUND":
                raise SignalError(RetrievalCode.WORKFLOW_NOT_FOUND, f"{self.label}: there is no such run")
            case "NOT_STARTED":
                raise UsageError(
                    f"{self.label}: the workflow at {self.path!r} has not started; send the signal when it has"
                )
            case _:
                raise UsageError(f"{self.label}: there is no workflow at the path {short(self.path or '')!r}")


def encode_signal(
    node: SignalNode[Any] | str, value: Any, spec: Graph[Any] | None, known: Iterable[Graph[Any]] = ()
) -> tuple[str, str]:
    """The name and the JSON text of a signal, checked by the type of the node that waits for it: in the run's workflow,
    or in the workflows that the app knows, if all of them that wait for this name have one type for it."""
    from horsies.codec import EncodeError

    if isinstance(node, str):
        waiting = _waiting(spec, node) or _known(known, node)
        if waiting is None:
            return node, _untyped(node, value)
        node = waiting
    if not isinstance(node, SignalNode):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"{node!r:.80} waits for no signal: give a node of wait_for_signal(...), or the signal's name")
    try:
        # the same text as a result that a task returns: {"ok":...}
        result: TaskResult[Any, TaskError] = TaskResult(ok=value)
        return node.signal_name, node.codec.encode_result(result)[len('{"ok":') : -1]
    except (EncodeError, HorsiesError) as error:
        told = str(error).removeprefix(f"task {node.title!r}: ").removeprefix("the return value: ")
        why = f"signal {node.signal_name!r}: the value does not fit its type: {told}"
        raise TaskSendError(SendErrorCode.VALIDATION_FAILED, why) from error


def _known(workflows: Iterable[Graph[Any]], name: str) -> SignalNode[Any] | None:
    found = {
        repr(node.type): node
        for spec in workflows
        for node in (wired.node for wired in spec.wired)
        if isinstance(node, SignalNode) and node.signal_name == name
    }
    return next(iter(found.values())) if len(found) == 1 else None


def _waiting(spec: Graph[Any] | None, name: str) -> SignalNode[Any] | None:
    """The node of the run's workflow that waits for a signal of this name. Raises where the workflow is known to have
    others only; a run that continues may wait for it later, so that a workflow without any takes every name."""
    if spec is None:
        return None
    waits = [wired.node for wired in spec.wired if isinstance(wired.node, SignalNode)]
    nodes = {node.signal_name: node for node in waits}
    if nodes and name not in nodes and (close := get_close_matches(name, nodes, 1)):
        raise UsageError(f"workflow {spec.name!r} waits for no signal {short(name)!r}: did you mean {close[0]!r}?")
    return nodes.get(name)


def _untyped(name: str, value: Any) -> str:
    """The text of a value whose type this process does not know, by the rules of a task that is sent by name."""
    from horsies.codec import EncodeError, encode_untyped_value

    try:
        return encode_untyped_value(value, name="value")
    except EncodeError as error:
        at = "" if error.path == "value" else f" at {error.path}"
        why = f"signal {name!r}: the value cannot be sent{at}: {error.fault.why}"
        raise TaskSendError(SendErrorCode.VALIDATION_FAILED, why) from error
