"""One send: write new tasks or a new workflow through the app's pool or on the caller's connection.

`tasks.py` and `workflow/start.py` prepare the rows, `_pg/enqueue.py` has the statements. When a send fails, its
`TaskSendError` says what is known about the rows, and can repeat the send with the same ids.
"""

from abc import abstractmethod
from collections.abc import Coroutine, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from horsies._checks import shown
from horsies._pg import enqueue, foreign
from horsies._pg.refusals import and_remedy, worded
from horsies._pg.schema_guard import remedy
from horsies._pg.transient import Doubt, is_from_driver, is_transient, sqlstate
from horsies.context import find_current_task
from horsies.errors import HorsiesError, SendErrorCode, TaskSendError
from horsies.handle import TaskHandle
from horsies.metadata import NOTHING, encode, inherited
from horsies.middleware import Outgoing, announce, tell_sent

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime
    from horsies.new_tasks import NewTasks
    from horsies.registry import TaskDefinition

_OBJECT_IS_MISSING = ("42P01", "42883")
"""undefined_table and undefined_function"""

H = TypeVar("H")
T = TypeVar("T")


def outgoing(
    app: "AppRuntime",
    name: str,
    ids: Sequence[str],
    defaults: Mapping[str, Any],
    given: Mapping[str, Any],
    *,
    queue_name: str | None,
    is_workflow: bool = False,
    schedule: str | None = None,
    groups: Sequence[str | None] | None = None,
) -> tuple[str | None, Outgoing | None]:
    """Call `on_send` of the app's middleware. Return the metadata of the rows as JSON, and what `on_sent` gets later;
    None without middleware."""
    middleware, task = app.config.middleware, find_current_task()
    if not (middleware or task or defaults or given):
        return None, None
    passed_on = inherited(task.metadata, app.config.propagate_metadata) if task is not None else NOTHING
    metadata = {**defaults, **passed_on, **given}
    announced: Outgoing | None = None
    if middleware:
        of_each = (None,) * len(ids) if groups is None else tuple(groups)
        announced = Outgoing(name, ids, queue_name, metadata, is_workflow, schedule, task, of_each)
        announce(middleware, announced)
        metadata = announced.metadata
    try:
        if not isinstance(metadata, dict):  # pyright: ignore[reportUnnecessaryIsInstance] # middleware is user code
            raise ValueError(f"must stay a dict, a middleware's on_send made it {shown(metadata)}")
        return encode(metadata), announced
    except ValueError as error:
        refusal = TaskSendError(SendErrorCode.VALIDATION_FAILED, f"send of {name!r}: metadata {error}")
        if announced is not None:
            tell_sent(middleware, announced, refusal)
        raise refusal from None


class Send(Generic[H]):
    """A send that is ready to go, and can be repeated: its ids stay the same. `verb` names the method of the caller."""

    __slots__ = ("app", "connection", "doubt", "ids", "outgoing", "verb")

    def __init__(self, app: "AppRuntime", verb: str, connection: Any, ids: Sequence[str]) -> None:
        self.outgoing: Outgoing | None = None
        """What the middleware's `on_sent` gets; None without middleware."""
        self.app = app
        self.verb = verb
        self.connection = connection
        self.ids = ids
        self.doubt = Doubt()

    @property
    @abstractmethod
    def label(self) -> str:
        """What is sent, for messages."""

    @abstractmethod
    def write(self, execute: enqueue.ExecuteAsync) -> Coroutine[Any, Any, Any]:
        """Write the rows."""

    @abstractmethod
    def handle(self, written: Any) -> H:
        """What the caller gets when `write` has returned this."""

    def send(self) -> H:
        """Send from synchronous code."""
        if self.connection is None and self.app.ambient is not None:
            self.connection = self.app.ambient.connection()
        if self.app.stand_in is not None:
            return self.app.stand_in.send(self)
        if self.outgoing is None:
            return self._send_blocking()
        with self._told(self.outgoing):
            return self._send_blocking()

    async def send_async(self) -> H:
        """Send from a coroutine."""
        if self.connection is None and self.app.ambient is not None:
            return await self.app.ambient.send_async(self)
        if self.app.stand_in is not None:
            return await self.app.stand_in.send_async(self)
        if self.outgoing is None:
            return await self._send_awaiting()
        with self._told(self.outgoing):
            return await self._send_awaiting()

    @contextmanager
    def _told(self, announced: Outgoing) -> Generator[None]:
        """Call the middleware's `on_sent` after this try of the send."""
        try:
            yield
        except BaseException as error:
            tell_sent(self.app.config.middleware, announced, error)
            raise
        tell_sent(self.app.config.middleware, announced, None)

    def _send_blocking(self) -> H:
        if self.connection is None:
            return self.app.run_sync(self.verb, self._send_awaiting)
        caller = foreign.adapt(self.connection)
        execute = foreign.require_sync(caller, self.verb)
        return enqueue.at_once(lambda answered: self._send(caller.library, answered), execute)

    async def _send_awaiting(self) -> H:
        if self.connection is None:
            return await self._send(None, None)
        caller = foreign.adapt(self.connection)
        return await self._send(caller.library, foreign.require_async(caller, self.verb))

    async def _send(self, library: str | None, execute: enqueue.ExecuteAsync | None) -> H:
        """Write on the caller's connection (`execute`, of this library), or through the app's pool."""
        database = self.app.database
        try:
            if library is None or execute is None:
                return self.handle(await database.here().write(self.write, self.doubt))
            if database.is_unchecked(library):
                await _require_one_place(execute)
                database.mark_checked(library)
            return self.handle(await self.write(execute))
        except HorsiesError:
            raise
        except Exception as error:
            if (failure := self._explain(error)) is None:
                raise
            raise failure from error

    def _explain(self, error: Exception) -> TaskSendError | None:
        """The error for the caller in place of the driver's; None for a bug of this library."""
        spoken = getattr(error, "orig", None) or error  # SQLAlchemy's own text quotes all the parameters
        told = self.app.config.broker.redact(worded(spoken))
        retryable = False
        if self.connection is not None:
            if sqlstate(error) is not None:
                why = f"your connection refused the statement ({told}); it is not enqueued, roll your transaction back"
                if sqlstate(error) in _OBJECT_IS_MISSING and "horsies_" in told:
                    why += f"; there are no or older horsies tables: {remedy(self.app.config.broker.schema)}"
            else:
                why = f"your connection failed ({told}); it is enqueued only if your transaction was committed"
        elif is_transient(error) or is_from_driver(error):
            # where the outcome is unknown, .retry() with the same ids is the only safe way to go on
            retryable = is_transient(error) or self.doubt.may_be_done
            known = "may or may not be" if self.doubt.may_be_done else "is not"
            why = f"{self.doubt.describe(told)}; it {known} enqueued{', .retry() is safe' if retryable else ''}"
            why += and_remedy(error)
        else:
            return None
        return TaskSendError(
            SendErrorCode.ENQUEUE_FAILED,
            f"{self.label}: {why}",
            retryable=retryable,
            task_ids=self.ids,
            resend=self if retryable else None,
        )


