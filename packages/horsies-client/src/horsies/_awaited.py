"""What a sent task and a started workflow have in common for those who wait: an id, an end, and a result that is kept.

asyncio is imported where it is used: 30 ms of ssl, sockets and subprocesses that defining tasks need not pay.
"""

from abc import abstractmethod
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from horsies._checks import shown
from horsies._hints import HANDLE, missing
from horsies._loading import load_verbs
from horsies.errors import OperationalErrorCode, RetrievalCode
from horsies.ids import is_storable_id
from horsies.result import TaskError, TaskResult

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen, Waiters
    from horsies.app import Horsies

T_co = TypeVar("T_co", covariant=True)


class Awaited(Generic[T_co]):
    """The base of `TaskHandle` and `WorkflowHandle`."""

    __slots__ = ("_app", "_result")

    _kind: ClassVar[str]
    _not_found: ClassVar[RetrievalCode]
    _never: ClassVar[str]
    """How one comes to be missing that was never there."""

    # set by those below: a call of ours for each of ten thousand handles would be felt
    _app: "Horsies"
    _result: TaskResult[T_co, TaskError] | None

    if not TYPE_CHECKING:  # a type checker would take every name for known

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, HANDLE, "handle", id=f"{self._kind}_id")

    @property
    @abstractmethod
    def _id(self) -> str: ...

    @abstractmethod
    def _seen(self, waiters: "Waiters", *, at_once: bool) -> "Awaitable[Seen | None]":
        """Its row: when it has ended, or as it is now."""

    @abstractmethod
    def _decode(self, ended: "Seen") -> TaskResult[T_co, TaskError]: ...

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Awaited) and self._kind == other._kind and self._id == other._id

    def __hash__(self) -> int:
        return hash(self._id)

    def get(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """Wait for the end and return the result. Never raises for what the task, the run or the database did:
        a time-out is an err WAIT_TIMEOUT, also while a run is paused, and a lost database an err BROKER_ERROR.
        A final result is kept here."""
        load_verbs("get")
        from horsies.sync import refuse_on_a_loop

        refuse_on_a_loop("get")
        if self._result is not None:
            return self._result
        return self._app.run_sync("get", lambda: self.get_async(timeout_ms))

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """See `get`."""
        if self._result is not None:
            return self._result
        if timeout_ms is not None and timeout_ms < 0:
            raise ValueError(f"timeout_ms must not be negative, got {timeout_ms}")
        if not is_storable_id(self._id):
            return err(self._not_found, f"{shown(self._id)} cannot be the id of a {self._kind}")
        import asyncio

        waiters = self._app.database.here().waiters
        bound = asyncio.timeout(timeout_ms / 1000 if timeout_ms else None)
        try:
            async with bound:
                seen = await self._seen(waiters, at_once=timeout_ms == 0)
        except Exception as error:
            if not bound.expired():
                return self._broker_error(error)
            if waiters.last_error is not None:
                return self._broker_error(waiters.last_error)
            return self._not_ended(timeout_ms)
        if seen is None:
            return err(self._not_found, f"there is no {self._kind} {self._id}: {self._never}, or pruned since")
        if not seen.status.is_terminal:
            return self._not_ended(timeout_ms)
        self._result = self._decode(seen)
        return self._result

    def _not_ended(self, timeout_ms: int | None) -> TaskResult[Any, TaskError]:
        return err(RetrievalCode.WAIT_TIMEOUT, f"{self._kind} {self._id} has not ended within {timeout_ms} ms")

    def _broker_error(self, error: BaseException) -> TaskResult[Any, TaskError]:
        text = self._app.config.broker.redact(f"{type(error).__name__}: {error}")
        message = f"the result of {self._kind} {self._id} could not be read: {text}"
        return err(OperationalErrorCode.BROKER_ERROR, message)


def err(code: RetrievalCode | OperationalErrorCode, message: str) -> TaskResult[Any, TaskError]:
    return TaskResult(err=TaskError(code, message))
