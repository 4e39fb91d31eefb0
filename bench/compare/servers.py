"""A private durable PostgreSQL and a private Redis for the length of a run.

PostgreSQL: the embedded wheel with fsync on, or the server of HORSIES_BENCH_URL, where databases named horsies_bench_*
come and go. Redis: append-only file, fsync every second, which is how people run a broker they do not want to lose; a
crash of the machine still costs it up to a second of acknowledged work, which PostgreSQL's commit does not.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg

from bench.compare.install import Absent, redis_program
from horsies_schema import embedded

SETTINGS = {
    "fsync": "on",
    "shared_buffers": "256MB",
    "max_connections": "300",
    "max_wal_size": "4GB",  # no checkpoint in the middle of a measurement; there is one before each
    "shared_preload_libraries": "pg_stat_statements",
}


class Redis:
    """The few commands that the bench itself needs, over a socket."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._file = self._socket.makefile("rb")

    def command(self, *words: str) -> Any:
        parts = [f"*{len(words)}\r\n"] + [f"${len(word)}\r\n{word}\r\n" for word in words]
        self._socket.sendall("".join(parts).encode())
        kind = self._file.readline()
        if kind[:1] == b"$":
            size = int(kind[1:])
            return self._file.read(size + 2)[:-2].decode()
        if kind[:1] == b"-":
            raise RuntimeError(kind.decode())
        return kind[1:].strip().decode()

    def close(self) -> None:
        self._socket.close()


@dataclass(slots=True)
class Servers:
    url: str
    redis_port: int | None
    redis_pid: int | None
    redis_absent: str | None
    directory: Path
    _templates: set[str] = field(default_factory=set)

    @property
    def redis_url(self) -> str:
        return f"redis://127.0.0.1:{self.redis_port}"

    @contextlib.contextmanager
    def connect(self, database: str | None = None) -> Iterator[psycopg.Connection[Any]]:
        with psycopg.connect(self.url_of(database) if database else self.url, autocommit=True) as connection:
            yield connection

    def url_of(self, database: str) -> str:
        return urlunsplit(urlsplit(self.url)._replace(path=f"/{database}"))

    def fresh(self, name: str, prepare: Any) -> str:
        """An empty database `name`, a copy of one that `prepare(url)` made at first use."""
        template, database = f"horsies_bench_{name}_template", f"horsies_bench_{name}"
        with self.connect() as connection:
            if name not in self._templates:
                connection.execute(f'DROP DATABASE IF EXISTS "{template}" WITH (FORCE)')
                connection.execute(f'CREATE DATABASE "{template}"')
                with self.connect(template) as inside:
                    inside.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
                prepare(self.url_of(template))
                self._templates.add(name)
            connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')
            connection.execute(f'CREATE DATABASE "{database}" TEMPLATE "{template}"')
        return self.url_of(database)

    def drop(self, *names: str) -> None:
        with self.connect() as connection:
            for name in names:
                connection.execute(f'DROP DATABASE IF EXISTS "horsies_bench_{name}" WITH (FORCE)')

    def drop_all(self) -> None:
        with self.connect() as connection:
            rows = connection.execute(
                r"SELECT datname FROM pg_database WHERE datname LIKE 'horsies\_bench\_%'"
            ).fetchall()
            for (database,) in rows:
                connection.execute(f'DROP DATABASE IF EXISTS "{database}" WITH (FORCE)')


@contextlib.contextmanager
def running() -> Iterator[Servers]:
    directory = Path(tempfile.mkdtemp(prefix="horsies-bench-"))
    directory.chmod(0o755)  # root's server runs as another account
    try:
        with contextlib.ExitStack() as stack:
            url = (
                os.environ.get("HORSIES_BENCH_URL")
                or stack.enter_context(embedded.start(directory / "postgres", settings=SETTINGS)).url
            )
            port, pid, absent = None, None, None
            try:
                port, pid = stack.enter_context(_redis(directory / "redis"))
            except Absent as reason:
                absent = str(reason)
            servers = Servers(url, port, pid, absent, directory)
            stack.callback(servers.drop_all)
            yield servers
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def _redis(directory: Path) -> Iterator[tuple[int, int]]:
    program, environment = redis_program()
    directory.mkdir()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    process = subprocess.Popen(
        [program, "--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory), "--appendonly", "yes", "--save", ""],
        env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        deadline = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError):
                Redis(port).command("PING")
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise Absent(f"redis-server did not start (exit code {process.returncode})")
            time.sleep(0.05)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(10)
