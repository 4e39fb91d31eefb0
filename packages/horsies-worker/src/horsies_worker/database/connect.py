"""The first connection of a process: waits for the server, checks rights, and upgrades the schema where allowed.

Workers and schedulers begin with it. A problem that waiting cannot solve ends the process with one sentence.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final, TypeAlias

from horsies._pg.backoff import Backoff
from horsies._pg.driver import connect
from horsies._pg.dsn import connect_arguments
from horsies._pg.probes import is_pooled, shares_sessions, told_elsewhere
from horsies._pg.refusals import POOLER_FIX, and_remedy, worded
from horsies._pg.schema_guard import HEAD_REVISION, behind, require_schema
from horsies._pg.transient import is_from_driver, is_transient
from horsies.app import Horsies
from horsies.config import PostgresConfig
from horsies.errors import HorsiesError, SchemaError
from horsies_worker.database.access import find_refusal
from horsies_worker.database.session import MAX_CONNECT_PATIENCE, STATEMENT_TIMEOUT_S, Session, close
from horsies_worker.database.settings import SETTINGS
from horsies_worker.output.log_context import log

_LISTEN_TEST_S: Final = 5.0


class DatabaseGone(HorsiesError):
    """The database cannot be used: waiting will not help, or the allowed time is over."""


Action: TypeAlias = Callable[[Any], Awaitable[None]]


async def prepare_database(
    app: Horsies, broker: PostgresConfig, action: Action | None = None, *, timeout_s: float | None, who: str = "worker"
) -> None:
    """Wait for a database that is ready, and run `action` on a connection to it; both begin again when the connection
    breaks meanwhile. Raises DatabaseGone or SchemaError."""
    backoff = Backoff(app.config.resilience)
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    arguments = _arguments(broker)
    longest = MAX_CONNECT_PATIENCE * arguments["timeout"]
    while True:
        try:
            await _prepare_once(app, broker, arguments, action, who)
        except Exception as error:
            if isinstance(error, HorsiesError) or not is_transient(error):
                raise
            told = broker.redact(worded(error))
            if isinstance(error, TimeoutError):  # a slow line: the same bound would be too short again
                arguments["timeout"] = min(2 * arguments["timeout"], longest)
            delay = backoff.next()
            if give_up is not None and time.monotonic() + delay > give_up:
                raise DatabaseGone(f"the database could not be reached: {told}") from error
            log.warning("database: %s; trying again in %.1f s", told, delay)
            await asyncio.sleep(delay)
        else:
            return


async def _prepare_once(
    app: Horsies, broker: PostgresConfig, arguments: dict[str, Any], action: Action | None, who: str
) -> None:
    try:
        connection = await connect(arguments)
    except Exception as error:
        if is_transient(error):
            raise
        raise DatabaseGone(told_refused(error, broker, who)) from error
    try:
        with refusals_told(broker, who):
            await _refuse_undeclared_pooler(broker, connection, who)
            await _refuse_another_database(broker, connection, who)
            refusal = await find_refusal(connection, app.schema, who)
            if refusal is not None:
                raise DatabaseGone(f"the database refuses this {who}: {refusal}")
            await _require_current(app, broker, connection)
            if action is not None:
                await action(connection)
    except BaseException:
        connection.terminate()  # closing politely would wait for a server that may not answer
        raise
    await close(connection)


@contextmanager
def refusals_told(broker: PostgresConfig, who: str) -> Generator[None]:
    """Turn a refusal of the server in this block into a DatabaseGone with one sentence."""
    try:
        yield
    except Exception as error:
        if not is_from_driver(error) or is_transient(error):
            raise
        raise DatabaseGone(told_refused(error, broker, who)) from error


def told_refused(error: Exception, broker: PostgresConfig, who: str) -> str:
    return f"the database refuses this {who}: {broker.redact(worded(error))}{and_remedy(error)}"


async def connect_listener(broker: PostgresConfig, who: str = "worker") -> Any:
    """A connection for LISTEN, directly to the server where a pooler is configured."""
    arguments = connect_arguments(broker, direct=True)
    # Only a name: LISTEN needs no other settings, and a pooler configured here by mistake would refuse them for ever.
    # Connected, such a pooler is found by the LISTEN test.
    arguments["server_settings"] = {"application_name": f"{broker.application_name} {who} listen"[:63]}
    arguments["command_timeout"] = min(arguments.get("command_timeout", STATEMENT_TIMEOUT_S), STATEMENT_TIMEOUT_S)
    return await connect(arguments)


def _arguments(broker: PostgresConfig) -> dict[str, Any]:
    """Without named statements: behind an undeclared pooler they would clash with those of other clients."""
    return {**connect_arguments(broker), "statement_cache_size": 0}


async def _refuse_undeclared_pooler(broker: PostgresConfig, connection: Any, who: str) -> None:
    """A pooler may ignore the settings of a session instead of refusing them. One in session mode does no harm."""
    if broker.pooler:
        return
    arguments = _arguments(broker)
    arguments["server_settings"] |= SETTINGS  # those of the sessions that follow: it may refuse some of them
    shared = False
    with suppress(OSError):  # TimeoutError included: nothing is known then
        shared = await is_pooled(connection) and await shares_sessions(connection, lambda: connect(arguments))
    if shared:
        raise DatabaseGone(f"the database refuses this {who}: {POOLER_FIX}")


async def _refuse_another_database(broker: PostgresConfig, connection: Any, who: str) -> None:
    """Before the schema is upgraded, which `direct_url` does."""
    if broker.direct_url is None:
        return
    try:
        direct = await connect_listener(broker, who)
    except Exception:  # the listener tries again for as long as it takes, and logs the reason
        return
    try:
        told = await told_elsewhere(broker, connection, direct)
    except TimeoutError:  # a pooler without a second session
        return
    finally:
        await close(direct)
    if told is not None:
        fix = "set direct_url to the same database on the same server, past the pooler"
        raise DatabaseGone(f"the database refuses this {who}: {told}; {fix}")


async def _require_current(app: Horsies, broker: PostgresConfig, connection: Any) -> None:
    """With `auto_migrate`, upgrade a database that is behind. If that fails, the worker still starts when this release
    can work with the schema as it is."""
    found: str | None = None
    try:
        found = await require_schema(connection, app.schema)
    except SchemaError:
        if not app.config.auto_migrate:
            raise
    if found is not None and found >= HEAD_REVISION:
        return
    if app.config.auto_migrate:
        try:
            await _migrate(app, broker)
        except SchemaError as error:
            if found is None:
                raise
            log.warning("%s (the upgrade failed: %s)", behind(found, app.schema), error)
        else:
            await require_schema(connection, app.schema)
    elif found is not None:
        log.warning("%s", behind(found, app.schema))


async def _migrate(app: Horsies, broker: PostgresConfig) -> None:
    # imported here: Alembic and SQLAlchemy are loaded only when the schema is behind
    from horsies_schema import MigrationError, upgrade_async

    logging.getLogger("alembic").setLevel(logging.WARNING)
    try:
        revision = await upgrade_async(broker.listen_url, schema=app.schema)
    except MigrationError as error:
        told = str(error)
        if "permission denied" in told or "must be owner" in told:
            option = f" --schema {app.schema}" if app.schema else ""
            told += f"; run `horsies-migrate up{option}` as the owner of the tables"
        raise SchemaError(told) from error
    log.info("schema upgraded to revision %s", revision)


class ListenTest:
    """A test that LISTEN works: a pooler in transaction mode accepts the command and delivers nothing.

    It notifies this worker over the database; `on_notify` has to listen to `channel`.
    """

    channel = "horsies_self_test"

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._heard = asyncio.Event()

    def on_notify(self, payload: str) -> None:
        if payload == self._worker_id:
            self._heard.set()

    async def passes(self, session: Session) -> bool:
        """Notify from another session than the listening one: a pooler does deliver a session's own notifications."""
        self._heard.clear()
        await session.run(lambda c: c.execute("SELECT pg_notify($1, $2)", self.channel, self._worker_id))
        try:
            async with asyncio.timeout(_LISTEN_TEST_S):
                await self._heard.wait()
        except TimeoutError:
            return False
        return True
