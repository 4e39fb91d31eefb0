# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""Sends inside `transaction.atomic` are written on Django's own connection: they exist if the block commits.

Outside of a transaction a send goes through the app's pool and is committed at once. A transaction of another database
cannot contain the task, and a send inside of one is refused.
"""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Final, TypeVar

from asgiref.sync import sync_to_async
from django.core import mail
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from horsies.contrib.django.connections import is_on_a_loop
from horsies.errors import UsageError

if TYPE_CHECKING:
    from horsies.contrib.django.conf import Conf
    from horsies.send import Send

H = TypeVar("H")
_is_outside: Final = ContextVar("horsies_outside_transaction", default=False)


@contextmanager
def outside_transaction() -> Generator[None]:
    """Commit every send inside the block at once, on a connection of its own. The task stays when the transaction
    around the block is rolled back, such as one that reports the failure."""
    token = _is_outside.set(True)
    try:
        yield
    finally:
        _is_outside.reset(token)


class DjangoTransactions:
    """Finds the transaction of the calling code in Django's connections."""

    def __init__(self, conf: "Conf") -> None:
        self._alias = conf.database
        self._refuses_others = conf.other_transactions == "refuse"

    def connection(self) -> Any:
        """Django's connection when this thread is in a transaction on it. Raises UsageError inside a transaction of
        another database only."""
        if _is_outside.get():
            return None
        connection = connections[self._alias]
        if _in_transaction(connection):
            return connection
        _respect_guards(connection)
        if self._refuses_others:
            for other in connections.all(initialized_only=True):
                if other.alias != self._alias and any(not block._from_testcase for block in other.atomic_blocks):
                    raise UsageError(
                        f"send inside transaction.atomic(using={other.alias!r}), and the tables of horsies are in "
                        f"{self._alias!r}: the task would exist even if that transaction is rolled back. Send in "
                        f"transaction.on_commit(..., using={other.alias!r}), open transaction.atomic() of both, or "
                        "say `with outside_transaction():` (HORSIES['OTHER_TRANSACTIONS'] = 'send' says it for all)"
                    )
        return None

    async def send_async(self, send: "Send[H]") -> H:
        """Send from the thread where Django runs the ORM for this coroutine, as `acreate` does: that of the synchronous
        code around it, such as a test or a view that called `async_to_sync`, which may be in a transaction."""
        return await sync_to_async(send.send)()

    def require_test_database(self) -> None:
        """Refuse `testing.real` where it would run the tasks of a deployment: outside of a test run, and in a test that
        may not use the database."""
        connection = connections[self._alias]
        if not hasattr(mail, "outbox"):  # set by Django's `setup_test_environment`
            raise UsageError(
                "testing.real(app) uses the database of Django's test run, and there is none: run this by `manage.py "
                f"test` or pytest-django. in_place=True uses {connection.settings_dict['NAME']!r} all the same"
            )
        if not connection.in_atomic_block:
            _respect_guards(connection)


def _in_transaction(connection: Any) -> bool:
    if connection.in_atomic_block:
        return True
    if connection.connection is None:
        return not connection.settings_dict["AUTOCOMMIT"]
    return not connection.autocommit


def _respect_guards(connection: Any) -> None:
    """Refuse what tests refuse: `SimpleTestCase` and pytest-django replace the methods that open a connection, and the
    app's pool would pass by them, perhaps to a database that is not the tests'."""
    guard = vars(connection).get("connect")
    if hasattr(guard, "wrapped"):  # after the test, the method itself is there
        connection.connect()
    elif BaseDatabaseWrapper.ensure_connection.__module__ != BaseDatabaseWrapper.__module__ and not is_on_a_loop():
        was_open = connection.connection is not None
        connection.ensure_connection()
        if not was_open:
            connection.close()
