"""`Sends`: what an app has sent inside `recorded` or `inline`, and the assertions on it."""

import json
import threading
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final, ParamSpec, Protocol, TypeVar, overload

from horsies._checks import shown
from horsies._text import plural
from horsies.errors import HorsiesError, UsageError
from horsies.tasks import Sender
from horsies.testing.calls import Call, differences, read_call
from horsies.testing.records import SentSignal, SentTask, StartedWorkflow, listed, told

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.workflow.definition import WorkflowDefinition
    from horsies.workflow.graph import Graph
    from horsies.workflow.waits import SignalNode

    AnySignal = SignalNode[Any] | str
    AnyWorkflow = Graph[Any] | type[WorkflowDefinition[Any]] | str

P = ParamSpec("P")
T = TypeVar("T")
AnyTask = Sender[..., Any] | str
_SHOWN = 10
_ANY: Final[Any] = object()


class Clock(Protocol):
    """Lets time pass in inline mode."""

    def advance(self, time: timedelta) -> None: ...

    async def advance_async(self, time: timedelta) -> None: ...


class Sends:
    """In the order in which they were sent. A send on your own connection is in the list once its transaction has
    committed; `docs/guides/testing.md` says for which libraries."""

    def __init__(self, app: "Horsies") -> None:
        self._app = app
        self._lock = threading.Lock()
        self._tasks: dict[str, tuple[SentTask, Call]] = {}
        self._runs: dict[str, StartedWorkflow] = {}
        self._signals: dict[str, SentSignal] = {}
        self._uncommitted: set[str] = set()
        self.clock: Clock | None = None
        """For the modes: what lets time pass."""

    def __len__(self) -> int:
        return len(self.sent())

    def __repr__(self) -> str:
        return f"<Sends {plural(len(self), 'task')}, {plural(len(self.started()), 'workflow')}>"

    # -- asking ----------------------------------------------------------------------------------

    def sent(
        self,
        task: AnyTask | None = None,
        *,
        queue: str | None = None,
        where: Callable[[SentTask], bool] | None = None,
    ) -> list[SentTask]:
        """The tasks that were sent: of this task, to this queue, and for which `where` returns True."""
        return [task for task, _ in self._found(task, queue, where)]

    def started(self, workflow: "AnyWorkflow | None" = None) -> list[StartedWorkflow]:
        """The runs that were started, of this workflow or of all."""
        name = workflow if workflow is None or isinstance(workflow, str) else workflow.name
        with self._lock:
            runs = [run for run_id, run in self._runs.items() if run_id not in self._uncommitted]
        return [run for run in runs if name in (None, run.name)]

    def signalled(self, node: "AnySignal | None" = None) -> list[SentSignal]:
        """The signals that were sent: to this node of `wait_for_signal` or by this name, or all."""
        name = None if node is None else _signal_name("signalled", node)
        with self._lock:
            signals = [sent for signal_id, sent in self._signals.items() if signal_id not in self._uncommitted]
        return [sent for sent in signals if name in (None, sent.name)]

    # -- time ------------------------------------------------------------------------------------

    def advance(self, time: timedelta) -> None:
        """Inline mode: let this time pass for the runs that were started and have not ended. Sleeps end, waits for
        signals time out and deadlines pass, in the order of their times."""
        from horsies.sync import refuse_on_a_loop

        refuse_on_a_loop("advance")
        self._clock(time).advance(time)

    async def advance_async(self, time: timedelta) -> None:
        """See `advance`."""
        await self._clock(time).advance_async(time)

    def _clock(self, time: object) -> "Clock":
        if self.clock is None:
            raise UsageError("advance works inside testing.inline: nothing else here runs by a clock")
        if not isinstance(time, timedelta) or time < timedelta(0):
            raise UsageError(f"advance takes a timedelta that is not negative, not {shown(time)}")
        return self.clock

    # -- asserting -------------------------------------------------------------------------------

    @overload
    def assert_sent(self, task: str, /, *args: Any, **kwargs: Any) -> SentTask: ...
    @overload
    def assert_sent(self, task: Sender[..., Any], /) -> SentTask: ...
    @overload
    def assert_sent(self, task: Sender[P, Any], /, *args: P.args, **kwargs: P.kwargs) -> SentTask: ...
    def assert_sent(self, task: Sender[Any, Any] | str, /, *args: Any, **kwargs: Any) -> SentTask:
        """The first send of the task with these arguments; without arguments, its first send with any.

        The arguments are compared as the task gets them: after the codec, and with the defaults of those left out.
        """
        name = _name_of("assert_sent", task)
        found = self._found(name, None, None)
        if not args and not kwargs:
            if found:
                return found[0][0]
            raise AssertionError(f"task {name!r} was not sent.\n{self._overview()}")
        wanted = self._encoded(name, args, kwargs)
        compared = [(sent, differences(wanted, call)) for sent, call in found]
        for sent, lines in compared:
            if not lines:
                return sent
        asked = f"task {name!r} was not sent with these arguments:\n    {listed(wanted.arguments)}"
        if not compared:
            raise AssertionError(f"{asked}\n{self._overview()}")
        told = [f"It was sent {plural(len(compared), 'time')}:"]
        # the nearest first: it is most likely the one that was meant
        for at, (_, lines) in enumerate(sorted(compared, key=lambda one: len(one[1]))[:_SHOWN], 1):
            told += [f"  {at}. {lines[0]}", *(f"     {line}" for line in lines[1:])]
        if len(compared) > _SHOWN:
            told.append(f"  and {len(compared) - _SHOWN} more")
        raise AssertionError("\n".join([asked, *told]))

    def refute_sent(self, task: AnyTask) -> None:
        """Fail if the task was sent, with any arguments."""
        name = _name_of("refute_sent", task)
        if found := self._found(name, None, None):
            calls = [f"  {at}. {sent}" for at, (sent, _) in enumerate(found[:_SHOWN], 1)]
            more = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            raise AssertionError("\n".join([f"task {name!r} was sent {plural(len(found), 'time')}:", *calls, *more]))

    def assert_started(self, workflow: "AnyWorkflow") -> StartedWorkflow:
        """The first run of this workflow."""
        if found := self.started(workflow):
            return found[0]
        name = workflow if isinstance(workflow, str) else workflow.name
        raise AssertionError(f"workflow {name!r} was not started.\n{self._overview()}")

    @overload
    def assert_signalled(self, node: "SignalNode[Any] | str") -> SentSignal: ...
    @overload
    def assert_signalled(self, node: "SignalNode[T]", value: T) -> SentSignal: ...
    @overload
    def assert_signalled(self, node: str, value: Any) -> SentSignal: ...
    def assert_signalled(self, node: "AnySignal", value: Any = _ANY) -> SentSignal:
        """The first signal to this node of `wait_for_signal`, or by this name, with this value; without a value, the
        first with any. Values are compared as they are stored."""
        from horsies.workflow.signals import encode_signal

        name = _signal_name("assert_signalled", node)
        found = self.signalled(name)
        if value is _ANY:
            if found:
                return found[0]
            raise AssertionError(f"signal {name!r} was not sent.\n{self._overview()}")
        try:
            wanted = json.loads(encode_signal(node, value, None)[1])
        except HorsiesError as error:
            raise UsageError(f"assert_signalled: {error}") from error
        for sent in found:
            if sent.value == wanted:
                return sent
        lines = [f"signal {name!r} was not sent with {told(wanted)}."]
        lines += [f"  {at}. was sent with {told(sent.value)}" for at, sent in enumerate(found[:_SHOWN], 1)]
        lines += [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
        raise AssertionError("\n".join(lines if found else [*lines, self._overview()]))

    def refute_signalled(self, node: "AnySignal") -> None:
        """Fail if such a signal was sent, with any value."""
        name = _signal_name("refute_signalled", node)
        if found := self.signalled(name):
            values = [f"  {at}. {sent}" for at, sent in enumerate(found[:_SHOWN], 1)]
            more = [f"  and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            raise AssertionError("\n".join([f"signal {name!r} was sent {plural(len(found), 'time')}:", *values, *more]))

    def _found(
        self, task: AnyTask | None, queue: str | None, where: Callable[[SentTask], bool] | None
    ) -> list[tuple[SentTask, Call]]:
        name = None if task is None else _name_of("sent", task)
        with self._lock:
            kept = [found for task_id, found in self._tasks.items() if task_id not in self._uncommitted]
        return [
            (sent, call)
            for sent, call in kept
            if name in (None, sent.task_name) and queue in (None, sent.queue_name) and (where is None or where(sent))
        ]

    def _encoded(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        from horsies.codec import encode_untyped_call

        definition = self._app.registry.get(name)
        try:
            if definition is not None:
                encoded = definition.codec.encode_call(args, kwargs, limits=self._app.payload_limits)
            else:
                encoded = encode_untyped_call(args, kwargs, task_name=name, limits=self._app.payload_limits)
        except HorsiesError as error:
            raise UsageError(f"assert_sent: task {name!r} cannot be sent with these arguments: {error}") from error
        return read_call(definition, encoded.args_json, encoded.kwargs_json)

    def _overview(self) -> str:
        counts = Counter(f"task {sent.task_name!r}" for sent in self.sent())
        counts.update(f"workflow {run.name!r}" for run in self.started())
        counts.update(f"signal {sent.name!r}" for sent in self.signalled())
        told = ", ".join(f"{name}{f' ({count} times)' if count > 1 else ''}" for name, count in counts.items())
        told = f"Sent were: {told}." if counts else "Nothing was sent."
        if waiting := len(self._uncommitted):
            is_one = waiting == 1
            told += (
                f" {plural(waiting, 'send')} {'waits' if is_one else 'wait'} for a transaction that has not committed."
            )
        return told

    # -- for the modes ---------------------------------------------------------------------------

    def add(self, sent: SentTask, call: Call, *, is_committed: bool = True) -> None:
        with self._lock:
            self._tasks[sent.id] = (sent, call)
            if not is_committed:
                self._uncommitted.add(sent.id)

    def add_run(self, run: StartedWorkflow, *, is_committed: bool = True) -> None:
        with self._lock:
            self._runs[run.id] = run
            if not is_committed:
                self._uncommitted.add(run.id)

    def add_signal(self, sent: SentSignal, *, is_committed: bool = True) -> None:
        with self._lock:
            self._signals[sent.id] = sent
            if not is_committed:
                self._uncommitted.add(sent.id)

    def is_committed(self, sent_id: str) -> bool:
        with self._lock:
            return sent_id not in self._uncommitted

    def commit(self, sent_id: str) -> None:
        """The transaction of this send has committed: it counts from now on."""
        with self._lock:
            self._uncommitted.discard(sent_id)
            for kept in (self._tasks, self._runs, self._signals):
                if sent_id in kept:
                    kept[sent_id] = kept.pop(sent_id)  # pyright: ignore[reportArgumentType] # one of the three

    def remove(self, sent_id: str) -> None:
        """The transaction of this send was rolled back."""
        with self._lock:
            self._uncommitted.discard(sent_id)
            self._tasks.pop(sent_id, None)
            self._runs.pop(sent_id, None)
            self._signals.pop(sent_id, None)


def _name_of(verb: str, task: object) -> str:
    if isinstance(task, str):
        return task
    if isinstance(task, Sender):
        return task.name
    raise UsageError(f"{verb} takes a task or its name, not {shown(task)}")


def _signal_name(verb: str, node: object) -> str:
    from horsies.workflow.waits import SignalNode

    if isinstance(node, str):
        return node
    if isinstance(node, SignalNode):
        return node.signal_name
    raise UsageError(f"{verb} takes a node of wait_for_signal or the signal's name, not {shown(node)}")
