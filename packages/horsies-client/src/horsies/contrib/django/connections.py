# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""Looks after Django's connections in the child processes of a worker: none is inherited, and none stays broken.

A `def` task runs on the main thread, like a request: connections that are broken or older than CONN_MAX_AGE are closed
before and after it, and those that it has left inside a transaction. An `async def` task gets a thread of its own for
the ORM, as a request does under ASGI, and its connections are closed when it ends.
"""

import asyncio
import select
import threading
from collections.abc import Callable, Container, Generator
from contextlib import contextmanager
from typing import Any, Final

from asgiref.sync import SyncToAsync, ThreadSensitiveContext
from django.db import connections
from django.db.transaction import TransactionManagementError

from horsies.context import BatchCall, TaskContext
from horsies.middleware import Middleware

_IDLE: Final = 0
_OPEN: Final = (2, 3)
"""Of libpq's PQTransactionStatusType: idle (1 is a running statement), and in a transaction, sound or failed."""


class DjangoConnections(Middleware):
    """Around every attempt. `is_inline` tells whether the task runs inside the code that sent it
    (`horsies.testing.inline`): then the connections of the thread are in use."""

    def __init__(self, is_inline: Callable[[], bool]) -> None:
        self._is_inline = is_inline

    @contextmanager
    def scope(self, ctx: TaskContext) -> Generator[None]:
        with self._closed():
            yield

    @contextmanager
    def batch_scope(self, call: BatchCall) -> Generator[None]:
        with self._closed():
            yield

    @contextmanager
    def _closed(self) -> Generator[None]:
        if is_on_a_loop():
            with _own_thread():
                yield
        elif self._is_inline():
            yield
        else:
            of_tests = {one.alias for one in connections.all(initialized_only=True) if one.in_atomic_block}
            close_unusable()
            left: list[str] = []
            try:
                yield
            finally:
                left = close_left_open(of_tests)
                close_obsolete()
            if left:
                raise TransactionManagementError(
                    f"the task ended inside a transaction of {', '.join(map(repr, left))}, which was rolled back: what "
                    "it wrote there is lost. Use `with transaction.atomic():`, or commit."
                )


def close_obsolete() -> None:
    """Close the connections of this thread that had an error or are older than CONN_MAX_AGE, as Django does around a
    request. One inside a transaction belongs to a test; a thread beside the main one ends with its task."""
    is_kept = threading.current_thread() is threading.main_thread()
    for connection in connections.all(initialized_only=True):
        if connection.in_atomic_block:
            continue
        if is_kept:
            connection.close_if_unusable_or_obsolete()
        else:
            connection.close()


def close_left_open(of_tests: Container[str]) -> list[str]:
    """Close the connections of this thread that a task has left inside a transaction or a statement: the next task
    would write into that transaction, which is never committed. Returns the aliases whose transaction was left open.

    A task that is stopped (timeout, cancel) may be interrupted at any line: between the statements of
    `transaction.atomic`, or while the server works.
    """
    left: list[str] = []
    for connection in connections.all(initialized_only=True):
        if connection.alias in of_tests:
            continue
        status = _transaction_status(connection.connection)
        # without autocommit, reading begins a transaction, too
        if connection.in_atomic_block or (status in _OPEN and connection.settings_dict["AUTOCOMMIT"]):
            left.append(connection.alias)
        if connection.in_atomic_block or status != _IDLE:
            # inside a block, Django's `close` would keep the state until the block ends
            connection.in_atomic_block = connection.closed_in_transaction = False
            connection.close()
    return left


def close_unusable() -> None:
    """Close the connections of this thread that the server has ended, and those that are obsolete.

    Django notices that only by an error, or by a statement before the first of each request (CONN_HEALTH_CHECKS). An
    idle connection has nothing to read: only one that has is asked, so a healthy one costs no round trip.
    """
    for connection in connections.all(initialized_only=True):
        if connection.connection is None or connection.in_atomic_block:
            continue
        if _has_news(connection.connection) and not connection.is_usable():
            connection.close()
    close_obsolete()


def close_all() -> None:
    """Close every connection and every pool of this process, before it is forked."""
    connections.close_all()
    for connection in connections.all(initialized_only=True):
        close_pool = getattr(connection, "close_pool", None)
        if close_pool is not None and connection.settings_dict.get("OPTIONS", {}).get("pool"):
            close_pool()


def _has_news(raw: Any) -> bool:
    try:
        poll = select.poll()
        poll.register(raw.fileno(), select.POLLIN | select.POLLHUP | select.POLLERR)
        return bool(poll.poll(0))
    except Exception:  # closed, or a driver without descriptor
        return True


def _transaction_status(raw: Any) -> int:
    """What the driver knows, without asking the server."""
    try:
        return _IDLE if raw is None else int(raw.info.transaction_status)
    except Exception:  # a driver without it
        return _IDLE


def is_on_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


@contextmanager
def _own_thread() -> Generator[None]:
    """Let `sync_to_async`, and so the ORM, use a thread of this task's own. It is made on first use; a scope must not
    block, so the thread closes its connections by itself."""
    context = ThreadSensitiveContext()
    token = SyncToAsync.thread_sensitive_context.set(context)
    try:
        yield
    finally:
        SyncToAsync.thread_sensitive_context.reset(token)
        executor: Any = SyncToAsync.context_to_thread_executor.pop(context, None)
        if executor is not None:
            executor.submit(connections.close_all)
            executor.shutdown(wait=False)
