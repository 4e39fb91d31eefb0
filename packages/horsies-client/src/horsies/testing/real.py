"""`real`: the app on a database of the test, with a worker that runs when the test says so."""

import contextvars
from collections.abc import Callable, Coroutine, Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from horsies._checks import Checks, shown
from horsies._pg.embedded import resolve
from horsies.app import Horsies
from horsies.context import find_current_task
from horsies.errors import ConfigurationError, UsageError
from horsies.sync import refuse_on_a_loop
from horsies.testing.attempts import require_worker
from horsies.testing.modes import installed
from horsies.testing.records import DrainReport
from horsies.testing.threads import Runner, in_thread, off_the_loop, task_loop, with_this_thread
from horsies.workflow.handle import WorkflowHandle
from horsies.workflow.signals import SignalReceipt
from horsies.workflow.waits import SignalNode

if TYPE_CHECKING:
    from horsies.testing.callers_connection import CallersConnection
    from horsies.testing.databases import Prepare
    from horsies.testing.draining import Wanted

AnyRun = WorkflowHandle[Any] | str
R = TypeVar("R")
Work = Callable[["CallersConnection | None", Runner | None], Coroutine[Any, Any, R]]
"""Takes the connection of the test, and what runs blocking code in the thread of the caller; None beside its loop."""


def real(app: Horsies, *, in_place: bool = False, prepare: "Prepare | None" = None) -> "RealBlock":
    """Inside the block, `with` or `async with`, the app has a clean database with the tables of horsies, and nothing
    runs until `drain`. The database is a clone of a template that is migrated once per run, on an embedded
    PostgreSQL, or on the server of the environment variable HORSIES_TEST_DATABASE_URL.

    `prepare`: a function, also a coroutine function, that gets the URL of the template once per run, after the
    migration: it makes the tables of your own. `in_place`: use the database of the app's configuration instead. It
    belongs to the test then: its schema is there, no worker runs on it, and the test cleans it up. The app of a Django
    project is always used in place, on the database of Django's test runner."""
    require_worker("real")
    if not isinstance(app, Horsies):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"testing.real takes the app itself, not {shown(app)}")
    if app.ambient is not None and not in_place:
        app.ambient.require_test_database()
        in_place = True  # Django has made the database of the test
    if in_place and prepare is not None:
        raise UsageError("testing.real: prepare= makes tables in a new database, and in_place=True uses yours")
    if prepare is not None and not callable(prepare):
        raise UsageError(f"testing.real: prepare= takes a function of the URL, not {shown(prepare)}")
    return RealBlock(app, in_place=in_place, prepare=prepare)


class RealBlock:
    """A block of `testing.real`."""

    def __init__(self, app: Horsies, *, in_place: bool, prepare: "Prepare | None") -> None:
        self._app = app
        self._in_place = in_place
        self._prepare = prepare
        self._undo = ExitStack()

    def __enter__(self) -> "TestDatabase":
        with ExitStack() as undo:  # all of it is undone, also if a step of it fails
            if self._in_place:
                undo.callback(lambda: task_loop.run(self._app.database.close_here, contextvars.Context()))
            else:
                self._redirect(undo)
            undo.enter_context(installed(self._app, None))
            database = TestDatabase(self._app)
            undo.callback(database.close)
            self._undo = undo.pop_all()
        return database

    def _redirect(self, undo: ExitStack) -> None:
        from horsies.testing import databases
        from horsies.testing.loops import ClosingDatabase

        broker = self._app.config.broker
        url = off_the_loop(lambda: databases.create(broker.schema, self._prepare))
        undo.callback(lambda: off_the_loop(lambda: databases.drop(url)))
        # what is said of the production server does not hold for this one
        here = replace(
            broker, database_url=url, direct_url=None, pooler=False, sslmode=None, sslrootcert=None, sslcert=None,
            sslkey=None, sslpassword=None,
        )  # fmt: skip
        config = replace(self._app.config, broker=here)
        connections = ClosingDatabase(config)
        undo.callback(self._app.redirect(config, connections))
        undo.callback(connections.close_everywhere)

    def __exit__(self, *exc: object) -> None:
        self._undo.close()

    async def __aenter__(self) -> "TestDatabase":
        return await in_thread(self.__enter__)

    async def __aexit__(self, *exc: object) -> None:
        await self._app.database.close_here()
        await in_thread(self.__exit__)


