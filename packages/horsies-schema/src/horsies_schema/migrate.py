"""Upgrade, downgrade and inspect a database's horsies schema.

Trusts nothing about who else is migrating: a session advisory lock lets one run at a time and the
others find the work done. DDL waits for table locks only in short slices, because a waiting ACCESS
EXCLUSIVE request blocks every claim that queues up behind it.
"""

import asyncio
import io
import re
import time
from collections.abc import Callable, Coroutine
from enum import IntEnum
from functools import cache
from typing import Any, TypeVar

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool

from horsies_schema.environment import VERSION_TABLE
from horsies_schema.models import Base

T = TypeVar("T")

MINIMUM_SERVER = 14
# "horsies" in ASCII; the second half of the key is the schema, so two schemas migrate side by side
LOCK_KEY = 0x686F7273
LOCK_SLICE_MS = 5_000
LOCK_PATIENCE_S = 600.0


class ExitCode(IntEnum):
    """What `horsies-migrate` says to a script."""

    OK = 0
    BEHIND = 1
    USAGE = 2
    UNSUITABLE = 3
    UNREACHABLE = 4
    LOCKED = 5


class MigrationError(RuntimeError):
    """One sentence for a person, and the exit code for a script."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


# -- verbs ---------------------------------------------------------------------------------------


async def upgrade_async(url: str, revision: str = "head", *, schema: str | None = None) -> str:
    """Bring the database up to `revision` and return the revision it is at. Safe to run at once from many places."""

    def work(connection: Connection) -> str:
        if schema is not None:
            _create_schema(connection, schema)
        _in_slices(connection, lambda: command.upgrade(_config(connection), revision))
        return _revision(connection) or ""

    return await _locked(url, schema, work)


async def downgrade_async(url: str, revision: str, *, schema: str | None = None) -> str | None:
    """Take the database down to `revision` ("base" removes everything). Data in dropped tables is gone."""

    def work(connection: Connection) -> str | None:
        _in_slices(connection, lambda: command.downgrade(_config(connection), revision))
        if _revision(connection) is None:
            # Alembic leaves its empty table behind; "base" means that nothing of ours is left
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {VERSION_TABLE}")
            connection.commit()
        return _revision(connection)

    return await _locked(url, schema, work)


async def current_async(url: str, *, schema: str | None = None) -> str | None:
    """The revision the database is at; None when it has no horsies tables."""
    return await _connected(url, schema, _revision)


async def check_async(url: str, *, schema: str | None = None) -> None:
    """Raise `MigrationError` unless the database is at this package's head and fit for horsies."""

    def work(connection: Connection) -> None:
        _require_suitable(connection, for_writing=False)
        found = _revision(connection)
        if found != head():
            option = f" --schema {schema}" if schema else ""
            state = f"is at revision {found}, this release" if found else "has no horsies tables, this package"
            raise MigrationError(
                f"the database {state} needs {head()}: run `horsies-migrate up{option}`", ExitCode.BEHIND
            )

    await _connected(url, schema, work)


def upgrade(url: str, revision: str = "head", *, schema: str | None = None) -> str:
    """See `upgrade_async`."""
    return _blocking(lambda: upgrade_async(url, revision, schema=schema))


def downgrade(url: str, revision: str, *, schema: str | None = None) -> str | None:
    """See `downgrade_async`."""
    return _blocking(lambda: downgrade_async(url, revision, schema=schema))


def current(url: str, *, schema: str | None = None) -> str | None:
    """See `current_async`."""
    return _blocking(lambda: current_async(url, schema=schema))


def check(url: str, *, schema: str | None = None) -> None:
    """See `check_async`."""
    _blocking(lambda: check_async(url, schema=schema))


