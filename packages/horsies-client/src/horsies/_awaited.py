"""The base of `TaskHandle` and `WorkflowHandle`: an id, a wait for the end, and a result that is kept.

asyncio is imported where it is used: ssl, sockets and subprocesses take 30 ms, which defining tasks need not pay.
"""

import time
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from horsies._blocking import warn_of_wait
from horsies._checks import shown
from horsies._hints import HANDLE, known_options, missing
from horsies._loading import load_verbs
from horsies.errors import OperationalErrorCode, RetrievalCode
from horsies.ids import is_storable_id
from horsies.options import check_timeout
from horsies.result import TaskError, TaskResult
from horsies.status import TaskStatus

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen
    from horsies._runtime import AppRuntime
    from horsies.codec import TaskCodec

T_co = TypeVar("T_co", covariant=True)


class Awaited(Generic[T_co]):
    """Something that was sent, and whose result can be waited for."""

    __slots__ = ("_app", "_result")

    _is_workflow: ClassVar[bool] = False
    _not_found: ClassVar[RetrievalCode]

    # Subclasses set these without super().__init__(): the call would cost 10,000 handles a noticeable time.
    _app: "AppRuntime"
    _result: TaskResult[T_co, TaskError] | None

    if not TYPE_CHECKING:  # type checkers would accept every attribute

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, HANDLE, "handle", id=f"{self._kind}_id")

    @property
    @abstractmethod
    def _id(self) -> str: ...

    @abstractmethod
    def _decode(self, ended: "Seen") -> TaskResult[T_co, TaskError]: ...

    @property
    def _kind(self) -> str:
        return "workflow" if self._is_workflow else "task"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Awaited) and self._is_workflow == other._is_workflow and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    @known_options(timeout="timeout_ms=..., in milliseconds", propagate="result.unwrap(), which raises")
    def get(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """Wait for the end and return the result. Never raises for a failure of the task, the run or the database: a
        time-out is an err WAIT_TIMEOUT, also while a run is paused, and a lost or silent database an err BROKER_ERROR.
        The handle keeps a final result."""
        load_verbs("get")
        from horsies.sync import refuse_on_a_loop

        refuse_on_a_loop("get")
        check_timeout("get", timeout_ms)
        if self._result is not None:
            return self._result
        if self._app.stand_in is not None:
            return self._ended(self._app.stand_in.look(self._id, is_workflow=self._is_workflow), timeout_ms)
        self.warn_of_wait(timeout_ms)
        return self._app.run_sync("get", lambda: self.get_async(timeout_ms))

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """See `get`."""
        check_timeout("get", timeout_ms)
        if self._result is not None:
            return self._result
        if not is_storable_id(self._id):
            return err(self._not_found, f"{shown(self._id)} cannot be the id of a {self._kind}")
        if self._app.stand_in is not None:
            return self._ended(self._app.stand_in.look(self._id, is_workflow=self._is_workflow), timeout_ms)
        self.warn_of_wait(timeout_ms)
        import asyncio

        waiters = self._app.database.here().waiters
        began = time.monotonic()
        bound = asyncio.timeout(timeout_ms / 1000 if timeout_ms else None)
        try:
            async with bound:
                look = waiters.look if timeout_ms == 0 else waiters.wait
                seen = await look(self._id, is_workflow=self._is_workflow)
        except Exception as error:
            if not bound.expired():
                return self._broker_error(error)
            if waiters.last_error is not None:
                return self._broker_error(waiters.last_error)
            if waiters.has_read(self._id, since=began):
                return self._not_ended(timeout_ms)
            return self._not_read(timeout_ms, waiters.silent_ms())
        return await self._concluded(seen, timeout_ms)

    async def _concluded(self, seen: "Seen | None", timeout_ms: int | None) -> TaskResult[T_co, TaskError]:
        """The result of a wait; runs of some workflows have it in other rows."""
        return self._ended(seen, timeout_ms)

    def warn_of_wait(self, timeout_ms: int | None) -> None:
        """Log a warning when a task is about to wait for this result."""
        if self._result is None and timeout_ms != 0 and self._app.stand_in is None:
            warn_of_wait(f"{self._kind} {self._id}")

    @property
    def sent_id(self) -> str:
        """For `horsies.testing`: the id of the task, the run or the batch."""
        return self._id

    def keep(self, seen: "Seen") -> None:
        """For `horsies.testing`: keep the result that a stand-in has, which is gone with it."""
        result = self._ended(seen, 0)
        if seen.status.is_terminal:
            self._result = result

    def _ended(self, seen: "Seen | None", timeout_ms: int | None) -> TaskResult[T_co, TaskError]:
        if seen is None:
            verb = "started" if self._is_workflow else "sent"
            why = f"never {verb}, pruned since, or the transaction that {verb} it has not committed"
            return err(self._not_found, f"there is no {self._kind} {self._id}: {why}")
        if not seen.status.is_terminal:
            return self._not_ended(timeout_ms)
        result = self._decode(seen)
        # a run that failed may be retried, here or elsewhere
        if result.is_ok() or not self._is_workflow:
            self._result = result
        return result

    def _decoded(self, ended: "Seen", codec: "TaskCodec | None") -> TaskResult[Any, TaskError]:
        """The stored result by this codec, or as plain JSON data without one."""
        from horsies.codec import DecodeError, decode_untyped_result

        if ended.result is None:
            why = f"{self._kind} {self._id} is {ended.status} without a result"
            if not self._is_workflow and ended.status == TaskStatus.COMPLETED:
                why = f"task {self._id} has completed, and its value was not stored (store_result=False)"
            return err(RetrievalCode.RESULT_NOT_AVAILABLE, why)
        task = None if self._is_workflow else ended.task_name
        text = self._app.envelopes.unwrap_result(ended.result, task)
        try:
            if codec is None:
                return decode_untyped_result(text, task_name=ended.task_name)
            return codec.decode_result(text)
        except DecodeError as error:
            return err(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error))

    def _not_ended(self, timeout_ms: int | None) -> TaskResult[Any, TaskError]:
        # only a stand-in looks without a time-out: what has not ended there will not end
        within = "" if timeout_ms is None else f" within {timeout_ms} ms"
        return err(RetrievalCode.WAIT_TIMEOUT, f"{self._kind} {self._id} has not ended{within}")

    def _not_read(self, timeout_ms: int | None, silent_ms: int | None) -> TaskResult[Any, TaskError]:
        """The result of a wait that ended before the first answer of the database."""
        if silent_ms is not None:
            why = f"no answer from the database for {silent_ms} ms"
            return err(
                OperationalErrorCode.BROKER_ERROR, f"the result of {self._kind} {self._id} could not be read: {why}"
            )
        # shorter than a healthy database may take, so this is no sign of an outage
        told = f"{self._kind} {self._id} was not read within {timeout_ms} ms, and may have ended: wait longer"
        return err(RetrievalCode.WAIT_TIMEOUT, told)

    def _broker_error(self, error: BaseException) -> TaskResult[Any, TaskError]:
        from horsies._pg.refusals import and_remedy, worded

        text = self._app.config.broker.redact(worded(error) + and_remedy(error))
        message = f"the result of {self._kind} {self._id} could not be read: {text}"
        return err(OperationalErrorCode.BROKER_ERROR, message)


def err(code: RetrievalCode | OperationalErrorCode, message: str) -> TaskResult[Any, TaskError]:
    return TaskResult(err=TaskError(code, message))
