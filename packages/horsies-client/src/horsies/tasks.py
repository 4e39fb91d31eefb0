"""The verbs of a task: `send`, `schedule`, `send_many`, each with its `_async` twin, and `with_options`."""

from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, cast

from horsies._checks import Checks, shown
from horsies._hints import SENDER, missing
from horsies._loading import CODEC, load
from horsies.errors import ConfigurationError, HorsiesError
from horsies.handle import TaskHandle
from horsies.options import SendOptions, check_task_name
from horsies.result import TaskError, TaskResult
from horsies.send import Plan, SendErrorCode, TaskSendError, plan
from horsies.sending import Sending

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.codec import EncodedCall
    from horsies.registry import TaskDefinition
    from horsies.workflow.nodes import Join, Node, NodeBuilder

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Seconds = float
When = Seconds | timedelta | datetime


@dataclass(frozen=True, slots=True)
class TaskCall(Generic[T_co]):
    """The arguments of one call, for `send_many`; made by `task.call(...)`."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


CallLike = TaskCall[T] | tuple[Any, ...] | Mapping[str, Any]


class Sender(Generic[P, T]):
    """Sends one task with some options. `TaskFunction` is one with none."""

    def __init__(self, app: "Horsies", definition: "TaskDefinition", options: SendOptions) -> None:
        self._app = app
        self._definition = definition
        self._options = options
        self._settled: Plan | None = None

    @property
    def name(self) -> str:
        return self._definition.name

    @property
    def definition(self) -> "TaskDefinition":
        """For our siblings: what stands behind the name."""
        return self._definition

    @property
    def app(self) -> "Horsies":
        return self._app

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    if not TYPE_CHECKING:  # a type checker would take every name for known

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, SENDER, _called(self))

    def with_options(
        self,
        *,
        priority: int | None = None,
        queue_name: str | None = None,
        good_until: datetime | timedelta | None = None,
        delay: Seconds | timedelta | None = None,
        eta: datetime | None = None,
        unique_key: str | None = None,
        task_id: str | None = None,
        connection: Any = None,
    ) -> "Sender[P, T]":
        """The same task, sent differently.

        `unique_key`: while a task of this name with that key is not ended, another send returns its handle.
        `task_id`: an id of your own, to make a send that you may repeat. `connection`: your own connection or
        session; the task exists if and only if your transaction commits.
        """
        options = merged(self._options, priority=priority, queue_name=queue_name, good_until=good_until, delay=delay,
                         eta=eta, unique_key=unique_key, task_id=task_id, connection=connection)  # fmt: skip
        return Sender(self._app, self._definition, options)

    def send(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue one call. Raises `TaskSendError`; where that is `.retryable`, its `.retry()` is safe."""
        return self._sending(args, kwargs).send("send")

    async def send_async(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """See `send`."""
        return await self._sending(args, kwargs).send_async("send")

    def schedule(self, when: When, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue one call for later: in so many seconds, after a timedelta, or at an aware datetime.

        Seconds and timedeltas count on the database's clock.
        """
        return self._sending(args, kwargs, when).send("schedule")

    async def schedule_async(self, when: When, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """See `schedule`."""
        return await self._sending(args, kwargs, when).send_async("schedule")

    def call(self, *args: P.args, **kwargs: P.kwargs) -> TaskCall[T]:
        """The arguments of one call, type-checked, for `send_many`."""
        return TaskCall(args, kwargs)

    def send_many(self, calls: Iterable[CallLike[T]]) -> list[TaskHandle[T]]:
        """Enqueue many calls in one statement, all or none. A call is `task.call(...)`, a tuple of positional
        or a mapping of keyword arguments."""
        return self._sending_many(calls).send_many("send_many")

    async def send_many_async(self, calls: Iterable[CallLike[T]]) -> list[TaskHandle[T]]:
        """See `send_many`."""
        return await self._sending_many(calls).send_many_async("send_many")

    def node(
        self,
        *,
        node_id: str | None = None,
        waits_for: "Sequence[Node[Any]]" = (),
        args_from: "Mapping[str, Node[Any]] | None" = None,
        workflow_ctx_from: "Sequence[Node[Any]]" = (),
        join: "Join" = "all",
        min_success: int | None = None,
        allow_failed_deps: bool = False,
        queue_name: str | None = None,
        priority: int | None = None,
        good_until: datetime | timedelta | None = None,
        max_width: int | None = None,
    ) -> "NodeBuilder[P, T]":
        """A node of a workflow: `task.node(...)(arguments)`, or `.map(items)` for one call per item.

        `from_node(other)` among the arguments is the value that the other node returns. `args_from` does the same by
        name. `join`: run when all, any, or `min_success` (quorum) of the nodes that it waits for have completed.
        `allow_failed_deps`: run when all of them have ended, however. `good_until` as a timedelta counts from the
        moment that the node is enqueued.
        """
        from horsies.workflow.nodes import MAX_WIDTH, NodeBuilder

        options = {
            "node_id": node_id, "waits_for": tuple(waits_for), "workflow_ctx_from": tuple(workflow_ctx_from),
            "join": join, "min_success": min_success, "allow_failed_deps": allow_failed_deps,
            "queue_name": queue_name, "priority": priority, "good_until": good_until,
            "max_width": MAX_WIDTH if max_width is None else max_width,
        }  # fmt: skip
        return NodeBuilder(self, args_from, options)

    def _sending(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], when: When | None = None) -> Sending[T]:
        settled = self._plan() if when is None else self._plan_for(_later(self._options, when))
        try:
            call = self._definition.codec.encode_call(args, kwargs, limits=self._app.payload_limits)
        except HorsiesError as error:  # EncodeError; importing that name costs as much as the encoding
            raise _refused(str(error)) from error
        return self._prepared(settled, [call])

    def _sending_many(self, calls: Iterable[CallLike[T]]) -> Sending[T]:
        if self._options.task_id or self._options.unique_key:
            raise _refused(
                "send_many cannot give several tasks one task_id or unique_key: leave it out, or send them one by one"
            )
        encode, limits = self._definition.codec.encode_call, self._app.payload_limits
        encoded: list[EncodedCall] = []
        for at, call in enumerate(calls):
            args, kwargs = _unpack(call, at)
            try:
                encoded.append(encode(args, kwargs, limits=limits))
            except HorsiesError as error:
                raise _refused(f"send_many item {at}: {error}") from error
        return self._prepared(self._plan(), encoded)

    def _prepared(self, settled: Plan, calls: "list[EncodedCall]") -> Sending[T]:
        tasks, is_fresh = settled.tasks(calls), settled.task_id is None
        return Sending(self._app, self._definition, tasks, self._options.connection, is_fresh)

    def _plan(self) -> Plan:
        """Settled once, for it costs more than the statement's encoding; a deadline is looked at each time."""
        if self._settled is None or self._settled.good_until is not None:
            self._settled = self._plan_for(self._options)
        return self._settled

    def _plan_for(self, options: SendOptions) -> Plan:
        return plan(self._app, self._definition.name, self._definition, options)


class TaskFunction(Sender[P, T]):
    """A registered task. Calling it runs the function itself, here and now: for unit tests."""

    def __init__(self, app: "Horsies", definition: "TaskDefinition") -> None:
        super().__init__(app, definition, SendOptions())
        update_wrapper(self, definition.fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        return cast("TaskResult[T, TaskError]", self._definition.fn(*args, **kwargs))


class AsyncTaskFunction(Sender[P, T]):
    """A registered `async def` task. Awaiting a call of it runs the function itself, here and now."""

    def __init__(self, app: "Horsies", definition: "TaskDefinition") -> None:
        super().__init__(app, definition, SendOptions())
        update_wrapper(self, definition.fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TaskResult[T, TaskError]]:
        return cast("Coroutine[Any, Any, TaskResult[T, TaskError]]", self._definition.fn(*args, **kwargs))


class TaskStub(Sender[P, T]):
    """A declared task: this process can send it, only the worker has its body."""

    def __init__(self, app: "Horsies", definition: "TaskDefinition") -> None:
        super().__init__(app, definition, SendOptions())
        update_wrapper(cast("Any", self), definition.fn)


class NamedSender:
    """Sends tasks by name: the worker's code need not be importable here. `app.send` is one without options."""

    def __init__(self, app: "Horsies", options: SendOptions) -> None:
        self._app = app
        self._options = options

    def send(self, task_name: str, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Enqueue one call of the task with this name."""
        return self._sending(task_name, args, kwargs).send("send")

    async def send_async(self, task_name: str, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """See `send`."""
        return await self._sending(task_name, args, kwargs).send_async("send")

    def _sending(self, task_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sending[Any]:
        load("send", CODEC)
        from horsies.codec import EncodeError, encode_untyped_call

        limits = self._app.payload_limits
        checks = Checks("send")
        check_task_name(checks, "task_name", task_name)
        try:
            checks.finish()
            definition = self._app.registry.get(task_name)
            if definition is not None:
                call = definition.codec.encode_call(args, kwargs, limits=limits)
            else:
                call = encode_untyped_call(args, kwargs, task_name=task_name, limits=limits)
        except (EncodeError, ConfigurationError) as error:
            raise _refused(str(error)) from error
        settled = plan(self._app, task_name, definition, self._options)
        tasks, is_fresh = settled.tasks([call]), settled.task_id is None
        return Sending(self._app, definition, tasks, self._options.connection, is_fresh)


def _called(sender: "Sender[Any, Any]") -> str:
    definition = vars(sender).get("_definition")
    name = getattr(definition.fn, "__name__", "") if definition is not None else ""
    return name if name.isidentifier() else "task"


def merged(options: SendOptions, *, delay: Seconds | timedelta | None, **changes: Any) -> SendOptions:
    """Options with what was given changed; None leaves a value as it is."""
    given = {name: value for name, value in changes.items() if value is not None}
    if delay is not None:
        given["delay"] = delay if isinstance(delay, timedelta) else _seconds(delay)
    return replace(options, **given)


def _later(options: SendOptions, when: object) -> SendOptions:
    if isinstance(when, datetime):
        return replace(options, eta=when, delay=None)
    if isinstance(when, timedelta):
        return replace(options, delay=when, eta=None)
    return replace(options, delay=_seconds(when), eta=None)


def _seconds(value: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _refused(f"a delay is a number of seconds, a timedelta or a datetime, not {shown(value)}")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise _refused(f"a delay of {shown(value)} seconds is out of range") from None


def _unpack(call: object, at: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    if isinstance(call, TaskCall):
        made = cast("TaskCall[Any]", call)
        return made.args, made.kwargs
    if isinstance(call, tuple):
        return cast("tuple[Any, ...]", call), {}
    if isinstance(call, Mapping):
        return (), cast("Mapping[str, Any]", call)
    raise _refused(
        f"send_many item {at} is a {type(call).__name__}: give task.call(...), a tuple of positional arguments "
        "or a mapping of keyword arguments"
    )


def _refused(why: str) -> TaskSendError:
    return TaskSendError(SendErrorCode.VALIDATION_FAILED, why)