def _blocking(verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(verb())
    raise MigrationError("this function blocks: on a running event loop, await its _async twin", ExitCode.USAGE)


@cache
def head() -> str:
    """The newest revision that this package knows."""
    found = ScriptDirectory.from_config(_config()).get_current_head()
    if found is None:
        raise RuntimeError("this installation of horsies-schema has no migrations")
    return found


def sql(revision: str = "head", *, since: str = "base", schema: str | None = None) -> str:
    """The upgrade as SQL for a database owner to review and run; needs no connection."""
    buffer = io.StringIO()
    if schema is not None:
        quoted = quote_identifier(schema)
        buffer.write(f"CREATE SCHEMA IF NOT EXISTS {quoted};\n\nSET search_path TO {quoted};\n\n")
    buffer.write(f"SET lock_timeout = {LOCK_SLICE_MS};\n\n")
    config = _config()
    config.output_buffer = buffer
    command.upgrade(config, f"{since}:{revision}", sql=True)
    return buffer.getvalue()


def on_connection(url: str, work: Callable[[Connection], T], *, schema: str | None = None) -> T:
    """Run `work` as a migration runs: checked, under the lock, one at a time."""
    return _blocking(lambda: _locked(url, schema, work))


def quote_identifier(name: str) -> str:
    """Quote for SQL; a schema's name comes from configuration and is never pasted as it is."""
    if not name or "\0" in name or len(name.encode()) > 63:
        raise MigrationError(f"{name!r} cannot be a schema's name: 1 to 63 bytes, no NUL", ExitCode.USAGE)
    return '"' + name.replace('"', '""') + '"'


def normalize_url(url: str) -> str:
    """One form for asyncpg, from the forms that people have in their settings; starts an embedded server."""
    if url.startswith("embedded:"):
        from horsies_schema.embedded import resolve

        return resolve(url)
    plain, replaced = re.subn(r"^postgres(ql)?(\+\w+)?://", "postgresql://", url)
    if not replaced:
        raise MigrationError(
            "the database URL must begin with postgresql://, postgres://, postgresql+asyncpg://, "
            "postgresql+psycopg:// or embedded://",
            ExitCode.USAGE,
        )
    return plain


# -- connections and locks -----------------------------------------------------------------------


async def _connected(url: str, schema: str | None, work: Callable[[Connection], T]) -> T:
    dsn = normalize_url(url)
    settings = {"application_name": "horsies-migrate", "default_transaction_isolation": "read committed"}
    if schema is not None:
        settings["search_path"] = quote_identifier(schema)

    async def connect() -> Any:
        return await asyncpg.connect(dsn, server_settings=settings, timeout=15)

    # asyncpg parses the URL itself (TLS words, several hosts, passfile); SQLAlchemy only borrows the connection
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            return await connection.run_sync(work)
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError, TimeoutError) as error:
        raise MigrationError(f"cannot reach the database: {_first_line(error)}", ExitCode.UNREACHABLE) from error
    except (asyncpg.InvalidAuthorizationSpecificationError, asyncpg.InvalidCatalogNameError) as error:
        raise MigrationError(f"cannot open the database: {_first_line(error)}", ExitCode.UNREACHABLE) from error
    except asyncpg.ClientConfigurationError as error:
        raise MigrationError(f"the database URL cannot be used: {_first_line(error)}", ExitCode.USAGE) from error
    except CommandError as error:  # Alembic's word for a revision that does not exist
        raise MigrationError(f"{_first_line(error)}; this package's newest is {head()}", ExitCode.USAGE) from error
    except SQLAlchemyError as error:
        if isinstance(error, DBAPIError):
            raise MigrationError(
                f"the database refused a statement: {_first_line(error.orig or error)}", ExitCode.UNSUITABLE
            ) from error
        raise
    finally:
        await engine.dispose()


async def _locked(url: str, schema: str | None, work: Callable[[Connection], T]) -> T:
    def locked(connection: Connection) -> T:
        _require_suitable(connection, for_writing=True)
        key = f"{LOCK_KEY}, hashtext(coalesce(current_schema(), ''))"
        connection.exec_driver_sql(f"SET lock_timeout = {LOCK_SLICE_MS}")
        connection.commit()
        _in_slices(connection, lambda: connection.exec_driver_sql(f"SELECT pg_advisory_lock({key})"))
        connection.commit()
        try:
            # again under the lock: whoever held it may have been a newer release
            _require_suitable(connection, for_writing=True)
            return work(connection)
        finally:
            if not connection.invalidated:
                connection.rollback()
                connection.exec_driver_sql(f"SELECT pg_advisory_unlock({key})")
                connection.commit()

    return await _connected(url, schema, locked)


def _in_slices(connection: Connection, action: Callable[[], object]) -> None:
    """Retry an action that waits for locks: lock_timeout ends each wait, the pause lets the fleet pass."""
    give_up = time.monotonic() + LOCK_PATIENCE_S
    pause = 0.1
    while True:
        try:
            action()
            return
        except DBAPIError as error:
            # lock_not_available, deadlock_detected
            if getattr(error.orig, "sqlstate", None) not in ("55P03", "40P01"):
                raise
            connection.rollback()
            if time.monotonic() + pause > give_up:
                raise MigrationError(
                    f"could not get the locks for a migration within {LOCK_PATIENCE_S:.0f} s: another migration or a "
                    "long transaction holds them; see pg_stat_activity, then run it again (nothing was half done)",
                    ExitCode.LOCKED,
                ) from error
            time.sleep(pause)
            pause = min(pause * 2, 5.0)


