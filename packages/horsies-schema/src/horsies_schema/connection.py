"""The connection of a migration: opened, checked for what it is connected to, under the lock of migrations.

Trusts nothing about who else is migrating: a session advisory lock lets one run at a time and the
others find the work done. DDL waits for table locks only in short slices, because a waiting ACCESS
EXCLUSIVE request blocks every claim that queues up behind it.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import asyncpg
from alembic.util import CommandError
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine
from sqlalchemy.pool import NullPool

from horsies_schema.environment import VERSION_TABLE
from horsies_schema.errors import ExitCode, MigrationError
from horsies_schema.models import Base
from horsies_schema.revisions import head, known_revisions
from horsies_schema.urls import server_of, url_problem

T = TypeVar("T")
_log = logging.getLogger("horsies.migrate")

MINIMUM_SERVER = 14
# "horsies" in ASCII; the second half of the key is the schema, so two schemas migrate side by side
LOCK_KEY = 0x686F7273
CONNECT_TIMEOUT_S = 15
LOCK_SLICE_MS = 5_000
LOCK_PATIENCE_S = 600.0


def quote_identifier(name: str) -> str:
    """Quote for SQL; a schema's name comes from configuration and is never pasted as it is."""
    if not name or "\0" in name or len(name.encode()) > 63:
        raise MigrationError(f"{name!r} cannot be a schema's name: 1 to 63 bytes, no NUL", ExitCode.USAGE)
    return '"' + name.replace('"', '""') + '"'


def normalize_url(url: str) -> str:
    """One form for asyncpg, from the forms that people have in their settings; starts an embedded server."""
    url = url.strip()
    if url.lower().startswith("embedded:"):
        from horsies_schema.embedded import EmbeddedError, resolve

        try:
            return resolve(url)
        except EmbeddedError as error:
            raise MigrationError(str(error), ExitCode.UNREACHABLE) from error
    if problem := url_problem(url):
        raise MigrationError(f"the database URL {problem}", ExitCode.USAGE)
    return f"postgresql://{url.partition('://')[2]}"


async def _connect(url: str, schema: str | None) -> Any:
    """asyncpg parses the URL itself (TLS words, several hosts, passfile). Its errors of parsing quote what they fail
    on, which may be a part of the password: none of them is shown, or chained to what is."""
    dsn = normalize_url(url)
    settings = {"application_name": "horsies-migrate", "default_transaction_isolation": "read committed"}
    if schema is not None:
        settings["search_path"] = quote_identifier(schema)
    try:
        return await asyncpg.connect(dsn, server_settings=settings, timeout=CONNECT_TIMEOUT_S)
    except TimeoutError:
        told = f"cannot reach the database{_at(dsn)}: it has not answered within {CONNECT_TIMEOUT_S} s"
        raise MigrationError(told, ExitCode.UNREACHABLE) from None
    except (OSError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError) as error:
        told = f"cannot reach the database{_at(dsn)}: {_first_line(error)}"
        if isinstance(error, OSError):
            told += "; is the server running, and are host and port of the URL right?"
        if "unsupported startup parameter" in told:
            told += "; a pooler such as PgBouncer stands in front of the server: give the server's own URL"
        raise MigrationError(told, ExitCode.UNREACHABLE) from None
    except asyncpg.PostgresError as error:  # wrong password, no such database, too many connections
        raise MigrationError(f"cannot open the database: {_first_line(error)}", ExitCode.UNREACHABLE) from None
    except (asyncpg.InterfaceError, ValueError):
        raise MigrationError(
            "the database URL cannot be used: check its parts and its TLS files; in a password percent-encode "
            ": / ? # @ as %3A %2F %3F %23 %40",
            ExitCode.USAGE,
        ) from None


def _at(dsn: str) -> str:
    server = server_of(dsn)
    return f" at {server}" if server else ""


async def on_database(url: str, schema: str | None, work: Callable[[Connection], T]) -> T:
    raw = await _connect(url, schema)

    async def connect() -> Any:
        return raw

    # SQLAlchemy only borrows the connection: it would wrap the errors of connecting in its own
    engine = create_async_engine("postgresql+asyncpg://", async_creator=connect, poolclass=NullPool)
    try:
        async with engine.connect() as connection:
            try:
                return await connection.run_sync(work)
            except DBAPIError as error:
                # here, because SQLAlchemy closes the connection at the end of this block
                raise await _refused(connection, error, is_lost=raw.is_closed()) from error
    except CommandError as error:  # Alembic's word for a revision that does not exist
        raise MigrationError(f"{_first_line(error)}; this package's newest is {head()}", ExitCode.USAGE) from error
    finally:
        await engine.dispose()
        if not raw.is_closed():
            raw.terminate()


