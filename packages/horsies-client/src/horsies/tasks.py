"""The methods of a task: `send`, `schedule` and `send_many`, each with its `_async` twin, `with_options` and `node`.

They encode the call and resolve the options into `NewTasks` (`new_tasks.py`), which `send.py` writes.
"""

from abc import abstractmethod
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Final, Generic, ParamSpec, TypeVar, cast

from horsies._checks import Checks, a_type, shown
from horsies._hints import SENDER, known_options, missing
from horsies._loading import CODEC, load
from horsies.errors import ConfigurationError, HorsiesError, SendErrorCode, TaskSendError, UsageError
from horsies.groups import GroupError
from horsies.handle import TaskHandle
from horsies.new_tasks import NewTasks, Plan, plan
from horsies.options import SendOptions, check_name
from horsies.result import TaskError, TaskResult
from horsies.send import SendMany, SendOne

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime
    from horsies.codec import EncodedCall
    from horsies.registry import TaskDefinition
    from horsies.uniqueness import OnConflict
    from horsies.workflow.node_builder import NodeBuilder
    from horsies.workflow.nodes import Join, Node, Task as NodeTask

P = ParamSpec("P")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")

Seconds = float
When = Seconds | timedelta | datetime

_NO_OPTIONS = SendOptions()
_ARGUMENTS: Final = "send(...) takes the arguments of the task"


