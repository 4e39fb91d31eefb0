"""`app.send_many`: calls of several tasks, each with options of its own, in one statement, all or none.

Calls of one task and one set of options are a kind: its options are checked once, its columns are sent once, and
middleware sees it as one send of many tasks.
"""

from collections.abc import Coroutine, Generator, Iterable, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from horsies._checks import Checks, a_type
from horsies._loading import CODEC, load
from horsies._pg import enqueue
from horsies._runtime import AppRuntime
from horsies._text import plural, short
from horsies.errors import ConfigurationError, HorsiesError, SendErrorCode, TaskSendError
from horsies.handle import TaskHandle
from horsies.ids import new_ids
from horsies.middleware import Outgoing, tell_sent
from horsies.new_tasks import NewTasks, Plan, sender_plan
from horsies.send import Send, outgoing
from horsies.tasks import TaskCall

if TYPE_CHECKING:
    from horsies.codec import EncodedCall
    from horsies.registry import TaskDefinition

T = TypeVar("T")


class _Kind:
    """Calls of one task and one set of options, by their places in the list."""

    __slots__ = ("calls", "definition", "groups", "options", "places", "plan")

    def __init__(self, definition: "TaskDefinition", plan: Plan, options: object) -> None:
        self.definition = definition
        self.plan = plan
        self.options = options  # kept, so that no others get their id
        self.places: list[int] = []
        self.calls: list[EncodedCall] = []
        self.groups: list[str | None] = []


class SendCalls(Send[list[TaskHandle[Any]]]):
    """Sends calls of several tasks."""

    __slots__ = ("_count", "_definitions", "_outgoing", "parts")

    def __init__(self, app: AppRuntime, verb: str, calls: object, connection: Any) -> None:
        kinds = _gathered(app, calls)
        self._count = sum(len(kind.places) for kind in kinds)
        ids = new_ids(self._count)
        for kind in kinds:
            if kind.plan.task_id is not None:
                ids[kind.places[0]] = kind.plan.task_id
        super().__init__(app, verb, connection, ids)
        self.parts: list[tuple[list[int], NewTasks]] = []
        """The tasks of each kind, and their places in the list. Also for `horsies.testing`."""
        self._definitions: list[TaskDefinition | None] = [None] * self._count
        self._outgoing: list[Outgoing] = []
        try:
            for kind in kinds:
                self._add(kind, ids)
        except BaseException as error:
            self._tell(error)  # those whose on_send was called
            raise

    def _add(self, kind: _Kind, ids: Sequence[str]) -> None:
        plan = kind.plan
        groups = kind.groups if any(kind.groups) else None
        tasks = plan.tasks(kind.calls, groups, plan.unique_key, [ids[place] for place in kind.places])
        metadata, announced = outgoing(
            self.app, plan.task_name, tasks.ids, plan.default_metadata, plan.metadata, queue_name=plan.queue_name,
            groups=tasks.groups,
        )  # fmt: skip
        if announced is not None:
            self._outgoing.append(announced)
        self.parts.append((kind.places, tasks if metadata is None else tasks._replace(metadata=metadata)))
        for place in kind.places:
            self._definitions[place] = kind.definition

    @property
    def label(self) -> str:
        return f"send_many of {plural(self._count, 'task')}"

    def write(self, execute: enqueue.ExecuteAsync) -> Coroutine[Any, Any, dict[int, str]]:
        return enqueue.write_calls(execute, self._columns(), self.app.schema)

    def handle(self, written: dict[int, str]) -> list[TaskHandle[Any]]:
        """`written`: the calls whose unique key is held, and the id of the task that holds it."""
        app, held = self.app, written
        return [
            TaskHandle(app, held.get(place, task_id), definition=definition, is_duplicate=place in held)
            for place, (task_id, definition) in enumerate(zip(self.ids, self._definitions, strict=True))
        ]

    def send(self) -> list[TaskHandle[Any]]:
        with self._all_told():
            return super().send()

    async def send_async(self) -> list[TaskHandle[Any]]:
        """See `send`."""
        with self._all_told():
            return await super().send_async()

    @contextmanager
    def _all_told(self) -> Generator[None]:
        """Call the middleware's `on_sent` for each kind after this try of the send."""
        try:
            yield
        except BaseException as error:
            self._tell(error)
            raise
        self._tell(None)

    def _tell(self, error: BaseException | None) -> None:
        for announced in self._outgoing:
            tell_sent(self.app.config.middleware, announced, error)

    def _columns(self) -> enqueue.Calls:
        """The calls in the order of the list."""
        count = self._count
        of_kind, args, kwargs = [1] * count, list[str | None]([None]) * count, list[str | None]([None]) * count
        shas, groups = [""] * count, list[str | None]([None]) * count
        for number, (places, tasks) in enumerate(self.parts, 1):
            for at, place in enumerate(places):
                of_kind[place] = number
                args[place], kwargs[place], shas[place] = tasks.args[at], tasks.kwargs[at], tasks.shas[at]
                if tasks.groups is not None:
                    groups[place] = tasks.groups[at]
        kinds = [tasks.plan.kind(tasks.metadata, tasks.unique_key) for _, tasks in self.parts]
        sent_at = self.parts[0][1].sent_at if self.parts else datetime.now(UTC)
        return enqueue.Calls(
            kinds, of_kind, list(self.ids), args, kwargs, shas, groups if any(groups) else None, sent_at
        )