async def _refused(connection: AsyncConnection, error: DBAPIError, *, is_lost: bool) -> MigrationError:
    told = _first_line((error.orig and error.orig.__cause__) or error.orig or error)
    state = getattr(error.orig, "sqlstate", None) or ""
    # the server's last words before it closes the connection may arrive before the end of the connection
    if is_lost or connection.invalidated or state.startswith(("08", "57P")):
        return MigrationError(f"the connection to the database was lost: {told}", ExitCode.UNREACHABLE)
    if state in _MISSING_RIGHTS:
        await connection.rollback()
        found = (await connection.exec_driver_sql(_RIGHTS)).mappings().one()
        told += f"; the role is {found['role']!r}: "
        if found["owner"] not in (None, found["role"]):
            told += f"run this as {found['owner']!r}, which owns the horsies tables"
        else:
            target = f"DATABASE {found['database']}" if "for database" in told else f"SCHEMA {found['schema']}"
            told += f"run this as the owner, or let the owner GRANT CREATE ON {target} TO {found['quoted']}"
    return MigrationError(f"the database refused a statement: {told}", ExitCode.UNSUITABLE)


# insufficient_privilege; invalid_schema_name, for CREATE without a schema that the role may use
_MISSING_RIGHTS = ("42501", "3F000")
_RIGHTS = f"""
SELECT current_user::text AS role, quote_ident(current_user) AS quoted, quote_ident(current_database()) AS database,
       coalesce(quote_ident(current_schema()), current_setting('search_path')) AS schema,
       (SELECT pg_get_userbyid(c.relowner)::text FROM pg_class c WHERE c.oid = to_regclass('{VERSION_TABLE}')) AS owner
"""


def require_readable(connection: Connection, schema: str | None) -> None:
    """Raise `MigrationError`, in the words of the client, where the role may not read the revision."""
    lack = connection.exec_driver_sql(_MISSING_RIGHT, (schema,)).one_or_none()
    connection.rollback()
    if lack is not None:
        role, right = lack
        raise MigrationError(
            f"the connection works, but role {role!r} has no {right}: let the owner of the tables run what "
            "`horsies-migrate grants` prints, and grant one of its roles to this one",
            ExitCode.UNSUITABLE,
        )


# Reads catalogs alone, which every role may read: to_regclass does not see a schema without USAGE.
_MISSING_RIGHT = f"""
SELECT current_user::text AS role,
       CASE WHEN has_schema_privilege(n.oid, 'USAGE')
            THEN 'SELECT on table ' || quote_ident(n.nspname) || '.' || c.relname
            ELSE 'USAGE on schema ' || quote_ident(n.nspname) END AS missing
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = '{VERSION_TABLE}' AND c.relkind IN ('r', 'p')
   AND NOT (has_schema_privilege(n.oid, 'USAGE') AND has_table_privilege(c.oid, 'SELECT'))
   AND CASE WHEN $1::text IS NOT NULL THEN n.nspname = $1::text
            WHEN to_regclass('{VERSION_TABLE}') IS NOT NULL THEN c.oid = to_regclass('{VERSION_TABLE}')
            ELSE EXISTS (
                 SELECT FROM unnest(string_to_array(current_setting('search_path'), ',')) AS entry (name)
                  WHERE replace(trim(both ' "' FROM entry.name), '$user', current_user) = n.nspname) END
 ORDER BY n.nspname LIMIT 1
"""


async def under_lock(url: str, schema: str | None, work: Callable[[Connection], T]) -> T:
    def locked(connection: Connection) -> T:
        require_suitable(connection, for_writing=True)
        key = f"{LOCK_KEY}, {_SCHEMA_KEY}"
        connection.exec_driver_sql(f"SET lock_timeout = {LOCK_SLICE_MS}")
        connection.commit()

        def is_locked() -> bool:
            return connection.exec_driver_sql(f"SELECT pg_try_advisory_lock({key})").scalar_one()

        if not is_locked():
            told = _tell_holders(connection, _MIGRATION_LOCK_HOLDERS)
            # A session that waits inside a statement has a snapshot, for which CREATE INDEX CONCURRENTLY in the session
            # that migrates would wait in turn.
            in_slices(connection, is_locked, _MIGRATION_LOCK_HOLDERS, told, longest_pause_s=0.5)
        connection.commit()
        try:
            # again under the lock: a newer release may have migrated while this process waited
            require_suitable(connection, for_writing=True)
            return work(connection)
        finally:
            if not connection.invalidated:
                connection.rollback()
                connection.exec_driver_sql(f"SELECT pg_advisory_unlock({key})")
                connection.commit()

    return await on_database(url, schema, locked)


_SCHEMA_KEY = "hashtext(coalesce(current_schema(), ''))"
_MIGRATION_LOCK_HOLDERS = f"""
SELECT 'the lock of migrations' AS what, a.pid, a.usename, a.application_name
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
   AND l.classid::bigint = {LOCK_KEY} AND l.objid::bigint = {_SCHEMA_KEY} & 4294967295
"""
# Which of them are in the way is not known any more: the oldest transactions first, which are the likeliest.
_TABLE_LOCK_HOLDERS = """
SELECT 'locks on ' || string_agg(DISTINCT c.relname, ', ') AS what, a.pid, a.usename, a.application_name
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid JOIN pg_class c ON c.oid = l.relation
 WHERE l.granted AND l.pid <> pg_backend_pid() AND c.relkind IN ('r', 'p') AND c.relname LIKE 'horsies!_%' ESCAPE '!'
   AND c.relnamespace = to_regnamespace(quote_ident(current_schema()))
   AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
 GROUP BY a.pid, a.usename, a.application_name, a.xact_start ORDER BY a.xact_start NULLS LAST LIMIT 3
"""