class TaskSend(Send[H]):
    """The part that a send of one task shares with a send of many."""

    __slots__ = ("_is_fresh", "definition", "tasks")

    def __init__(
        self,
        app: "AppRuntime",
        verb: str,
        definition: "TaskDefinition | None",
        tasks: "NewTasks",
        connection: Any,
    ) -> None:
        super().__init__(app, verb, connection, tasks.ids)
        plan = tasks.plan
        metadata, self.outgoing = outgoing(
            app, plan.task_name, tasks.ids, plan.default_metadata, plan.metadata, queue_name=plan.queue_name,
            groups=tasks.groups,
        )  # fmt: skip
        self.tasks = tasks if metadata is None else tasks._replace(metadata=metadata)
        self.definition = definition
        self._is_fresh = tasks.plan.task_id is None

    @property
    def label(self) -> str:
        return f"task {self.tasks.plan.task_name!r}" if len(self.ids) == 1 else f"{len(self.ids)} tasks"

    def take_fresh(self) -> bool:
        """True if no row can have these ids yet. Only the first statement may rely on it: its answer may be lost."""
        fresh, self._is_fresh = self._is_fresh, False
        return fresh

    def _explain(self, error: Exception) -> TaskSendError | None:
        self._is_fresh = False  # several threads may call .retry() of one error
        return super()._explain(error)


class SendOne(TaskSend[TaskHandle[T]]):
    """Sends one task."""

    __slots__ = ()

    def write(self, execute: enqueue.ExecuteAsync) -> Coroutine[Any, Any, enqueue.Written]:
        fresh, alone = self.take_fresh(), self.connection is None
        return enqueue.write_task(execute, self.tasks, self.app.schema, fresh=fresh, alone=alone)

    def handle(self, written: enqueue.Written) -> TaskHandle[T]:
        return TaskHandle(self.app, written.task_id, definition=self.definition, is_duplicate=written.is_duplicate)


class SendMany(TaskSend[list[TaskHandle[T]]]):
    """Sends many tasks, all or none."""

    __slots__ = ()

    def write(self, execute: enqueue.ExecuteAsync) -> Coroutine[Any, Any, None]:
        fresh, alone = self.take_fresh(), self.connection is None
        return enqueue.write_batch(execute, self.tasks, self.app.schema, fresh=fresh, alone=alone)

    def handle(self, written: None) -> list[TaskHandle[T]]:
        return [TaskHandle(self.app, task_id, definition=self.definition) for task_id in self.ids]


async def _require_one_place(execute: enqueue.ExecuteAsync) -> None:
    """The caller's role and search_path are not the app's: the rows must not end up in another schema's tables. Where
    there are no tables, the statement itself fails."""
    from horsies._pg.schema_guard import require_one_place

    await require_one_place(execute, None, or_none=True)
