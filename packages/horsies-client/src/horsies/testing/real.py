"""`real`: the app on its own database, with a worker that runs when the test says so."""

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, ClassVar

from horsies._checks import shown
from horsies._pg.embedded import resolve
from horsies.app import Horsies
from horsies.errors import UsageError
from horsies.sync import refuse_on_a_loop
from horsies.testing.attempts import close_connections, in_thread, off_the_loop, require_worker
from horsies.testing.records import DrainReport
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.signals import SignalReceipt
from horsies.workflow.waits import SignalNode

AnyRun = WorkflowHandle[Any] | str


@contextmanager
def real(app: Horsies) -> Generator["TestDatabase"]:
    """Inside the block the app sends to its own database, as in production, and nothing runs until `drain`.

    For a database that belongs to the test: its schema is there, and no worker runs on it."""
    require_worker("real")
    if not isinstance(app, Horsies):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"testing.real takes the app itself, not {shown(app)}")
    try:
        yield TestDatabase(app)
    finally:
        close_connections(app)


class TestDatabase:
    """The database of an app under test."""

    __test__: ClassVar = False  # no test, although pytest collects by this name

    def __init__(self, app: Horsies) -> None:
        self._app = app

    @property
    def url(self) -> str:
        return resolve(self._app.config.broker).url

    def drain(self, *, queues: Sequence[str] | None = None, recursive: bool = True, limit: int = 10_000) -> DrainReport:
        """Run every task that is ready, in these queues or in all, and what follows from it: tasks that tasks send,
        and the steps of workflows, also of those that got a signal or whose times have come. Tasks run in this process,
        one after the other. Nothing is waited for: retries and delays come due with `advance`.

        `recursive=False`: only the tasks that are ready now, at most 100. More than `limit` attempts: a UsageError."""
        refuse_on_a_loop("drain")
        return off_the_loop(partial(self._drain, queues, recursive, limit))

    async def drain_async(
        self, *, queues: Sequence[str] | None = None, recursive: bool = True, limit: int = 10_000
    ) -> DrainReport:
        """See `drain`."""
        return await in_thread(partial(self._drain, queues, recursive, limit))

    def advance(self, time: timedelta) -> None:
        """Let this time pass for horsies: every time in its tables moves back. Delays, retries, `start_at`, sleeps,
        timeouts of signals and deadlines come due; `drain` does what is due then."""
        refuse_on_a_loop("advance")
        off_the_loop(partial(self._advance, time))

    async def advance_async(self, time: timedelta) -> None:
        """See `advance`."""
        await in_thread(partial(self._advance, time))

    def signal(
        self, run: AnyRun, node: SignalNode[Any] | str, value: Any = None, *, path: str | None = None
    ) -> SignalReceipt:
        """Send a signal to a run, by its handle or its id. The run goes on with the next `drain`."""
        return self._handle(run).signal(node, value, path=path)

    async def signal_async(
        self, run: AnyRun, node: SignalNode[Any] | str, value: Any = None, *, path: str | None = None
    ) -> SignalReceipt:
        """See `signal`."""
        return await self._handle(run).signal_async(node, value, path=path)

    def _handle(self, run: AnyRun) -> WorkflowHandle[Any]:
        return self._app.workflow_handle(run) if isinstance(run, str) else run

    def _drain(self, queues: Sequence[str] | None, recursive: bool, limit: int) -> DrainReport:
        from horsies.testing.draining import drain

        self._require_database("drain")
        return asyncio.run(drain(self._app, queues, recursive=recursive, limit=limit))

    def _advance(self, time: object) -> None:
        from horsies.testing.draining import move_times

        self._require_database("advance")
        if not isinstance(time, timedelta) or time < timedelta(0):
            raise UsageError(f"advance takes a timedelta that is not negative, not {shown(time)}")
        asyncio.run(move_times(self._app, time))

    def _require_database(self, verb: str) -> None:
        if self._app.stand_in is not None:
            raise UsageError(f"{verb} works on the app's database, which a block of recorded or inline hides here")
