"""What `recorded` and `inline` share: a mode takes the place of the app's database for as long as its block is open.

A mode belongs to the app, not to a thread or a context: what a test calls may send from a thread pool or from the event
loop of a web framework, which inherit no context variables. Blocks may be nested, and may overlap in threads: the one
that was opened last takes the sends, and each takes away only itself.
"""

import threading
from abc import abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from horsies._checks import shown
from horsies._pg import foreign
from horsies.app import Horsies
from horsies.errors import UsageError
from horsies.middleware import tell_sent
from horsies.send import Send
from horsies.testing.sends import Sends
from horsies.testing.store import Row, Store

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen
    from horsies._stand_in import StandIn
    from horsies.workflow.signals import Signal

_lock = threading.Lock()


@contextmanager
def installed(app: Horsies, mode: "StandIn | None") -> Generator[None]:
    """Let the app use `mode` instead of its database inside the block; None: its database, also inside other modes."""
    if not isinstance(app, Horsies):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"horsies.testing takes the app itself, not {shown(app)}")
    with _lock:
        modes: dict[object, StandIn | None] = vars(app).setdefault("_testing_modes", {})
        modes[block := object()] = mode
        app.stand_in = mode
    try:
        yield
    finally:
        with _lock:
            del modes[block]
            app.stand_in = next(reversed(modes.values()), None)


class Mode:
    """Keeps every send. A subclass says what becomes of new rows."""

    def __init__(self, app: Horsies) -> None:
        self.app = app
        self.sends = Sends(app)
        self.store = Store(self.sends, self.address)

    # -- what is a StandIn -----------------------------------------------------------------------

    def send(self, send: Send[Any]) -> Any:
        from horsies.sync import refuse_on_a_loop

        if send.connection is None:
            refuse_on_a_loop(send.verb)
        else:
            foreign.require_sync(foreign.adapt(send.connection), send.verb)
        handle, rows = self._written(send)
        self.follow_up(rows)
        return handle

    async def send_async(self, send: Send[Any]) -> Any:
        if send.connection is not None:
            foreign.require_async(foreign.adapt(send.connection), send.verb)
        handle, rows = self._written(send)
        await self.follow_up_async(rows)
        return handle

    @abstractmethod
    def look(self, sent_id: str, *, is_workflow: bool) -> "Seen | None": ...

    @abstractmethod
    def node_texts(self, workflow_id: str, node_ids: Sequence[str] | None) -> Mapping[str, str | None]: ...

    @abstractmethod
    def refusal(self, what: str) -> UsageError: ...

    def address(self, signal: "Signal") -> tuple[str, str | None]:
        """The id of the run that a signal goes to, and why it cannot. Any will do where nothing runs."""
        return signal.workflow_id, None

    # -- what a mode does with new rows ----------------------------------------------------------

    def follow_up(self, rows: list[Row]) -> None:
        """These rows are new."""

    async def follow_up_async(self, rows: list[Row]) -> None:
        """See `follow_up`."""

    def committed(self, rows: list[Row]) -> None:
        """The transaction that wrote these rows has committed."""

    def _written(self, send: Send[Any]) -> tuple[Any, list[Row]]:
        middleware = self.app.config.middleware
        try:
            written, rows = self.store.write(send, self.committed)
        except BaseException as error:
            if send.outgoing is not None:
                tell_sent(middleware, send.outgoing, error)
            raise
        if send.outgoing is not None:
            tell_sent(middleware, send.outgoing, None)
        return send.handle(written), rows