def _tell_holders(connection: Connection, query: str, told: str = "") -> str:
    """Log the sessions that may be waited for, unless `told` has them; returns what was logged last."""
    found = "; ".join(
        f"session {pid} (role {role}, application {name or 'unnamed'!r}) holds {what}"
        for what, pid, role, name in connection.exec_driver_sql(query).all()
    )
    connection.rollback()
    if found and found != told:
        _log.warning("waiting: %s", found)
    return found or told


def in_slices(
    connection: Connection,
    action: Callable[[], object],
    holders: str = _TABLE_LOCK_HOLDERS,
    told: str = "",
    *,
    longest_pause_s: float = 5.0,
) -> None:
    """Retry an action that waits for locks (lock_timeout ends each wait) or that returns False when it did not get its
    lock; the pause lets the fleet pass. `holders`: the query for the sessions that may be waited for, which are logged;
    `told`: what was logged of them already."""
    began = time.monotonic()
    give_up = began + LOCK_PATIENCE_S
    pause = 0.1
    while True:
        cause: DBAPIError | None = None
        try:
            if action() is not False:
                if told:
                    _log.info("waited %.1f s for locks, which are free now", time.monotonic() - began)
                return
        except DBAPIError as error:
            # lock_not_available, deadlock_detected
            if getattr(error.orig, "sqlstate", None) not in ("55P03", "40P01"):
                raise
            cause = error
        connection.rollback()
        told = _tell_holders(connection, holders, told)
        if time.monotonic() + pause > give_up:
            raise MigrationError(
                f"could not get the locks for a migration within {LOCK_PATIENCE_S:.0f} s: another migration or a "
                f"long transaction holds them{f' ({told})' if told else ''}; see pg_stat_activity, then run it "
                "again (nothing was half done)",
                ExitCode.LOCKED,
            ) from cause
        time.sleep(pause)
        pause = min(pause * 2, longest_pause_s)


def require_suitable(connection: Connection, *, for_writing: bool) -> None:
    version, encoding, in_recovery = connection.exec_driver_sql(
        "SELECT current_setting('server_version_num')::int, current_setting('server_encoding'), pg_is_in_recovery()"
    ).one()
    problem = unsuitable(version, encoding, in_recovery=in_recovery and for_writing)
    if problem is None:
        _go_home(connection)
        found = current_revision(connection)
        breaking = _breaking(connection) if found is not None else None
        if found is None:
            problem = _taken_names(connection)
        elif found not in known_revisions() and (for_writing or breaking is not None):
            why = f", and code that does not know {breaking} cannot work with it" if breaking else ""
            problem = (
                f"the database is at revision {found}, which is newer than this package knows (its newest is "
                f"{head()}{why}): install the horsies-schema that made it"
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
    if connection.exec_driver_sql(f"SELECT to_regclass('{VERSION_TABLE}')").scalar() is not None:
        return (
            f"the horsies tables are there, but the table {VERSION_TABLE} is empty: as the owner of the tables restore "
            "its row from a backup, or insert the revision that `horsies-migrate up` brought them to, such as that of "
            f"another database of the same release: INSERT INTO {VERSION_TABLE} (version_num) VALUES ('...'); "
            "`horsies doctor` then names what does not fit it"
        )
    schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
    return (
        f"schema {schema!r} holds tables of these names that horsies-migrate did not make ({', '.join(names)}): they "
        "are left as they are; use a schema of its own with `horsies-migrate up --schema NAME` and "
        "PostgresConfig(schema=NAME)" + _of_0x(names)
    )


def _of_0x(names: Sequence[str]) -> str:
    """The original horsies makes tables of the same names."""
    is_likely = {"horsies_tasks", "horsies_schedule_state", "horsies_worker_states"} <= set(names)
    return (
        "; they look like those of horsies 0.x: see moving/from-horsies-0.md in the documentation" if is_likely else ""
    )


def _breaking(connection: Connection) -> str | None:
    """The newest revision that code must know, if this package does not."""
    found = connection.exec_driver_sql(f"SELECT to_jsonb(v) ->> 'breaking' FROM {VERSION_TABLE} v").scalar()
    return found if found and found > head() else None


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


def current_revision(connection: Connection) -> str | None:
    if connection.exec_driver_sql(f"SELECT to_regclass('{VERSION_TABLE}')").scalar() is None:
        return None
    found = connection.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE} ORDER BY 1").scalars().all()
    if len(found) > 1:
        raise MigrationError(
            f"the table {VERSION_TABLE} has {len(found)} rows ({', '.join(found)}), not one: delete all but that of "
            "the revision which the tables are at",
            ExitCode.UNSUITABLE,
        )
    return found[0] if found else None


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
