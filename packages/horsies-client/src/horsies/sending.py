"""One send under way: the tasks, and the road they take (the app's pool, or the caller's connection)."""

from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from horsies._pg import enqueue, foreign
from horsies._pg.transient import Doubt, is_from_driver, is_transient, sqlstate
from horsies.errors import HorsiesError
from horsies.handle import TaskHandle
from horsies.send import NewTasks, SendErrorCode, TaskSendError

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.registry import TaskDefinition
    from horsies.send import Resend

R = TypeVar("R")
T = TypeVar("T")


class Cargo(Protocol):
    """What is to be written, as far as the road and the report of a failure need to know it."""

    @property
    def app(self) -> "Horsies": ...
    @property
    def connection(self) -> Any: ...
    @property
    def ids(self) -> Sequence[str]: ...
    @property
    def doubt(self) -> Doubt: ...
    def label(self) -> str: ...
    def resend(self, verb: str, /) -> "Resend": ...


def carry(cargo: Cargo, verb: str, write: enqueue.Write[R]) -> R:
    """Write it on the caller's synchronous connection."""
    road = foreign.adapt(cargo.connection)
    execute = foreign.require_sync(road, verb)
    try:
        if cargo.app.database.is_new_road(road.library):
            enqueue.at_once(_one_place, execute)
            cargo.app.database.trust_road(road.library)
        return enqueue.at_once(write, execute)
    except HorsiesError:
        raise
    except Exception as error:
        _tell(error, cargo, verb)
        raise


async def carry_async(cargo: Cargo, verb: str, write: enqueue.Write[R]) -> R:
    """Write it through the app's pool, or on the caller's asynchronous connection."""
    try:
        if cargo.connection is None:
            return await cargo.app.database.here().write(write, cargo.doubt)
        road = foreign.adapt(cargo.connection)
        execute = foreign.require_async(road, verb)
        if cargo.app.database.is_new_road(road.library):
            await _one_place(execute)
            cargo.app.database.trust_road(road.library)
        return await write(execute)
    except HorsiesError:
        raise
    except Exception as error:
        _tell(error, cargo, verb)
        raise


async def _one_place(execute: enqueue.ExecuteAsync) -> None:
    """The caller's role and search_path are not the app's: what is sent must not end up in another schema's tables.
    Where there are none at all, the statement itself fails."""
    from horsies._pg.schema_guard import require_one_place

    await require_one_place(execute, None, or_none=True)


def _tell(error: Exception, cargo: Cargo, verb: str) -> None:
    """Turn what the driver raised into what the caller is told; the driver's exception stays as the cause."""
    spoken = getattr(error, "orig", None) or error  # SQLAlchemy's own text quotes all the parameters
    told = cargo.app.config.broker.redact(f"{type(spoken).__name__}: {spoken}")
    retryable = False
    if cargo.connection is not None:
        if sqlstate(error) is not None:
            why = f"your connection refused the statement ({told}); it is not enqueued, roll your transaction back"
        else:
            why = f"your connection failed ({told}); it is enqueued only if your transaction was committed"
    elif is_transient(error) or is_from_driver(error):
        retryable = is_transient(error)
        known = "may or may not be" if cargo.doubt.may_be_done else "is not"
        why = f"{cargo.doubt.describe(told)}; it {known} enqueued{', .retry() is safe' if retryable else ''}"
    else:
        return  # a bug of ours: not the database's word
    raise TaskSendError(
        SendErrorCode.ENQUEUE_FAILED,
        f"{cargo.label()}: {why}",
        retryable=retryable,
        task_ids=cargo.ids,
        resend=cargo.resend(verb) if retryable else None,
    ) from error


@dataclass(slots=True)
class Sending(Generic[T]):
    """Prepared and validated; each verb may be called again, the ids stay the same."""

    app: "Horsies"
    definition: "TaskDefinition | None"
    tasks: NewTasks
    connection: Any
    is_fresh: bool
    """Whether the ids are new to everybody. Once a statement is out they are not: its answer may get lost, and may
    have been a yes."""
    doubt: Doubt = field(default_factory=Doubt)

    # -- verbs -----------------------------------------------------------------------------------

    def send(self, verb: str) -> TaskHandle[T]:
        if self.connection is None:
            return self.app.run_sync(verb, lambda: self.send_async(verb))
        return self._handle(carry(self, verb, self._one))

    async def send_async(self, verb: str) -> TaskHandle[T]:
        return self._handle(await carry_async(self, verb, self._one))

    def send_many(self, verb: str) -> list[TaskHandle[T]]:
        if not self.ids:
            return []
        if self.connection is None:
            return self.app.run_sync(verb, lambda: self.send_many_async(verb))
        carry(self, verb, self._all)
        return self._handles()

    async def send_many_async(self, verb: str) -> list[TaskHandle[T]]:
        if not self.ids:
            return []
        await carry_async(self, verb, self._all)
        return self._handles()

    # -- statements and outcomes -----------------------------------------------------------------

    def _one(self, execute: enqueue.ExecuteAsync) -> Coroutine[Any, Any, enqueue.Written]:
        fresh, self.is_fresh = self.is_fresh, False
        return enqueue.write_task(execute, self.tasks, self.app.schema, fresh=fresh)

    def _all(self, execute: enqueue.ExecuteAsync) -> Coroutine[Any, Any, None]:
        fresh, self.is_fresh = self.is_fresh, False
        return enqueue.write_batch(execute, self.tasks, self.app.schema, fresh=fresh)

    def _handle(self, written: enqueue.Written) -> TaskHandle[T]:
        return TaskHandle(self.app, written.task_id, definition=self.definition, is_duplicate=written.is_duplicate)

    def _handles(self) -> list[TaskHandle[T]]:
        return [TaskHandle(self.app, task_id, definition=self.definition) for task_id in self.ids]

    # -- as a cargo ------------------------------------------------------------------------------

    @property
    def ids(self) -> list[str]:
        return self.tasks.ids

    def label(self) -> str:
        return f"task {self.tasks.plan.task_name!r}" if len(self.ids) == 1 else f"{len(self.ids)} tasks"

    def resend(self, verb: str) -> "Resend":
        self.is_fresh = False  # several may take the offer
        return _Resend(self, verb)


@dataclass(frozen=True, slots=True)
class _Resend:
    sending: Sending[Any]
    verb: str

    def send(self) -> Any:
        if self.verb == "send_many":
            return self.sending.send_many(self.verb)
        return self.sending.send(self.verb)

    async def send_async(self) -> Any:
        if self.verb == "send_many":
            return await self.sending.send_many_async(self.verb)
        return await self.sending.send_async(self.verb)
