"""Upgrade, downgrade and inspect a database's horsies schema."""

import asyncio
import io
from collections.abc import Callable, Coroutine
from itertools import count
from typing import Any, TypeVar

import asyncpg
from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection

from horsies_schema.connection import (
    LOCK_SLICE_MS,
    current_revision,
    in_slices,
    on_database,
    quote_identifier,
    require_readable,
    require_suitable,
    under_lock,
)
from horsies_schema.environment import VERSION_TABLE
from horsies_schema.errors import ExitCode, MigrationError as MigrationError
from horsies_schema.revisions import alembic_config, head as head, is_older, known_revisions, steps_between
from horsies_schema.roles import grants

T = TypeVar("T")


OnStep = Callable[[str, int, int | None], None]
"""Is called for each revision with its name, its number in this run, and how many there are, if that is known."""


async def upgrade_async(
    url: str, revision: str = "head", *, schema: str | None = None, on_step: OnStep | None = None
) -> str:
    """Bring the database up to `revision` and return the revision it is at. Safe to run at once from many places."""

    def work(connection: Connection) -> str:
        if schema is not None:
            _create_schema(connection, schema)
        in_slices(connection, lambda: command.upgrade(_config(connection, revision, on_step), revision))
        return current_revision(connection) or ""

    return await under_lock(url, schema, work)


async def apply_grants_async(url: str, *, schema: str | None = None, prefix: str = "horsies_") -> None:
    """Run the SQL of `grants` as the account of the URL, which owns the tables; without `schema` for the schema that
    its search_path leads to."""

    def work(connection: Connection) -> None:
        place = schema or connection.exec_driver_sql("SELECT current_schema()").scalar_one()
        connection.commit()  # the SQL has a transaction of its own
        text = grants(schema=place, prefix=prefix)

        async def run(raw: Any) -> None:
            try:
                await raw.execute(text)  # several statements at once, which SQLAlchemy's own calls do not take
            except asyncpg.PostgresError as error:
                await raw.execute("ROLLBACK")
                raise MigrationError(
                    f"the rights were not granted: {str(error).splitlines()[0]}; let the owner of the tables, or an "
                    "administrator, run what `horsies-migrate grants` prints",
                    ExitCode.UNSUITABLE,
                ) from error

        connection.connection.run_async(run)

    await under_lock(url, schema, work)


async def downgrade_async(
    url: str, revision: str, *, schema: str | None = None, on_step: OnStep | None = None
) -> str | None:
    """Take the database down to `revision` ("base" removes everything). Data in dropped tables is gone."""

    def work(connection: Connection) -> str | None:
        found = current_revision(connection)
        connection.rollback()
        if found is None and revision != "base":
            raise MigrationError(
                f"there is nothing to take down to {revision}: {_where(schema)} has no horsies tables", ExitCode.USAGE
            )
        if found is not None:
            in_slices(connection, lambda: command.downgrade(_config(connection, revision, on_step), revision))
        if current_revision(connection) is None:
            # Alembic leaves its empty table behind; "base" means that nothing of ours is left
            connection.exec_driver_sql(f"DROP TABLE IF EXISTS {VERSION_TABLE}")
            connection.commit()
        return current_revision(connection)

    if revision != "base" and revision not in known_revisions():
        raise MigrationError(
            f"there is no revision {revision!r}: name one from 0001 to {head()}, or base, which removes everything",
            ExitCode.USAGE,
        )
    return await under_lock(url, schema, work)


def _where(schema: str | None) -> str:
    return f"schema {schema!r} of this database" if schema else "this database (by its search_path)"


async def current_async(url: str, *, schema: str | None = None) -> str | None:
    """The revision the database is at; None when it has no horsies tables."""

    def work(connection: Connection) -> str | None:
        require_readable(connection, schema)
        return current_revision(connection)

    return await on_database(url, schema, work)


async def check_async(url: str, *, schema: str | None = None) -> str:
    """The revision the database is at. Raise `MigrationError` unless it is fit for horsies and at this package's head,
    or newer without breaking the code of this release."""

    def work(connection: Connection) -> str:
        require_readable(connection, schema)
        require_suitable(connection, for_writing=False)
        found = current_revision(connection)
        if found is None or found < head():
            option = f" --schema {schema}" if schema else ""
            state = f"is at revision {found}, this release" if found else "has no horsies tables, this package"
            raise MigrationError(
                f"the database {state} needs {head()}: run `horsies-migrate up{option}`", ExitCode.BEHIND
            )
        return found

    return await on_database(url, schema, work)


def upgrade(url: str, revision: str = "head", *, schema: str | None = None, on_step: OnStep | None = None) -> str:
    """See `upgrade_async`."""
    return _blocking(lambda: upgrade_async(url, revision, schema=schema, on_step=on_step))


def apply_grants(url: str, *, schema: str | None = None, prefix: str = "horsies_") -> None:
    """See `apply_grants_async`."""
    _blocking(lambda: apply_grants_async(url, schema=schema, prefix=prefix))


def downgrade(url: str, revision: str, *, schema: str | None = None, on_step: OnStep | None = None) -> str | None:
    """See `downgrade_async`."""
    return _blocking(lambda: downgrade_async(url, revision, schema=schema, on_step=on_step))


def current(url: str, *, schema: str | None = None) -> str | None:
    """See `current_async`."""
    return _blocking(lambda: current_async(url, schema=schema))


def check(url: str, *, schema: str | None = None) -> str:
    """See `check_async`."""
    return _blocking(lambda: check_async(url, schema=schema))


def _blocking(verb: Callable[[], Coroutine[Any, Any, T]]) -> T:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(verb())
    raise MigrationError("this function blocks: on a running event loop, await its _async twin", ExitCode.USAGE)


def sql(revision: str = "head", *, since: str = "base", schema: str | None = None) -> str:
    """The upgrade as SQL for a database owner to review and run; needs no connection."""
    buffer = io.StringIO()
    if schema is not None:
        quoted = quote_identifier(schema)
        buffer.write(f"CREATE SCHEMA IF NOT EXISTS {quoted};\n\nSET search_path TO {quoted};\n\n")
    buffer.write(f"SET lock_timeout = {LOCK_SLICE_MS};\n\n")
    config = alembic_config()
    config.output_buffer = buffer
    try:
        if is_older(revision, since):
            raise MigrationError(
                f"revision {revision} is older than {since} of --since, and no SQL leads down: name a newer one, or go "
                f"down with `horsies-migrate down {revision} --yes`",
                ExitCode.USAGE,
            )
        command.upgrade(config, f"{since}:{revision}", sql=True)
    except CommandError as error:
        raise MigrationError(f"{error}; this package's newest is {head()}", ExitCode.USAGE) from error
    return buffer.getvalue()


def on_connection(url: str, work: Callable[[Connection], T], *, schema: str | None = None) -> T:
    """Run `work` as a migration runs: checked, under the lock, one at a time."""
    return _blocking(lambda: under_lock(url, schema, work))


def _config(connection: Connection, revision: str, on_step: OnStep | None) -> Config:
    """The configuration of one try, which counts the steps for `on_step`."""
    config = alembic_config(connection)
    if on_step is None:
        return config
    total, numbers = steps_between(current_revision(connection), revision), count(1)
    connection.rollback()

    def count_step(name: str) -> None:
        on_step(name, next(numbers), total)

    config.attributes["on_step"] = count_step
    return config


def _create_schema(connection: Connection, schema: str) -> None:
    if connection.exec_driver_sql("SELECT to_regnamespace($1)", (quote_identifier(schema),)).scalar() is None:
        connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {quote_identifier(schema)}")
    connection.commit()