@dataclass(frozen=True, slots=True)
class TaskCall(Generic[T_co]):
    """The arguments of one call, for `send_many`; made by `task.call(...)`."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    task_name: str | None = None
    options: SendOptions = _NO_OPTIONS
    """Those of the sender that made it. `app.send_many` applies them; `send_many` of a task has its own for all."""


CallLike = TaskCall[T] | tuple[Any, ...] | Mapping[str, Any]


class WithOptions(Generic[S]):
    """Has the method `with_options`, which returns a sender of type S."""

    @abstractmethod
    def _changed(self, **changes: Any) -> S:
        """A sender with these options changed; None leaves an option as it is."""

    @known_options(_ARGUMENTS, countdown="delay=...", args="send(...)", kwargs="send(...)")
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
        metadata: Mapping[str, Any] | None = None,
        group: str | None = None,
        store_result: bool | None = None,
        keep_for: timedelta | None = None,
        unique_for: timedelta | None = None,
        unique_by_args: bool | None = None,
        debounce: timedelta | None = None,
        max_wait: timedelta | None = None,
        on_conflict: "OnConflict | None" = None,
    ) -> S:
        """A sender of the same task, or for `app.send` of any task, with these options.

        `unique_key`: while a task of this name with that key has not ended, another send returns its handle.
        `task_id`: an id of your own, for a send that you may repeat: a UUID in its canonical form, such as
        `str(uuid.uuid5(namespace, key))`. `connection`: your own connection or session; the task exists if and only if
        your transaction commits. `metadata`: small JSON values beside the arguments, such as the tenant; the task finds
        them in `current_task().metadata`. `group`: a text of up to 255 characters, such as the tenant's id: the queue's
        `GroupPolicy` limits each group, and lets groups take turns. It wins over the `group_by` of the task.
        `store_result=False`: the value that the task returns is not stored. `keep_for`: how long the ended task stays
        in the database; it overrides the retention.

        What further sends of the key do: `unique_for`: the key stays taken for so long after the send, also when the
        task has ended. `on_conflict="replace"`: a task that has not started takes the new arguments and options.
        `debounce`: it also starts so long after the last send, at most `max_wait` after the first. `unique_by_args`:
        the arguments are the key.
        """
        return self._changed(priority=priority, queue_name=queue_name, good_until=good_until, delay=delay, eta=eta,
                             unique_key=unique_key, task_id=task_id, connection=connection,
                             metadata=metadata, group=group, store_result=store_result, keep_for=keep_for,
                             unique_for=unique_for, unique_by_args=unique_by_args,
                             debounce=debounce, max_wait=max_wait, on_conflict=on_conflict)  # fmt: skip


class Sender(WithOptions["Sender[P, T]"], Generic[P, T]):
    """Sends one task with some options; a `TaskFunction` sends it without."""

    def __init__(self, app: "AppRuntime", definition: "TaskDefinition", options: SendOptions) -> None:
        self._app = app
        self._definition = definition
        self._options = options
        self._plan: Plan | None = None

    @property
    def name(self) -> str:
        return self._definition.name

    @property
    def definition(self) -> "TaskDefinition":
        """The registered task; for the other horsies packages."""
        return self._definition

    @property
    def app(self) -> "AppRuntime":
        return self._app

    @property
    def has_options(self) -> bool:
        """True for a sender that `with_options` has made."""
        return self._options != _NO_OPTIONS

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, SENDER, _function_name(self))

    def _changed(self, **changes: Any) -> "Sender[P, T]":
        return Sender(self._app, self._definition, changed(self._options, **changes))

    def send(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue one call. Raises `TaskSendError`; where that is `.retryable`, its `.retry()` is safe."""
        return self._send_one("send", self._current_plan(), args, kwargs).send()

    async def send_async(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """See `send`."""
        return await self._send_one("send", self._current_plan(), args, kwargs).send_async()

    def schedule(self, when: When, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """Enqueue one call for later: after a number of seconds, after a timedelta, or at an aware datetime.

        Seconds and timedeltas count on the database's clock.
        """
        return self._send_one("schedule", self._plan_for(_later(self._options, when)), args, kwargs).send()

    async def schedule_async(self, when: When, /, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T]:
        """See `schedule`."""
        return await self._send_one("schedule", self._plan_for(_later(self._options, when)), args, kwargs).send_async()

    def call(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskCall[T]:
        """The arguments of one call, type-checked, for `send_many`, `app.send_many` and `app.batch`."""
        return TaskCall(args, kwargs, self._definition.name, self._options)

    def send_many(self, calls: Iterable[CallLike[T]]) -> list[TaskHandle[T]]:
        """Enqueue many calls in one statement, all or none. A call is `task.call(...)`, a tuple of positional
        or a mapping of keyword arguments."""
        tasks = self._encode_many(calls)
        return self._send_many(tasks).send() if tasks.ids else []

    async def send_many_async(self, calls: Iterable[CallLike[T]]) -> list[TaskHandle[T]]:
        """See `send_many`."""
        tasks = self._encode_many(calls)
        return await self._send_many(tasks).send_async() if tasks.ids else []

    @known_options()
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
        group: str | None = None,
        max_width: int | None = None,
        when: "Node[bool] | None" = None,
        unless: "Node[bool] | None" = None,
        compensate: "NodeTask[Concatenate[T, ...], Any] | None" = None,
    ) -> "NodeBuilder[P, T]":
        """A node of a workflow: `task.node(...)(arguments)`, or `.map(items)` for one call per item.

        `from_node(other)` among the arguments is the value that the other node returns; `args_from` passes it by
        parameter name. `join`: run when all, any, or `min_success` (quorum) of the nodes that it waits for have
        completed. `allow_failed_deps`: run when all of them have ended, completed or not. `good_until` as a timedelta
        counts from the moment at which the node is enqueued. `group`: the group of its task, for a map of every item's.
        Without it, the task's `group_by` decides where it can at the start of the run, from arguments that no other
        node provides; otherwise the node has the group of its run.

        `when`, `unless`: run only if that node returns True, or False; otherwise the node is skipped as not taken, and
        its edge leaves the joins of the nodes behind it. `compensate`: the task that undoes this one if the run fails
        or is cancelled later. Its first parameter takes the node's value, its others the node's arguments of the same
        names. On a map it undoes each item.
        """
        from horsies.workflow.node_builder import NodeBuilder
        from horsies.workflow.nodes import MAX_WIDTH, listed

        options = {
            "node_id": node_id, "waits_for": listed(waits_for) or waits_for,
            "workflow_ctx_from": listed(workflow_ctx_from) or workflow_ctx_from,
            "join": join, "min_success": min_success, "allow_failed_deps": allow_failed_deps,
            "queue_name": queue_name, "priority": priority, "good_until": good_until, "group": group,
            "max_width": MAX_WIDTH if max_width is None else max_width,
            "when": when, "unless": unless, "compensate": compensate,
        }  # fmt: skip
        return NodeBuilder(self, args_from, options)

    def _send_one(self, verb: str, plan: Plan, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SendOne[T]:
        try:
            call = self._definition.codec.encode_call(args, kwargs, limits=self._app.payload_limits)
            group = plan.group_of(args, kwargs)
        except HorsiesError as error:  # an EncodeError; importing that name costs as much as the encoding
            raise _invalid(str(error)) from error
        tasks = plan.tasks([call], None if group is None else [group], plan.key_of(self._definition, call))
        return SendOne(self._app, verb, self._definition, tasks, self._options.connection)

    def _send_many(self, tasks: NewTasks) -> SendMany[T]:
        return SendMany(self._app, "send_many", self._definition, tasks, self._options.connection)

    def _encode_many(self, calls: Iterable[CallLike[T]]) -> NewTasks:
        if self._options.task_id or self._options.unique_key:
            raise _invalid(
                "send_many cannot give several tasks one task_id or unique_key: leave it out, or give each call its "
                "own: app.send_many([task.with_options(unique_key=...).call(...), ...])"
            )
        if not isinstance(calls, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise _invalid(
                f"send_many takes several calls, not {a_type(calls)}: give a list of calls: [task.call(...)]"
            )
        encode, limits = self._definition.codec.encode_call, self._app.payload_limits
        plan = self._current_plan()
        if plan.by_args or plan.unique is not None:
            raise _invalid(
                f"send_many of task {self.name!r}: a call with unique_by_args, unique_for, debounce or on_conflict is "
                "sent by itself: send them one by one"
            )
        encoded: list[EncodedCall] = []
        groups: list[str | None] = []
        for at, call in enumerate(calls):
            args, kwargs = self._unpack(call, at)
            try:
                encoded.append(encode(args, kwargs, limits=limits))
                groups.append(plan.group_of(args, kwargs))
            except HorsiesError as error:
                raise _invalid(f"send_many item {at}: {error}") from error
        return plan.tasks(encoded, groups if any(groups) else None)

    def _unpack(self, call: object, at: int) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
        if isinstance(call, TaskCall):
            made = cast("TaskCall[Any]", call)
            if made.task_name not in (None, self.name):
                raise _invalid(
                    f"send_many item {at} is a call of task {made.task_name!r}, and this is the send_many of "
                    f"{self.name!r}: write app.send_many([...]), which takes calls of several tasks"
                )
            if made.options not in (_NO_OPTIONS, self._options):
                raise _invalid(
                    f"send_many item {at} was made by with_options(...), and this send_many has one set of options for "
                    "all: write app.send_many([...]), which takes each call with its own"
                )
            return made.args, made.kwargs
        if isinstance(call, tuple):
            return cast("tuple[Any, ...]", call), {}
        if isinstance(call, Mapping):
            return (), cast("Mapping[str, Any]", call)
        raise _invalid(
            f"send_many item {at} is {a_type(call)}: give task.call(...), a tuple of positional arguments "
            "or a mapping of keyword arguments"
        )

    def _current_plan(self) -> Plan:
        """Computed once, because it costs more than the encoding of a call; a deadline is checked at each send."""
        if self._plan is None or self._plan.good_until is not None:
            self._plan = self._plan_for(self._options)
        return self._plan

    def _plan_for(self, options: SendOptions) -> Plan:
        return plan(self._app.config, self._definition.name, self._definition, options)


class Registered(Sender[P, T]):
    """A sender with the name, the docstring and the signature of the task's function."""

    def __init__(self, app: "AppRuntime", definition: "TaskDefinition") -> None:
        super().__init__(app, definition, SendOptions())
        update_wrapper(cast("Any", self), definition.fn)


class TaskFunction(Registered[P, T]):
    """A registered task. Calling it runs the function itself in this process, for unit tests."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskResult[T, TaskError]:
        return cast("TaskResult[T, TaskError]", self._definition.fn(*args, **kwargs))


class AsyncTaskFunction(Registered[P, T]):
    """A registered `async def` task. Awaiting a call runs the function itself in this process, for unit tests."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, TaskResult[T, TaskError]]:
        return cast("Coroutine[Any, Any, TaskResult[T, TaskError]]", self._definition.fn(*args, **kwargs))


class TaskStub(Registered[P, T]):
    """A declared task: this process can send it, only the worker has its body."""


class NamedSender:
    """Sends tasks by name: the worker's code need not be importable here. `app.send` uses one without options."""

    def __init__(self, app: "AppRuntime", options: SendOptions) -> None:
        self._app = app
        self._options = options

    def send(self, task_name: str, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """Enqueue one call of the task with this name."""
        return self._send_one(task_name, args, kwargs).send()

    async def send_async(self, task_name: str, /, *args: Any, **kwargs: Any) -> TaskHandle[Any]:
        """See `send`."""
        return await self._send_one(task_name, args, kwargs).send_async()

    def _send_one(self, task_name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> SendOne[Any]:
        load("send", CODEC)
        from horsies.codec import EncodeError, encode_untyped_call

        limits = self._app.payload_limits
        checks = Checks("send")
        check_name(checks, "task_name", task_name, is_sent=True)
        try:
            checks.finish()
            definition = self._app.registry.get(task_name)
            if definition is not None:
                call = definition.codec.encode_call(args, kwargs, limits=limits)
            else:
                call = encode_untyped_call(args, kwargs, task_name=task_name, limits=limits)
            made = plan(self._app.config, task_name, definition, self._options)
            group = made.group_of(args, kwargs)
        except (EncodeError, ConfigurationError, GroupError) as error:
            raise _invalid(str(error)) from error
        tasks = made.tasks([call], None if group is None else [group], made.key_of(definition, call))
        return SendOne(self._app, "send", definition, tasks, self._options.connection)


def _function_name(sender: "Sender[Any, Any]") -> str:
    definition = vars(sender).get("_definition")
    name = getattr(definition.fn, "__name__", "") if definition is not None else ""
    return name if name.isidentifier() else "task"


def changed(options: SendOptions, *, delay: Seconds | timedelta | None, **changes: Any) -> SendOptions:
    """The options with these changes; None leaves an option as it is."""
    given = {name: value for name, value in changes.items() if value is not None}
    if delay is not None:
        given["delay"] = delay if isinstance(delay, timedelta) else _seconds(delay)
    return replace(options, **given)


def _later(options: SendOptions, when: object) -> SendOptions:
    if given := [name for name in ("delay", "eta") if getattr(options, name) is not None]:
        raise UsageError(
            f"schedule(...) says when the task may start, and so does with_options({given[0]}=...): leave that out, or "
            "use send(...)"
        )
    if isinstance(when, datetime):
        return replace(options, eta=when)
    return replace(options, delay=when if isinstance(when, timedelta) else _seconds(when))


def _seconds(value: object) -> timedelta:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _invalid(f"a delay is a number of seconds, a timedelta or a datetime, not {shown(value)}")
    try:
        return timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise _invalid(f"a delay of {shown(value)} seconds is out of range") from None


def _invalid(why: str) -> TaskSendError:
    return TaskSendError(SendErrorCode.VALIDATION_FAILED, why)
