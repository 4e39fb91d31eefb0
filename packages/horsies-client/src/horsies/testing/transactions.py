"""Follows the transaction of the caller's own connection: a send on it counts once that has committed.

SQLAlchemy and Django tell of a commit, and are asked without a statement. asyncpg and psycopg have no such hook: a send
on their connections counts at once. Savepoints are followed for SQLAlchemy's sessions and for Django.
"""

import sys
import threading
from collections.abc import Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from horsies._pg.foreign import Foreign

Act = Callable[[], None]


def follow(caller: Foreign, connection: Any, commit: Act, roll_back: Act) -> bool:
    """Call `commit` or `roll_back` when the transaction has ended. False: this library does not tell, and neither is
    called."""
    if caller.library == "Django":
        _follow_django(connection, commit)
        return True
    if caller.library != "SQLAlchemy":
        return False
    names = {cls.__name__ for cls in connection.__class__.__mro__}
    if names & {"scoped_session", "async_scoped_session"}:
        connection = connection()
        names = {cls.__name__ for cls in connection.__class__.__mro__}
    target = getattr(connection, "sync_session", None) or getattr(connection, "sync_connection", None) or connection
    if names & {"Session", "AsyncSession"}:
        _follow_session(target, commit, roll_back)
    else:
        _follow_connection(target, commit, roll_back)
    return True


def _follow_django(connection: Any, commit: Act) -> None:
    """Outside of a transaction Django calls it at once. A rollback is not told, and a send that waits is not seen.

    A TestCase never commits its own transaction: there a block of the code under test has committed when its savepoint
    was released and no other block of that code is open.
    """
    if connection.in_atomic_block and _only_of_a_test(connection):
        commit()
        return
    connection.on_commit(commit)
    if any(block._from_testcase for block in connection.atomic_blocks):
        if not hasattr(connection.savepoint_commit, "waiting"):
            _watch_savepoints(connection)
        connection.savepoint_commit.waiting.append(commit)


def _watch_savepoints(connection: Any) -> None:
    release = connection.savepoint_commit

    def savepoint_commit(sid: Any) -> None:
        release(sid)
        if _only_of_a_test(connection):
            acts, waiting[:] = list(waiting), []
            for commit in acts:
                # an inner block that was rolled back has removed what it had registered
                if any(one[1] is commit for one in connection.run_on_commit):
                    connection.run_on_commit = [one for one in connection.run_on_commit if one[1] is not commit]
                    commit()

    waiting: list[Act] = []
    savepoint_commit.waiting = waiting  # type: ignore[attr-defined]
    connection.savepoint_commit = savepoint_commit


def _only_of_a_test(connection: Any) -> bool:
    """Every open block belongs to a TestCase."""
    return all(block._from_testcase for block in connection.atomic_blocks)


# SQLAlchemy forbids to remove a listener while it is called, so each session or connection gets one set of them, which
# stays and does nothing when no send waits.
_sessions: "WeakKeyDictionary[Any, _Session]" = WeakKeyDictionary()
_connections: "WeakKeyDictionary[Any, _Connection]" = WeakKeyDictionary()


def _listen(target: Any, name: str, hook: Callable[..., None]) -> None:
    sys.modules["sqlalchemy.event"].listen(target, name, hook)  # the caller has imported it


class _Session:
    """The sends that wait for transactions of one session."""

    def __init__(self, session: Any) -> None:
        self._waiting: list[tuple[list[Any], Act, Act]] = []
        self._committed: list[Any] = []
        _listen(session, "after_commit", self._after_commit)
        _listen(session, "after_transaction_end", self._after_end)

    def add(self, session: Any, commit: Act, roll_back: Act) -> None:
        # a statement would have begun a transaction
        at = session.get_nested_transaction() or session.get_transaction() or session.begin()
        around: list[Any] = []  # the savepoints that the send is in, and the transaction; not those of a flush
        while at is not None:
            if at.nested or at.parent is None:
                around.append(at)
            at = at.parent
        self._waiting.append((around, commit, roll_back))

    def _after_commit(self, session: Any) -> None:
        self._committed.append(session.get_nested_transaction() or session.get_transaction())

    def _after_end(self, _session: Any, transaction: Any) -> None:
        is_committed = any(transaction is one for one in self._committed)
        self._committed = [one for one in self._committed if one is not transaction]
        for waiting in list(self._waiting):
            around, commit, roll_back = waiting
            if is_committed and transaction is around[-1]:
                self._waiting.remove(waiting)
                commit()
            elif not is_committed and any(transaction is one for one in around):
                self._waiting.remove(waiting)
                roll_back()


class _Connection:
    """The sends that wait for the transaction of one connection."""

    def __init__(self, connection: Any) -> None:
        self._waiting: list[tuple[Act, Act]] = []
        # told just before the commit: a connection has no event after it
        _listen(connection, "commit", self._on_commit)
        _listen(connection, "rollback", self._on_rollback)

    def add(self, connection: Any, commit: Act, roll_back: Act) -> None:
        if not connection.in_transaction():
            connection.begin()  # as a statement would have done
        self._waiting.append((commit, roll_back))

    def _on_commit(self, _connection: Any) -> None:
        waiting, self._waiting = self._waiting, []
        for commit, _ in waiting:
            commit()

    def _on_rollback(self, _connection: Any) -> None:
        waiting, self._waiting = self._waiting, []
        for _, roll_back in waiting:
            roll_back()


_following: Final = threading.Lock()


def _follow_session(session: Any, commit: Act, roll_back: Act) -> None:
    with _following:
        followed = _sessions.get(session) or _sessions.setdefault(session, _Session(session))
    followed.add(session, commit, roll_back)


def _follow_connection(connection: Any, commit: Act, roll_back: Act) -> None:
    with _following:
        followed = _connections.get(connection) or _connections.setdefault(connection, _Connection(connection))
    followed.add(connection, commit, roll_back)
