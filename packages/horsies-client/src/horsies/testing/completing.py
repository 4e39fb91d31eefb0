"""`current_task().complete(...)` of tasks that the testing kit runs.

In `run` and `inline` no database is asked. Whether the transaction has committed is known from SQLAlchemy and Django
(`transactions.py`). For asyncpg and psycopg it is taken for committed when the task returns, and for rolled back when
it raises. On the database of `real`, the end is written as a worker's child writes it.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol

from horsies._pg import foreign
from horsies.completing import Claimant, TransactionCompleter, encode_value
from horsies.errors import UsageError
from horsies.testing.transactions import follow

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.context import TaskContext
    from horsies_worker.child.outcome import Outcome

_log: Final = logging.getLogger("horsies.testing")


class KitCompleter(Protocol):
    """Completes the attempts of one task at a time."""

    def complete(self, context: "TaskContext", connection: Any, value: object) -> None: ...
    async def complete_async(self, context: "TaskContext", connection: Any, value: object) -> None: ...

    def settle(self, context: "TaskContext", outcome: "Outcome") -> "Outcome":
        """The outcome to be recorded for an attempt that ended like this."""
        ...


class DrainCompleter(TransactionCompleter):
    """Writes the end to the database, on the task's own connection."""

    def __init__(self, app: "Horsies", claimant: Callable[[], Claimant]) -> None:
        super().__init__(app, claimant)

    def settle(self, context: "TaskContext", outcome: "Outcome") -> "Outcome":
        from horsies_worker.child.outcome import unless_completed

        settled = unless_completed(outcome, context.completion)
        settled.may_be_completed = context.completion is not None
        return settled


class InlineCompleter:
    """Keeps the end in memory, and follows the transaction in which the task called `complete()`."""

    def __init__(self, app: "Horsies") -> None:
        self._app = app
        self._is_committed: Callable[[Outcome], bool] | None = None

    def complete(self, context: "TaskContext", connection: Any, value: object) -> None:
        caller = foreign.adapt(connection)
        foreign.require_sync(caller, "complete")
        self._keep(context, caller, connection, value)

    async def complete_async(self, context: "TaskContext", connection: Any, value: object) -> None:
        caller = foreign.adapt(connection)
        foreign.require_async(caller, "complete")
        self._keep(context, caller, connection, value)

    def _keep(self, context: "TaskContext", caller: foreign.Foreign, connection: Any, value: object) -> None:
        text = encode_value(self._app, context, value)
        if self._is_committed is not None:
            raise UsageError(f"task {context.task_name!r}: complete() was called before: call it once")
        _require_transaction(context, caller, connection)
        committed: list[bool] = []

        def commit() -> None:
            committed.append(True)

        def roll_back() -> None:  # another call may follow in another transaction
            self._is_committed = None

        if not follow(caller, connection, commit, roll_back):
            self._is_committed = _has_returned
        elif caller.library == "Django":
            # inside a test's own transaction nothing commits: what would be called at its commit counts
            self._is_committed = lambda _: bool(committed) or any(one[1] is commit for one in connection.run_on_commit)
        else:
            self._is_committed = lambda _: bool(committed)
        context.completion = text

    def settle(self, context: "TaskContext", outcome: "Outcome") -> "Outcome":
        from horsies_worker.child.outcome import Outcome, OutcomeKind, unless_completed

        text, is_committed = context.completion, self._is_committed
        if text is None or is_committed is None or not is_committed(outcome):
            return unless_completed(outcome, text)
        if outcome.kind is not OutcomeKind.OK:
            _log.warning(
                "task %s (%s) completed itself and committed, and ended with %s after that: it stays COMPLETED",
                context.task_id, context.task_name, outcome.error_code,
            )  # fmt: skip
        return Outcome(OutcomeKind.OK, text, returned=outcome.returned)


def _has_returned(outcome: "Outcome") -> bool:
    return outcome.exception is None and outcome.error_code is None


def _require_transaction(context: "TaskContext", caller: foreign.Foreign, connection: Any) -> None:
    """Refuse a connection that commits each statement by itself, where its library says so without a statement."""
    if caller.library == "Django":
        is_open = connection.in_atomic_block or not connection.get_autocommit()
    elif caller.library == "asyncpg":
        is_open = connection.is_in_transaction()
    elif caller.library in ("psycopg", "psycopg2"):
        status = connection.info.transaction_status
        is_open = not connection.autocommit or int(status) != 0
    else:
        return
    if not is_open:
        raise UsageError(
            f"task {context.task_name!r}: complete() needs an open transaction, and your connection commits each "
            "statement by itself (autocommit)"
        )
