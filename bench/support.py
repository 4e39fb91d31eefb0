"""What the worker benches share: a durable server of their own, a fresh database, a worker process."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import asyncpg

import horsies_schema
from horsies_schema import embedded


@contextmanager
def database(**more: str) -> Iterator[str]:
    """The URL of an empty, migrated, *durable* database: HORSIES_BENCH_URL's server, or an embedded one."""
    external = os.environ.get("HORSIES_BENCH_URL")
    if external:
        horsies_schema.upgrade(external)
        os.environ["HORSIES_DATABASE_URL"] = external
        yield external
        return
    settings = {"shared_buffers": "256MB", "fsync": "on", "shared_preload_libraries": "pg_stat_statements", **more}
    directory = Path(tempfile.gettempdir()) / f"horsies-bench-{os.getpid()}"
    try:
        with embedded.start(directory, settings=settings) as server:
            horsies_schema.upgrade(server.url)
            os.environ["HORSIES_DATABASE_URL"] = server.url
            yield server.url
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def clean(connection: asyncpg.Connection) -> None:
    """Empty tables, and nothing left for a checkpoint or a vacuum to do in the middle of a measurement."""
    await connection.execute("TRUNCATE horsies_tasks, horsies_task_attempts, horsies_heartbeats")
    await connection.execute("CHECKPOINT")


@contextmanager
def worker(*arguments: str, app: str = "bench.worker_app:app") -> Iterator[subprocess.Popen[bytes]]:
    """A worker on the bench's app (or another), up and claiming."""
    log = tempfile.NamedTemporaryFile(prefix="horsies-bench-worker-", suffix=".log", delete=False)  # noqa: SIM115
    command = [sys.executable, "-m", "horsies_worker", app, *arguments]
    process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 60
        while b" is up" not in Path(log.name).read_bytes():
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the worker did not start:\n{Path(log.name).read_text()}")
            time.sleep(0.02)
        yield process
    finally:
        process.terminate()
        process.wait(30)
        Path(log.name).unlink()