class TestDatabase:
    """The database of an app under test."""

    __test__: ClassVar = False  # no test, although pytest collects by this name

    def __init__(self, app: Horsies) -> None:
        from horsies.testing.draining import OpenSession

        self._app = app
        self._opened = OpenSession(app)
        self._has_ended = False

    def close(self) -> None:
        """Close the connection of `drain` and `advance`. The end of the block does it."""
        self._has_ended = True
        task_loop.run(self._opened.close, contextvars.Context())

    @property
    def url(self) -> str:
        return resolve(self._opened.broker).url

    def drain(
        self,
        *,
        queues: Sequence[str] | None = None,
        recursive: bool = True,
        until_quiet: bool = False,
        limit: int = 10_000,
        connection: Any = None,
    ) -> DrainReport:
        """Run every task that is ready, in these queues or in all, and what follows from it: tasks that tasks send,
        and the steps of workflows, also of those that got a signal or whose times have come. Tasks run in this process,
        one after the other, `def` tasks in this thread. Nothing is waited for: retries and delays come due with
        `advance`.

        `recursive=False`: only the tasks that are ready now, at most 100. `until_quiet`: time passes to each delayed
        task, retry, sleep and `start_at`, until nothing comes by itself; schedules do not run. More than `limit`
        attempts: a UsageError. `connection`: work on this connection, inside its open transaction, as the test's own
        sends do; it may be any that `connection=` of a send accepts."""
        return self._run("drain", connection, self._drain(queues, recursive, until_quiet, limit))

    async def drain_async(
        self,
        *,
        queues: Sequence[str] | None = None,
        recursive: bool = True,
        until_quiet: bool = False,
        limit: int = 10_000,
        connection: Any = None,
    ) -> DrainReport:
        """See `drain`. `def` tasks run in threads of their own. With an asynchronous `connection`, `async def` tasks
        run on this event loop, so that they can use it."""
        work = self._drain(queues, recursive, until_quiet, limit)
        return await self._run_async("drain", connection, work)

    def advance(self, time: timedelta, *, connection: Any = None) -> None:
        """Let this time pass for horsies: every time in its tables moves back. Delays, retries, `start_at`, sleeps,
        timeouts of signals and deadlines come due, and the slots of schedules that lie in between are enqueued, of the
        app's and of stored ones; `drain` does what is due then. `connection`: see `drain`."""
        self._run("advance", connection, self._advance(time))

    async def advance_async(self, time: timedelta, *, connection: Any = None) -> None:
        """See `advance`."""
        await self._run_async("advance", connection, self._advance(time))

    def signal(
        self, run: AnyRun, node: SignalNode[Any] | str, value: Any = None, *, path: str | None = None,
        connection: Any = None,
    ) -> SignalReceipt:  # fmt: skip
        """Send a signal to a run, by its handle or its id. The run goes on with the next `drain`."""
        return self._handle(run).signal(node, value, path=path, connection=connection)

    async def signal_async(
        self, run: AnyRun, node: SignalNode[Any] | str, value: Any = None, *, path: str | None = None,
        connection: Any = None,
    ) -> SignalReceipt:  # fmt: skip
        """See `signal`."""
        return await self._handle(run).signal_async(node, value, path=path, connection=connection)

    def _handle(self, run: AnyRun) -> WorkflowHandle[Any]:
        self._require_block("signal")
        return self._app.workflow_handle(run) if isinstance(run, str) else run

    def _drain(self, queues: Sequence[str] | None, recursive: bool, until_quiet: bool, limit: int) -> Work[DrainReport]:
        from horsies.testing.draining import Wanted, drain

        wanted = Wanted(queues, recursive, until_quiet, limit)
        self._check(wanted)
        return lambda caller, here: drain(self._app, wanted, self._opened, caller, here)

    def _check(self, wanted: "Wanted") -> None:
        self._require_database("drain")
        checks = Checks("drain")
        checks.boolean("recursive", wanted.recursive)
        checks.boolean("until_quiet", wanted.until_quiet)
        checks.integer("limit", wanted.limit, 1, 1_000_000)
        queues: Any = wanted.queues
        known = self._app.config.queue_names
        if queues is not None and not isinstance(queues, list | tuple):
            checks.add("queues", f"must be a list of names, got {shown(queues)}", 'write ["default"]')
        elif unknown := [name for name in wanted.queues or () if name not in known]:
            checks.add("queues", f"the app has no queue {shown(unknown[0])}", f"it has {', '.join(known)}")
        if wanted.until_quiet is True and wanted.recursive is False:
            checks.add("until_quiet", "goes on until nothing is left", "leave recursive=False out")
        if checks.problems:
            raise ConfigurationError(checks.problems, subject=checks.subject)

    def _advance(self, time: object) -> Work[None]:
        from horsies.testing.draining import advance

        self._require_database("advance")
        if not isinstance(time, timedelta) or time < timedelta(0):
            raise UsageError(f"advance takes a timedelta that is not negative, not {shown(time)}")
        return lambda caller, here: advance(self._app, time, self._opened, caller, here)

    def _require_block(self, verb: str) -> None:
        if self._has_ended:
            raise UsageError(f"{verb}: the block of testing.real has ended: call it inside the block")

    def _require_database(self, verb: str) -> None:
        self._require_block(verb)
        if (task := find_current_task()) is not None:
            raise UsageError(f"{verb} was called inside task {task.task_name!r}: the test calls it, after the task")
        if self._app.stand_in is not None:
            raise UsageError(f"{verb} works on the app's database, which a block of recorded or inline hides here")

    def _run(self, verb: str, connection: Any, work: Work[R]) -> R:
        refuse_on_a_loop(verb)
        caller = _adapted(connection, verb, is_async=False)
        return with_this_thread(lambda here: work(caller, here))

    async def _run_async(self, verb: str, connection: Any, work: Work[R]) -> R:
        if (caller := _adapted(connection, verb, is_async=True)) is not None:
            return await work(caller, None)
        return await in_thread(lambda: with_this_thread(lambda here: work(None, here)))


def _adapted(connection: Any, verb: str, *, is_async: bool) -> "CallersConnection | None":
    from horsies.testing.callers_connection import CallersConnection

    return None if connection is None else CallersConnection(connection, verb, is_async=is_async)
