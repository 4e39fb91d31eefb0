"""A database that is ready for use: reached, writable, with the tables that this release needs.

What every process of ours does before anything else: wait for a server that is not up yet, refuse one that can never
do, upgrade the schema where that is allowed.
"""

import asyncio
import logging
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from horsies._pg.backoff import Backoff
from horsies._pg.driver import connect
from horsies._pg.dsn import connect_arguments
from horsies._pg.refusals import remedy
from horsies._pg.schema_guard import HEAD_REVISION, behind, require_schema
from horsies._pg.transient import is_from_driver, is_transient
from horsies.app import Horsies
from horsies.config import PostgresConfig
from horsies.errors import HorsiesError, SchemaError
from horsies_worker.access import find_refusal
from horsies_worker.session import MAX_CONNECT_PATIENCE, STATEMENT_TIMEOUT_S

_log = logging.getLogger("horsies.worker")


class DatabaseGone(HorsiesError):
    """The database cannot be used and waiting will not help, or has been tried for as long as was allowed."""


async def connect_ready(app: Horsies, broker: PostgresConfig, *, timeout_s: float | None, who: str = "worker") -> Any:
    """A connection to a database that is ready; the caller closes it. Raises DatabaseGone or SchemaError."""
    connection = await _connect(app, broker, timeout_s, who)
    try:
        with refusals_told(broker, who):
            refusal = await find_refusal(connection, app.schema, who)
            if refusal is not None:
                raise DatabaseGone(f"the database refuses this {who}: {refusal}")
            await _require_current(app, broker, connection)
    except BaseException:
        connection.terminate()  # closing politely would wait for a server that may not answer
        raise
    return connection


@contextmanager
def refusals_told(broker: PostgresConfig, who: str) -> Generator[None]:
    """What the server refuses in this block ends the process with a sentence, not with a traceback."""
    try:
        yield
    except Exception as error:
        if not is_from_driver(error) or is_transient(error):
            raise
        raise DatabaseGone(told_refused(error, broker, who)) from error


def told_refused(error: Exception, broker: PostgresConfig, who: str) -> str:
    fix = remedy(error)
    told = broker.redact(f"{type(error).__name__}: {error}")
    return f"the database refuses this {who}: {told}{'; ' if fix else ''}{fix or ''}"


async def connect_listener(broker: PostgresConfig, who: str = "worker") -> Any:
    """A connection for LISTEN, around a pooler if there is one."""
    arguments = connect_arguments(broker, direct=True)
    # Nothing but a name: LISTEN needs no more, and a pooler that stands here by mistake would refuse the rest for
    # ever. Let in, it is found out by the worker's self-test.
    arguments["server_settings"] = {"application_name": f"{broker.application_name} {who} listen"[:63]}
    arguments["command_timeout"] = min(arguments.get("command_timeout", STATEMENT_TIMEOUT_S), STATEMENT_TIMEOUT_S)
    return await connect(arguments)


async def _connect(app: Horsies, broker: PostgresConfig, timeout_s: float | None, who: str) -> Any:
    backoff = Backoff(app.config.resilience)
    give_up = None if timeout_s is None else time.monotonic() + timeout_s
    arguments = connect_arguments(broker)
    longest = MAX_CONNECT_PATIENCE * arguments["timeout"]
    while True:
        try:
            return await connect(arguments)
        except Exception as error:
            told = broker.redact(f"{type(error).__name__}: {error}")
            if not is_transient(error):
                raise DatabaseGone(told_refused(error, broker, who)) from error
            if isinstance(error, TimeoutError):  # a slow line: the same bound would be too short again
                arguments["timeout"] = min(2 * arguments["timeout"], longest)
            delay = backoff.next()
            if give_up is not None and time.monotonic() + delay > give_up:
                raise DatabaseGone(f"the database could not be reached: {told}") from error
            _log.warning("database: %s; trying again in %.1f s", told, delay)
            await asyncio.sleep(delay)


async def _require_current(app: Horsies, broker: PostgresConfig, connection: Any) -> None:
    """With `auto_migrate`, a database that is behind is upgraded; one that this release can work with as it is does
    not keep the worker from starting when that fails."""
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
            _log.warning("%s (the upgrade failed: %s)", behind(found, app.schema), error)
        else:
            await require_schema(connection, app.schema)
    elif found is not None:
        _log.warning("%s", behind(found, app.schema))


async def _migrate(app: Horsies, broker: PostgresConfig) -> None:
    # only now: Alembic and SQLAlchemy are loaded when the schema is behind, and not otherwise
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
    _log.info("schema upgraded to revision %s", revision)
