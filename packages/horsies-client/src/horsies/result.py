"""`TaskResult`, which a task returns and its caller gets, and `TaskError`, the error in it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar, cast

from horsies.errors import BUILT_IN_CODES, BuiltInCode, HorsiesError

T_co = TypeVar("T_co", covariant=True)
E_co = TypeVar("E_co", covariant=True)
D = TypeVar("D")


class TaskError:
    """The error of a task.

    `error_code` is a string of your own ("SMTP_DOWN"), or a built-in code, which is equal to its text and which no task
    can return. `data` is any JSON value. `retry_after_ms` replaces the policy's delay before the next attempt, within
    the policy's number of retries.
    """

    __match_args__ = ("error_code", "message", "data")
    __slots__ = ("data", "error_code", "message", "retry_after_ms")

    error_code: Final[str | BuiltInCode]
    message: Final[str]
    data: Final[Any]
    retry_after_ms: Final[int | None]

    def __init__(
        self,
        error_code: str | BuiltInCode,
        message: str = "",
        data: Any = None,
        *,
        retry_after_ms: int | None = None,
    ) -> None:
        if not isinstance(error_code, str) or not error_code:  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ValueError(f"TaskError.error_code must be a non-empty string, not {error_code!r}")
        if retry_after_ms is not None and retry_after_ms < 0:
            raise ValueError(f"TaskError.retry_after_ms must not be negative, got {retry_after_ms}")
        # A built-in code that was read from the database is the enum member again, so `is` works too.
        self.error_code = BUILT_IN_CODES.get(error_code, error_code)
        self.message = message
        self.data = data
        self.retry_after_ms = retry_after_ms

    def __repr__(self) -> str:
        parts = [repr(str(self.error_code)), repr(self.message)]
        if self.data is not None:
            parts.append(f"data={self.data!r}")
        if self.retry_after_ms is not None:
            parts.append(f"retry_after_ms={self.retry_after_ms}")
        return f"TaskError({', '.join(parts)})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskError):
            return NotImplemented
        return (self.error_code, self.message, self.data, self.retry_after_ms) == (
            other.error_code,
            other.message,
            other.data,
            other.retry_after_ms,
        )

    def __hash__(self) -> int:
        return hash((self.error_code, self.message))


class TaskFailed(HorsiesError):
    """Raised by `TaskResult.unwrap()`; the error is in `.error`."""

    def __init__(self, error: TaskError) -> None:
        self.error = error
        super().__init__(f"{error.error_code}: {error.message}" if error.message else str(error.error_code))


class _Unset(Enum):
    """The value of an err. A member of an enum is the same object again in a copy, and in another process."""

    UNSET = "unset"


_UNSET: Final = _Unset.UNSET


class TaskResult(Generic[T_co, E_co]):
    """Either `TaskResult(ok=value)` or `TaskResult(err=TaskError(...))`; never both, never neither.

    For `match`: `case TaskResult(ok=value, err=None)` and `case TaskResult(err=TaskError() as e)`.
    """

    __match_args__ = ("ok", "err")
    __slots__ = ("_err", "_ok")

    def __init__(self, *, ok: T_co = cast("Any", _UNSET), err: E_co | None = None) -> None:
        if (ok is _UNSET) == (err is None):
            raise ValueError("TaskResult takes exactly one of ok= and err=; a task without a value returns ok=None")
        self._ok = ok
        self._err = err

    def is_ok(self) -> bool:
        return self._err is None

    def is_err(self) -> bool:
        return self._err is not None

    @property
    def ok(self) -> T_co | None:
        """The value, or None when this is an err. `ok_value` tells the two apart."""
        return None if self._ok is _UNSET else self._ok

    @property
    def err(self) -> E_co | None:
        """The error, or None when this is ok."""
        return self._err

    @property
    def ok_value(self) -> T_co:
        """The value; raises ValueError when this is an err."""
        if self._ok is _UNSET:
            raise ValueError(f"this result is an err, it has no ok_value: {self._err!r}")
        return self._ok

    @property
    def err_value(self) -> E_co:
        """The error; raises ValueError when this is ok."""
        if self._err is None:
            raise ValueError("this result is ok, it has no err_value")
        return self._err

    def unwrap(self) -> T_co:
        """The value, or `TaskFailed` with the error in it."""
        if self._err is not None:
            _raise_failed(self._err)
        return self._ok

    def unwrap_or(self, default: D) -> T_co | D:
        """The value, or `default` when this is an err."""
        return default if self._ok is _UNSET else self._ok

    def __repr__(self) -> str:
        return f"TaskResult(ok={self._ok!r})" if self._err is None else f"TaskResult(err={self._err!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskResult):
            return NotImplemented
        theirs = cast("TaskResult[Any, Any]", other)
        return self._ok == theirs._ok and self._err == theirs._err

    def __hash__(self) -> int:
        return hash((self.is_ok(), self._err))


CONTINUES: Final = '{"continue":'
"""The beginning of the stored result of a task that continues as a workflow; no other result begins like this."""

NO_VALUE: Final = '{"ok":null}'
"""The stored result of a task that returned None. It is stored even with `store_result=False`."""


@dataclass(frozen=True)
class Continued(Generic[T_co]):
    """What a task stores that continues as a workflow, or why it cannot."""

    text: str
    refusal: str | None = None


class Continuable(Protocol[T_co]):
    """The part of a workflow that `Continue` needs."""

    def continued(self, wanted: Any, /) -> Continued[T_co]: ...


class Continue(TaskResult[T_co, TaskError]):
    """Returned by a task of a workflow in place of a value: this workflow goes on in the task's place, and its output
    is the task's value. For loops (`return Continue(poll(attempt + 1))`) and for graphs that depend on data.

    If the task is the output of its run and nothing else of the run is open, the run itself goes on with the new
    nodes, under the same id."""

    __slots__ = ("workflow",)

    def __init__(self, workflow: Continuable[T_co]) -> None:
        if not hasattr(workflow, "continued"):
            fix = "of a class, give .build() or .build_with(...)"
            raise TypeError(f"Continue takes a workflow, not {workflow!r:.60}: {fix}")
        super().__init__(ok=cast("Any", None))
        self.workflow = workflow

    def __repr__(self) -> str:
        return f"Continue({self.workflow!r})"


def _raise_failed(error: object) -> NoReturn:
    raise TaskFailed(error if isinstance(error, TaskError) else TaskError("UNHANDLED_EXCEPTION", repr(error)))
