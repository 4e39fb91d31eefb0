"""One system under test: its database, the calls to its driver, its workers. Scenarios use only this."""

import contextlib
import json
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench.compare import observe
from bench.compare.install import Unavailable, interpreter
from bench.compare.servers import Servers
from bench.compare.systems import System

PEERS_FOLDER = Path(__file__).parents[1] / "peers"
STOP_S = 6.0
DRAIN_TIMEOUT_S = 90.0


class Failed(Exception):
    """A system did not do what it was asked to; the run notes it and goes on."""


class Drained(NamedTuple):
    first_s: float  # from the start of the workers to the first finished task
    rate: float  # tasks per second between the first and the last finished task: starting Python does not count
    worker_us: float  # CPU of the worker's processes per task in that span
    server_us: float  # the same for PostgreSQL or Redis, including the bench's own statements


class Workers(NamedTuple):
    roots: list["subprocess.Popen[bytes]"]
    began: float

    def processes(self) -> list[psutil.Process]:
        return observe.tree(root.pid for root in self.roots)

    def stop(self) -> None:
        all_processes = self.processes()
        for root in self.roots:
            root.terminate()
        _, alive = psutil.wait_procs(all_processes, timeout=STOP_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        for root in self.roots:
            root.wait(10)


class SystemUnderTest:
    """A context manager with a new database, or an empty Redis. `name` tells several databases of one system apart."""

    def __init__(self, system: System, servers: Servers, name: str = "") -> None:
        self.system, self.name, self.servers = system, name or system.name, servers
        self._python = str(interpreter(system))
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "HORSIES_"))}
        self.environment = {**inherited, "PYTHONPATH": str(PEERS_FOLDER), "PYTHONUNBUFFERED": "1"}

    def __enter__(self) -> "SystemUnderTest":
        if self.system.broker == "redis":
            if self.servers.redis is None:
                raise Unavailable(self.servers.redis_absent)
            self.broker: Any = observe.Redis(*self.servers.redis)
            self.broker.command("FLUSHALL")
            self.environment["BENCH_REDIS_URL"] = f"redis://127.0.0.1:{self.servers.redis[0]}"
        else:
            self.environment["BENCH_DATABASE_URL"] = self.url = self.servers.create_database(self.name)
            self.call("prepare")
            self.broker = observe.Postgres(self.url)
        self.description = self.call("describe")
        return self

    def __exit__(self, *_: object) -> None:
        self.broker.close()
        self.servers.drop(self.name)

    def call(self, verb: str, **arguments: Any) -> Any:
        """Run one verb of `peers/driver.py` with the system's own interpreter."""
        command = [self._python, str(PEERS_FOLDER / "driver.py"), self.system.module, verb, json.dumps(arguments)]
        options: dict[str, Any] = {"env": self.environment, "cwd": self.servers.directory, "capture_output": True}
        done = subprocess.run(command, text=True, timeout=180, check=False, **options)
        if done.returncode:
            raise Failed(f"{self.name} {verb}: {done.stderr.strip()[-1500:]}")
        return json.loads(done.stdout.strip().splitlines()[-1])

    def enqueue(self, kind: str, how: str, count: int) -> float | None:
        """Tasks per second; the queue holds `count` + 1 tasks more afterwards. None: the system cannot do it."""
        seconds = self.call("enqueue", kind=kind, how=how, count=count)
        return None if seconds is None else count / seconds

    def fill(self, kind: str, count: int) -> tuple[int, float]:
        """Enqueue in bulk, or one by one where the system has no bulk enqueue; how many were enqueued, and the rate."""
        return count + 1, self.enqueue(kind, "send_many", count) or self.enqueue(kind, "send", count) or 0.0

    @contextlib.contextmanager
    def workers(self, processes: int = 2, *, slots: int | None = None) -> Iterator[Workers]:
        """Start workers with so many processes in all, without waiting until they are up."""
        with self.started(self.call("commands", processes=processes, slots=slots)) as workers:
            yield workers

    @contextlib.contextmanager
    def started(self, commands: list[list[str]]) -> Iterator[Workers]:
        path = self.servers.directory / f"{self.name}-worker-{time.monotonic_ns()}.log"
        with path.open("wb") as log:
            options: dict[str, Any] = {
                "cwd": self.servers.directory,
                "env": self.environment,
                "stdin": subprocess.DEVNULL,
            }
            began = time.perf_counter()
            workers = Workers([subprocess.Popen(one, stdout=log, stderr=log, **options) for one in commands], began)
            try:
                yield workers
            except TimeoutError as error:
                log_end = path.read_text(errors="replace")[-800:]
                raise Failed(f"{self.name}: {error}; its log ends: {log_end}") from None
            finally:
                workers.stop()

    def drain(self, workers: Workers, total: int, *, skip: float = 0.0) -> Drained:
        """Follow a queue of `total` tasks until it is empty. Look rarely while much is left, because a look costs CPU too.
        The clock starts when the first task is done, or `skip` of all tasks: by then every process is up."""
        left, first_s, deadline = total, 0.0, workers.began + DRAIN_TIMEOUT_S

        def look(pause: float) -> int:
            if time.perf_counter() > deadline or any(root.poll() is not None for root in workers.roots):
                raise TimeoutError(f"{left} tasks are left")
            time.sleep(pause)
            return self.broker.remaining(total, self.description["remaining"])

        while left >= total * (1 - skip):
            left = look(0.02)
            if not first_s and left < total:
                first_s = time.perf_counter() - workers.began
        worker, server = observe.cpu_s(workers.processes()), self.broker.cpu_s()
        start, counted = time.perf_counter(), left
        while left > 0:
            speed = (counted - left) / max(0.001, time.perf_counter() - start)
            left = look(min(0.25, max(0.01, 0.5 * left / speed)) if speed > 0 else 0.02)
        took = time.perf_counter() - start
        worker, server = observe.cpu_s(workers.processes()) - worker, self.broker.cpu_s() - server
        if not counted:
            raise TimeoutError("all tasks were done before the first look: too few for a rate")
        return Drained(first_s, counted / took, worker / counted * 1e6, server / counted * 1e6)
