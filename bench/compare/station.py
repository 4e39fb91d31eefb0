"""One system under test: its database, its driver calls, its workers. The scenarios speak only to this."""

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg

from bench.compare import observe
from bench.compare.install import Absent, interpreter
from bench.compare.servers import Redis, Servers
from bench.compare.table import System

PEERS_FOLDER = Path(__file__).parents[1] / "peers"
STOP_S = 6.0

_answers: dict[str, Any] = {}


class Failed(Exception):
    """A system did not do what it was asked; the run notes it and goes on."""


@dataclass(slots=True)
class Workers:
    roots: list["subprocess.Popen[bytes]"]
    began: float
    log: Path

    def processes(self) -> list[psutil.Process]:
        return observe.tree(process.pid for process in self.roots)

    def is_alive(self) -> bool:
        return all(process.poll() is None for process in self.roots)

    def stop(self) -> None:
        everybody = self.processes()
        for root in self.roots:
            root.send_signal(signal.SIGTERM)
        _, alive = psutil.wait_procs(everybody, timeout=STOP_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for root in self.roots:
            root.wait(10)


@dataclass(frozen=True, slots=True)
class Drained:
    rate: float
    first_s: float
    worker_us: float
    """CPU microseconds per task of the worker tree."""

    server_us: float
    """The same of PostgreSQL or Redis, the bench's own questions included."""


class Station:
    """`with Station(...) as station`: a fresh database or an empty Redis, closed at the end."""

    def __init__(
        self, system: System, servers: Servers, *, name: str | None = None, more: dict[str, str] | None = None
    ):
        self.system = system
        self._servers = servers
        self._name = name or system.name
        self._python = interpreter(system)
        self._redis: Redis | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self.stamps = servers.directory / f"{self._name}.stamps"
        self._environment = (
            {
                key: value
                for key, value in os.environ.items()
                if not key.startswith(("PYTHON", "VIRTUAL_ENV", "HORSIES_"))
            }
            | {"PYTHONPATH": str(PEERS_FOLDER), "BENCH_STAMPS": str(self.stamps), "PYTHONUNBUFFERED": "1"}
            | (more or {})
        )
        if system.broker == "redis":
            if servers.redis_port is None:
                raise Absent(servers.redis_absent or "no Redis")
            self._environment["BENCH_REDIS_URL"] = servers.redis_url

    def __enter__(self) -> "Station":
        self.stamps.unlink(missing_ok=True)
        if self.system.broker == "redis":
            assert self._servers.redis_port is not None
            self._redis = Redis(self._servers.redis_port)
            self._redis.command("FLUSHALL")
            return self
        self.url = self._servers.fresh(self._name, self._prepare)
        self._environment["BENCH_DATABASE_URL"] = self.url
        self._remaining_sql = self._fixed("describe")["remaining"]
        self._connection = psycopg.connect(self.url, autocommit=True)
        self._connection.execute("SET pg_stat_statements.track = 'none'")
        return self

    def __exit__(self, *_: object) -> None:
        if self._redis is not None:
            self._redis.close()
        if self._connection is not None:
            self._connection.close()
            self._servers.drop(self._name)

    # -- asking ----------------------------------------------------------------------------------

    def call(self, verb: str, **arguments: Any) -> Any:
        command = [str(self._python), str(PEERS_FOLDER / "driver.py"), self.system.module, verb, json.dumps(arguments)]
        done = subprocess.run(
            command,
            env=self._environment,
            cwd=self._servers.directory,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        if done.returncode:
            raise Failed(f"{self._name} {verb}: {done.stderr.strip()[-1500:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def _fixed(self, verb: str, **arguments: Any) -> Any:
        """An answer that does not change: asked once per run, because starting an interpreter takes its time."""
        key = f"{self.system.module} {verb} {arguments}"
        if key not in _answers:
            _answers[key] = self.call(verb, **arguments)
        return _answers[key]

    def enqueue(self, kind: str, how: str, count: int, size: int = 0) -> float | None:
        """Tasks per second; one more than `count` is in the queue afterwards. None: it has no such thing."""
        seconds = self.call("enqueue", kind=kind, how=how, count=count, size=size)
        return None if seconds is None else count / seconds

    def remaining(self, total: int) -> int:
        if self._redis is not None:
            self._redis.command("SELECT", "1")
            return total - int(self._redis.command("DBSIZE"))
        assert self._connection is not None
        row = self._connection.execute(self._remaining_sql).fetchone()
        assert row is not None
        return int(row[0])

    def connections(self) -> int | None:
        if self._redis is not None:
            return len(self._redis.command("CLIENT", "LIST").splitlines()) - 1
        return self.meter().connections()

    def meter(self) -> observe.ServerMeter:
        assert self._connection is not None
        return observe.ServerMeter(self._connection, self._connection.info.dbname)

    @property
    def database(self) -> psycopg.Connection[Any]:
        assert self._connection is not None
        return self._connection

    def settle(self) -> None:
        """Nothing left for a checkpoint to do in the middle of a measurement."""
        if self._connection is not None:
            with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
                self._connection.execute("CHECKPOINT")

    # -- running ---------------------------------------------------------------------------------

    @contextlib.contextmanager
    def workers(self, processes: int = 2, *, slots: int | None = None, copies: int = 1) -> Iterator[Workers]:
        """Workers with so many processes each; not waited for."""
        commands = self._fixed("commands", processes=processes, slots=slots) * copies
        path = self._servers.directory / f"{self._name}-worker.log"
        with path.open("wb") as log:
            began = time.perf_counter()
            roots = [
                subprocess.Popen(
                    command, env=self._environment, cwd=self._servers.directory, stdout=log, stderr=log,
                    stdin=subprocess.DEVNULL, start_new_session=True,
                )
                for command in commands
            ]  # fmt: skip
            workers = Workers(roots, began, path)
            try:
                yield workers
            except observe.Stuck as stuck:
                raise Failed(
                    f"{self._name}: {stuck}; its log ends: {path.read_text(errors='replace')[-800:]}"
                ) from None
            finally:
                workers.stop()

    def drain(self, workers: Workers, total: int, *, skip: float = 0.0) -> Drained:
        """Until nothing is left; the CPU is that between the first task done and the last."""
        before: list[float] = []

        def spent() -> list[float]:
            return [observe.cpu_s(workers.processes()), observe.cpu_s(self._server_processes())]

        seen = observe.watch(
            lambda: self.remaining(total), total, workers.began, is_alive=workers.is_alive, skip=skip,
            on_first=lambda: before.extend(spent()),
        )  # fmt: skip
        worker, server = ((new - old) / seen.counted * 1e6 for new, old in zip(spent(), before, strict=True))
        return Drained(seen.rate, seen.first_s, worker, server)

    def _server_processes(self) -> list[psutil.Process]:
        if self._connection is not None:
            return observe.server_processes(self._connection)
        return observe.tree([self._servers.redis_pid]) if self._servers.redis_pid else []

    def _prepare(self, url: str) -> None:
        self._environment["BENCH_DATABASE_URL"] = url
        self.call("prepare")
