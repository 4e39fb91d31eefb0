"""A private durable PostgreSQL and a private Redis for the length of a run.

PostgreSQL is the embedded wheel with fsync on, or the server of HORSIES_BENCH_URL, where the bench creates and drops databases
named horsies_bench_*. Redis has an append-only file and one fsync per second, its default for a broker whose tasks should
survive; a crash of the machine can still cost it a second of acknowledged work, which a commit in PostgreSQL cannot.
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg

from bench.compare.install import Unavailable, redis_program
from horsies_schema import embedded
from tests.support.waiting import eventually

SETTINGS = {
    "fsync": "on",
    "shared_buffers": "256MB",
    "max_connections": "300",
    "max_wal_size": "4GB",  # no checkpoint in the middle of a measurement; there is one before each
    "shared_preload_libraries": "pg_stat_statements",
}


@dataclass(slots=True)
class Servers:
    url: str
    directory: Path
    redis: tuple[int, int] | None = None  # port and process id
    redis_absent: str = "no Redis"

    def create_database(self, name: str) -> str:
        """The URL of a new empty database; one of the same name is dropped."""
        self.drop(name)
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "horsies_bench_{name}"')
        url = urlunsplit(urlsplit(self.url)._replace(path=f"/horsies_bench_{name}"))
        with psycopg.connect(url) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        return url

    def drop(self, name: str) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'DROP DATABASE IF EXISTS "horsies_bench_{name}" WITH (FORCE)')


@contextlib.contextmanager
def running(*, with_redis: bool = True, **settings: str) -> Iterator[Servers]:
    directory = Path(tempfile.mkdtemp(prefix="horsies-bench-"))
    directory.chmod(0o755)  # started by root, the server runs under another account
    try:
        with contextlib.ExitStack() as stack:
            url = os.environ.get("HORSIES_BENCH_URL")
            if not url:
                server = embedded.start(directory / "postgres", settings=SETTINGS | settings)
                url = stack.enter_context(server).url
            servers = Servers(url, directory)
            try:
                servers.redis = stack.enter_context(_redis(directory / "redis")) if with_redis else None
            except Unavailable as reason:
                servers.redis_absent = str(reason)
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
    log, settings = directory / "log", directory / "redis.conf"
    settings.write_text(f'bind 127.0.0.1\nport {port}\ndir {directory}\nappendonly yes\nsave ""\nlogfile {log}\n')
    process = subprocess.Popen([program, str(settings)], env=environment)
    try:
        ready = "redis-server accepts connections"
        eventually(lambda: log.exists() and "Ready to accept" in log.read_text(), timeout=10, describe=ready)
        yield port, process.pid
    finally:
        process.terminate()
        process.wait(10)