# -- facts ---------------------------------------------------------------------------------------


def _require_suitable(connection: Connection, *, for_writing: bool) -> None:
    version, encoding, in_recovery = connection.exec_driver_sql(
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), pg_is_in_recovery()"
    ).one()
    problem = unsuitable(version, encoding, in_recovery=in_recovery and for_writing)
    if problem is None:
        _go_home(connection)
        found = _revision(connection)
        if found is None:
            problem = _taken_names(connection)
        elif found not in _known_revisions():
            problem = (
                f"the database is at revision {found}, which is newer than this package knows (its newest is "
                f"{head()}{_breaking(connection)}): install the horsies-schema that made it"
            )
    connection.rollback()
    if problem is not None:
        raise MigrationError(problem, ExitCode.UNSUITABLE)


def _go_home(connection: Connection) -> None:
    """Work in the schema that holds the tables, wherever the role's own search_path would put new ones: with a schema
    of the role's name, `"$user"` comes first, and a later revision's tables would be made there."""
    homes = connection.exec_driver_sql(
        "SELECT n.nspname FROM unnest(current_schemas(false)) WITH ORDINALITY AS path (name, place)"
        " JOIN pg_namespace n ON n.nspname = path.name JOIN pg_class c ON c.relnamespace = n.oid"
        f" WHERE c.relname = '{VERSION_TABLE}' ORDER BY path.place"
    ).scalars()
    match homes.all():
        case []:
            return
        case [home]:
            connection.exec_driver_sql(f"SET search_path TO {quote_identifier(home)}")
            connection.commit()
        case several:
            raise MigrationError(
                f"the schemas {' and '.join(map(repr, several))} both hold horsies tables, and this role's search_path "
                "names both: say which one is meant with --schema",
                ExitCode.UNSUITABLE,
            )


def _taken_names(connection: Connection) -> str | None:
    """Why the tables cannot be made where other tables have their names already."""
    taken = connection.exec_driver_sql(
        "SELECT c.relname FROM pg_class c WHERE c.relnamespace = to_regnamespace(quote_ident(current_schema()))"
        f" AND c.relname IN ({', '.join(repr(name) for name in sorted(Base.metadata.tables))}) ORDER BY 1"
    ).scalars()
    names = taken.all()
    if not names:
        return None
    schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
    return (
        f"schema {schema!r} holds tables of these names that horsies-migrate did not make ({', '.join(names)}): they "
        "are left as they are; use a schema of its own with `horsies-migrate up --schema NAME` and "
        "PostgresConfig(schema=NAME)"
    )


def _breaking(connection: Connection) -> str:
    found = connection.exec_driver_sql(f"SELECT to_jsonb(v) ->> 'breaking' FROM {VERSION_TABLE} v").scalar()
    return f", and code that does not know {found} cannot work with it" if found and found > head() else ""


def unsuitable(version_num: int, encoding: str, *, in_recovery: bool) -> str | None:
    """Why horsies cannot live in such a database, in one sentence; None when it can."""
    if version_num // 10_000 < MINIMUM_SERVER:
        return f"the server is PostgreSQL {version_num // 10_000}, horsies needs {MINIMUM_SERVER} or newer: upgrade it"
    if encoding != "UTF8":
        return (
            f"the database's encoding is {encoding}, horsies needs UTF8: "
            "create one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE template0"
        )
    if in_recovery:
        return "the server is in recovery (a read-only standby): connect to the primary"
    return None


def _revision(connection: Connection) -> str | None:
    if connection.exec_driver_sql(f"SELECT to_regclass('{VERSION_TABLE}')").scalar() is None:
        return None
    return connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}").scalar()


def _create_schema(connection: Connection, schema: str) -> None:
    if connection.exec_driver_sql("SELECT to_regnamespace($1)", (quote_identifier(schema),)).scalar() is None:
        connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(schema)}")
    connection.commit()


@cache
def _known_revisions() -> frozenset[str]:
    return frozenset(script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions())


def _config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection} if connection is not None else {})
    config.set_main_option("script_location", "horsies_schema:migrations")
    return config


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