def _gathered(app: AppRuntime, calls: object) -> list[_Kind]:
    """Check and encode the calls."""
    if not isinstance(calls, Iterable) or isinstance(calls, str | bytes | TaskCall):
        raise _invalid(f"takes several calls, not {a_type(calls)}: give a list: [task.call(...), ...]")
    kinds: dict[tuple[str, int], _Kind] = {}
    limits = app.payload_limits
    for at, call in enumerate(cast("Iterable[object]", calls)):
        if not isinstance(call, TaskCall):
            raise _invalid(f"item {at} is {a_type(call)}, not a call: write task.call(...)")
        made = cast("TaskCall[Any]", call)
        key = (made.task_name or "", id(made.options))
        if (kind := kinds.get(key)) is None:
            kind = kinds[key] = _kind(app, at, made)
        elif kind.plan.task_id is not None:
            raise _invalid(
                f"item {at} has the task_id of item {kind.places[0]}: leave it out, or give each call an id of its own"
            )
        try:
            kind.calls.append(kind.definition.codec.encode_call(made.args, made.kwargs, limits=limits))
            kind.groups.append(kind.plan.group_of(made.args, made.kwargs))
        except HorsiesError as error:
            raise _invalid(f"item {at}: {error}") from error
        kind.places.append(at)
    return list(kinds.values())


def _kind(app: AppRuntime, at: int, call: TaskCall[Any]) -> _Kind:
    name, options = call.task_name, call.options
    definition = None if name is None else app.registry.get(name)
    if name is None or definition is None:
        why = "names no task" if name is None else f"is a call of task {short(name)!r}, which this app does not have"
        raise _invalid(f"item {at} {why}: write task.call(...) with a task of this app")
    if options.connection is not None:
        raise _invalid(
            f"item {at} was made by with_options(connection=...), and all calls are written by one statement: "
            "write app.send_many([...], connection=...)"
        )
    checks = Checks(f"item {at}")
    plan = sender_plan(app.config, name, definition, options, checks)
    if plan is None:
        raise _invalid(f"cannot be sent: {ConfigurationError(checks.problems, subject=checks.subject)}")
    if plan.by_args or plan.unique is not None:
        raise _invalid(
            f"item {at}: a call with unique_by_args, unique_for, debounce or on_conflict is sent by itself: use send"
        )
    return _Kind(definition, plan, options)


def _invalid(why: str) -> TaskSendError:
    return TaskSendError(SendErrorCode.VALIDATION_FAILED, f"send_many {why}")


class SendingMany(AppRuntime):
    """The part of an app that sends calls of several tasks."""

    def send_many(self, calls: Iterable[TaskCall[T]], *, connection: Any = None) -> list[TaskHandle[T]]:
        """Enqueue calls of one task or of several in one statement, all or none:
        `app.send_many([resize.call(1), mail.with_options(priority=5).call("a@b")])`. Each call has the options of the
        sender that made it. The handles are in the order of the calls. A call whose `unique_key` a live task holds
        gives the handle of that task, with `is_duplicate`. `connection`: your own connection or session; the tasks
        exist if and only if your transaction commits. Raises `TaskSendError`."""
        made = self._send_calls("send_many", calls, connection)
        return made.send() if made.ids else []

    async def send_many_async(self, calls: Iterable[TaskCall[T]], *, connection: Any = None) -> list[TaskHandle[T]]:
        """See `send_many`."""
        made = self._send_calls("send_many_async", calls, connection)
        return await made.send_async() if made.ids else []

    def _send_calls(self, verb: str, calls: object, connection: Any) -> SendCalls:
        load(verb, CODEC)
        return SendCalls(self, verb, calls, connection)
