"""`Ambient`: finds the transaction of the calling code, for frameworks that keep one per thread."""

from typing import Any, Protocol


class Ambient(Protocol):
    """An app that has one asks it at every send without `connection=`."""

    def connection(self) -> Any:
        """The connection whose transaction a send from this thread joins; None when there is no transaction."""
        ...

    async def send_async(self, send: Any) -> Any:
        """Send a `horsies.send.Send` from a coroutine, by `send.send()` in the thread whose transaction counts."""
        ...

    def require_test_database(self) -> None:
        """Raise unless a test run of the framework has put its own database in the place of the app's."""
        ...
