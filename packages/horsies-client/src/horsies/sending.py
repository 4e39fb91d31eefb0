"""One send under way: the tasks, and the road they take (the app's pool, or the caller's connection)."""

from collections.abc import Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from horsies.errors import HorsiesError
from horsies.handle import TaskHandle
from horsies.send import NewTasks, SendErrorCode, TaskSendError

if TYPE_CHECKING:
    from horsies._pg.enqueue import Written
    from horsies.app import Horsies
    from horsies.registry import TaskDefinition
    from horsies.send import Resend

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sending(Generic[T]):
    """Prepared and validated; each verb may be called again, the ids stay the same."""

    app: "Horsies"
    definition: "TaskDefinition | None"
    tasks: NewTasks
    connection: Any

    # -- verbs -----------------------------------------------------------------------------------

    def send(self, verb: str) -> TaskHandle[T]:
        from horsies._pg import enqueue, foreign

        if self.connection is None:
            return self.app.run_sync(verb, lambda: self.send_async(verb))
        execute = foreign.require_sync(foreign.adapt(self.connection), verb)
        with self._telling(verb):
            return self._handle(enqueue.drive(enqueue.write_task(self.tasks, self.app.schema), execute))

    async def send_async(self, verb: str) -> TaskHandle[T]:
        from horsies._pg import enqueue, foreign

        tasks = self.tasks
        schema = self.app.schema
        with self._telling(verb):
            if self.connection is not None:
                execute = foreign.require_async(foreign.adapt(self.connection), verb)
                return self._handle(await enqueue.drive_async(enqueue.write_task(tasks, schema), execute))
            return self._handle(
                await self.app.database.here().run(
                    lambda connection: enqueue.drive_async(
                        enqueue.write_task(tasks, schema), lambda sql, values: connection.fetch(sql, *values)
                    )
                )
            )

    def send_many(self, verb: str, *, fresh: bool = True) -> list[TaskHandle[T]]:
        from horsies._pg import enqueue, foreign

        if not self.tasks.ids:
            return []
        if self.connection is None:
            return self.app.run_sync(verb, lambda: self.send_many_async(verb, fresh=fresh))
        execute = foreign.require_sync(foreign.adapt(self.connection), verb)
        with self._telling(verb):
            enqueue.drive(enqueue.write_batch(self.tasks, self.app.schema, fresh=fresh), execute)
        return self._handles()

    async def send_many_async(self, verb: str, *, fresh: bool = True) -> list[TaskHandle[T]]:
        from horsies._pg import enqueue, foreign

        if not self.tasks.ids:
            return []
        schema = self.app.schema

        async def write(connection: Any) -> None:
            nonlocal fresh
            script = enqueue.write_batch(self.tasks, schema, fresh=fresh)
            fresh = False  # should the answer get lost, it may have been a yes
            await enqueue.drive_async(script, lambda sql, values: connection.fetch(sql, *values))

        with self._telling(verb):
            if self.connection is not None:
                execute = foreign.require_async(foreign.adapt(self.connection), verb)
                await enqueue.drive_async(enqueue.write_batch(self.tasks, schema, fresh=fresh), execute)
            else:
                await self.app.database.here().run(write)
        return self._handles()

    # -- outcomes --------------------------------------------------------------------------------

    def _handle(self, written: "Written") -> TaskHandle[T]:
        return TaskHandle(self.app, written.task_id, definition=self.definition, is_duplicate=written.is_duplicate)

    def _handles(self) -> list[TaskHandle[T]]:
        return [TaskHandle(self.app, task_id, definition=self.definition) for task_id in self.tasks.ids]

    def _telling(self, verb: str) -> AbstractContextManager[None]:
        count = len(self.tasks.ids)
        what = f"task {self.tasks.plan.task_name!r}" if count == 1 else f"{count} tasks"
        return telling(self.app, what, self.tasks.ids, connection=self.connection, resend=_Resend(self, verb))


@contextmanager
def telling(app: "Horsies", what: str, ids: Sequence[str], *, connection: Any, resend: "Resend") -> Generator[None]:
    """Turn what the driver raises into what the caller is told; the driver's exception stays as the cause."""
    try:
        yield
    except HorsiesError:
        raise
    except Exception as error:
        from horsies._pg.transient import is_from_driver, is_transient

        spoken = getattr(error, "orig", None) or error  # SQLAlchemy's own text quotes all the parameters
        told = app.config.broker.redact(f"{type(spoken).__name__}: {spoken}")
        retryable = False
        if connection is not None:
            why = f"your connection refused the statement ({told}); roll your transaction back"
        elif is_transient(error):
            why = f"the database gave no answer ({told}); it may or may not be enqueued, .retry() is safe"
            retryable = True
        elif is_from_driver(error):
            why = f"the database refused it ({told})"
        else:
            raise  # a bug of ours: not the database's word
        raise TaskSendError(
            SendErrorCode.ENQUEUE_FAILED,
            f"{what}: {why}",
            retryable=retryable,
            task_ids=ids,
            resend=resend if retryable else None,
        ) from error


@dataclass(frozen=True, slots=True)
class _Resend:
    sending: Sending[Any]
    verb: str

    def send(self) -> Any:
        if self.verb == "send_many":
            return self.sending.send_many(self.verb, fresh=False)
        return self.sending.send(self.verb)

    async def send_async(self) -> Any:
        if self.verb == "send_many":
            return await self.sending.send_many_async(self.verb, fresh=False)
        return await self.sending.send_async(self.verb)
