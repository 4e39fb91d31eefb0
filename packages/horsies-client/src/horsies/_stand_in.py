"""`StandIn`: takes the place of an app's database in a test. `horsies.testing` has the implementations."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen
    from horsies.errors import UsageError


class StandIn(Protocol):
    """While an app has one, its sends and its handles go here, from every thread and every event loop."""

    def send(self, send: Any) -> Any:
        """Take a `horsies.send.Send`, and return its handle."""
        ...

    async def send_async(self, send: Any) -> Any:
        """See `send`."""
        ...

    def look(self, sent_id: str, *, is_workflow: bool) -> "Seen | None":
        """The state of a task or a run; None when it does not exist."""
        ...

    def node_texts(self, workflow_id: str, node_ids: Sequence[str] | None) -> Mapping[str, str | None]:
        """The stored results of a run's nodes, None for those that have not ended."""
        ...

    def refusal(self, what: str) -> "UsageError":
        """The error for what only a database can do."""
        ...
