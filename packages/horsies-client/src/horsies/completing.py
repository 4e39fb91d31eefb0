"""`current_task().complete(...)`: ends an attempt on the task's own connection, inside its own transaction.

The function `horsies_complete_task` of revision 0024 writes the end, fenced on the worker and the claim's generation.
The transaction belongs to user code: nothing here commits, rolls back or retries. The worker finds out afterwards
whether it committed.
"""

import hashlib
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn

from horsies._pg import enqueue, foreign
from horsies._pg.statements import load
from horsies._pg.transient import sqlstate
from horsies.errors import ClaimLostError, OperationalErrorCode, UsageError
from horsies.payload_codec import PayloadError
from horsies.result import NO_VALUE, Continue, TaskError, TaskResult

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime
    from horsies.context import TaskContext

_ABSENT: Final = frozenset({"42883", "3F000"})
"""undefined_function, invalid_schema_name."""
_DENIED: Final = "42501"
_READ_ONLY: Final = "25006"


@dataclass(frozen=True, slots=True)
class Claimant:
    """The worker in whose name a child completes attempts."""

    worker_id: str
    key: str = field(repr=False)
    """Random; only the worker, its children and the owner of the tables know it."""
    clock_offset: float
    """From the monotonic clock of this machine to the database's clock, in seconds since 1970."""
    process_name: str = ""

    def token(self, task_id: str, generation: int) -> str:
        """Proves to the database that this worker runs the attempt; worth nothing for another attempt."""
        return hashlib.sha256(f"{task_id} {generation} {self.key}".encode()).hexdigest()


def encode_value(app: "AppRuntime", context: "TaskContext", value: object) -> str:
    """The JSON of the ok result. Raises ResultError for a value that does not fit the task's return type."""
    if isinstance(value, Continue):
        raise UsageError(f"task {context.task_name!r}: complete() ends the task, so it cannot continue as a workflow")
    if isinstance(value, TaskResult):
        raise UsageError(
            f"task {context.task_name!r}: complete() takes the value of an ok result, not a TaskResult. To fail, "
            "return TaskResult(err=...) without complete(), after your transaction has rolled back"
        )
    definition = app.registry.get(context.task_name)
    assert definition is not None, context.task_name
    result: TaskResult[object, TaskError] = TaskResult(ok=value)
    return definition.codec.encode_result(result, limits=app.payload_limits)


class TransactionCompleter:
    """A `Completer` that writes the end through the connection of user code."""

    def __init__(
        self,
        app: "AppRuntime",
        claimant: Callable[[], Claimant],
        announce: Callable[["TaskContext"], None] = lambda _: None,
    ) -> None:
        """`announce` is called before the end is written: from then on, the worker expects to find it."""
        self._app = app
        self._claimant = claimant
        self._announce = announce

    def complete(self, context: "TaskContext", connection: Any, value: object) -> None:
        execute = foreign.require_sync(foreign.adapt(connection), "complete")
        text = encode_value(self._app, context, value)
        stored = self._stored(context, text)
        with self._asked(context, text) as again:
            enqueue.at_once(partial(self._write, context, stored, again), execute)

    async def complete_async(self, context: "TaskContext", connection: Any, value: object) -> None:
        execute = foreign.require_async(foreign.adapt(connection), "complete")
        text = encode_value(self._app, context, value)
        stored = self._stored(context, text)
        with self._asked(context, text) as again:
            await self._write(context, stored, again, execute)

    def _stored(self, context: "TaskContext", text: str) -> str | None:
        """The result as its row keeps it; None: the value is not stored. Raises ResultError."""
        if not context.stores_result and text != NO_VALUE:
            return None
        try:
            return self._app.envelopes.wrap_result(text, context.task_name)
        except PayloadError as error:
            from horsies.codec.errors import Fault, Reason, ResultError

            fault = Fault((), Reason.UNSERIALIZABLE, f"it cannot be stored: {error}")
            raise ResultError(context.task_name, fault, OperationalErrorCode.WORKER_SERIALIZATION_ERROR) from None

    @contextmanager
    def _asked(self, context: "TaskContext", text: str) -> Generator[bool]:
        """Yield whether this attempt has called it before. An interrupted call (TaskStopped, CancelledError) counts:
        the server may have done its part, and user code may go on and commit."""
        before = context.completion
        self._announce(context)
        context.completion = text
        try:
            yield before is not None
        except Exception:
            context.completion = before
            raise

    async def _write(
        self, context: "TaskContext", stored: str | None, again: bool, execute: enqueue.ExecuteAsync
    ) -> None:
        statements = load("horsies._pg", "completing.sql", self._app.schema)
        claimant, task_id, generation = self._claimant(), context.task_id, context.fencing_token
        transaction_id = (await execute(statements["transaction_id"].sql))[0][0]
        finished = time.monotonic()
        values = (
            task_id, claimant.worker_id, generation, claimant.token(task_id, generation), transaction_id, stored,
            claimant.clock_offset + (context.started_mono or finished), claimant.clock_offset + finished, os.getpid(),
            claimant.process_name, again,
        )  # fmt: skip
        try:
            rows = await execute(statements["complete_in_transaction"].sql, *values)
        except Exception as error:
            _explain(context, error)
            raise
        outcome, state = rows[0][0], rows[0][1]
        if outcome != "COMPLETED":
            _refuse(context, outcome, state)


def _explain(context: "TaskContext", error: Exception) -> None:
    """Raise a clearer error where the database has no such function, or keeps it from this role. All other errors of
    the driver pass: it is the transaction of user code, which may know how to repeat it."""
    code = sqlstate(error)
    if code in _ABSENT:
        raise _elsewhere(context) from error
    if code == _DENIED:
        raise UsageError(
            f"task {context.task_name!r}: the role of your connection may not call horsies_complete_task: as the owner "
            "of the tables run what `horsies-migrate grants` prints, then GRANT horsies_producer to that role"
        ) from error
    if code == _READ_ONLY:
        raise UsageError(
            f"task {context.task_name!r}: complete() writes the end of the task, and the transaction on your "
            "connection is read-only: use one that may write, on the primary"
        ) from error


def _refuse(context: "TaskContext", outcome: str, state: str | None) -> NoReturn:
    name = f"task {context.task_name!r}"
    match outcome:
        case "NO_TRANSACTION":
            raise UsageError(
                f"{name}: complete() needs an open transaction, and your connection commits each statement by itself "
                "(autocommit): begin a transaction, write your rows in it, and call complete() before its commit"
            )
        case "UNKNOWN":
            raise _elsewhere(context)
        case "OPEN":
            raise UsageError(
                f"{name}: complete() was called before, and the transaction of that call is still open on another "
                "connection: end it first"
            )
        case "ENDED":
            raise UsageError(f"{name}: complete() was called before, and has completed this attempt: call it once")
        case _:
            now = f"the task is {state} now" if state is not None else "the task is gone"
            raise ClaimLostError(
                context.task_id,
                f"{name} {context.task_id}, attempt {context.attempt}: its claim is lost ({now}). Nothing was "
                "completed; roll your transaction back",
            )


def _elsewhere(context: "TaskContext") -> UsageError:
    return UsageError(
        f"task {context.task_name!r}: complete() found no task of this worker on your connection: it must lead to the "
        "database, and with PostgresConfig(schema=...) to the schema, in which the tasks are"
    )
