"""Real workers for tests: started as users start them, watched through their log, and always ended.

    with worker(db) as one:                       # is up when the block begins, gone when it ends
        with tasks_on(db) as tasks:
            assert tasks.add.send(1, 2).get(5_000).ok == 3
        one.kill()                                # SIGKILL, the parent alone

A worker that a test leaves running is stopped and must then end by itself with code 0; one that the test killed, or
whose test failed, is killed with everything it started.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import psycopg

from horsies import TaskHandle
from tests.support import invariants, worker_app
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import ASYNC_TASKS, LEDGER_VARIABLE, VARIABLE

ROOT = Path(__file__).resolve().parents[2]
APP = "tests.support.worker_app:app"
UP_S = 40.0
STOP_S = 30.0

shared: set[int] = set()
"""Workers that live longer than one test: the children that they replace are not leaks of the test that runs."""


class WorkerProcess:
    """One `python -m horsies_worker`, in a process group of its own."""

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], folder: Path, *, cwd: Path = ROOT
    ) -> None:
        self._log = folder / f"worker-{uuid.uuid4().hex[:8]}.log"
        with self._log.open("wb") as sink:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, env=dict(environment), cwd=cwd,
                start_new_session=True,
            )  # fmt: skip
        self.pid = self.process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    @property
    def worker_id(self) -> str:
        """As the log says it, once it is up."""
        return self.log.split(" is up")[0].rsplit(" ", 1)[1]

    def wait_up(self) -> None:
        self.wait_for_log(" is up", timeout=UP_S)

    def wait_for_log(self, text: str, *, timeout: float = 15.0, times: int = 1) -> None:
        def found() -> bool:
            if self.log.count(text) >= times:
                return True
            assert self.is_running, f"the worker ended with code {self.process.returncode}:\n{self.log}"
            return False

        try:
            eventually(found, timeout=timeout, describe=f"{text!r} in the log")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log[-6000:]}") from None

    # -- processes -------------------------------------------------------------------------------

    def offspring(self) -> list[psutil.Process]:
        """Template and children, now."""
        try:
            return psutil.Process(self.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def children(self) -> list[psutil.Process]:
        """The processes that run tasks: the children of the template."""
        found: list[psutil.Process] = []
        for process in self.offspring():
            with suppress(psutil.NoSuchProcess):  # it may have ended meanwhile
                if process.ppid() != self.pid:
                    found.append(process)
        return found

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def wait(self, timeout: float = STOP_S) -> int:
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the worker has not ended within {timeout:g} s:\n{self.log[-6000:]}") from None

    def stop(self, timeout: float = STOP_S) -> int:
        """Ask it to leave; its exit code."""
        self.terminate()
        return self.wait(timeout)

    def kill(self) -> None:
        """The parent alone; whether its children go too is what a test may want to see."""
        self.signal(signal.SIGKILL)
        self.process.wait(10)

    def kill_all(self) -> None:
        """Parent, template and children in one blow."""
        others = self.offspring()
        self.process.kill()
        for process in others:
            _kill(process)
        self.process.wait(10)

    def kill_children(self) -> list[int]:
        """Those that run tasks; their pids."""
        found = self.children()
        for process in found:
            _kill(process)
        return [process.pid for process in found]

    def freeze(self) -> None:
        psutil.Process(self.pid).suspend()
        for process in self.offspring():
            with suppress(psutil.NoSuchProcess):  # it may have ended meanwhile
                process.suspend()

    def thaw(self) -> None:
        for process in self.offspring():
            with suppress(psutil.NoSuchProcess):
                process.resume()
        psutil.Process(self.pid).resume()


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.NoSuchProcess:
        pass


def describe(where: Database | str, **config: Any) -> dict[str, Any]:
    """What `worker_app.build` makes an app of, in the worker and in the test."""
    return {"url": where if isinstance(where, str) else where.url, **config}


def start_worker(
    described: Mapping[str, Any],
    folder: Path,
    *arguments: str,
    app: str = APP,
    processes: int | None = 2,
    sync_points: Mapping[str, Path] | None = None,
    command: Sequence[str] = (sys.executable, "-m", "horsies_worker"),
    **environment: str,
) -> WorkerProcess:
    """Start one and return at once; the caller ends it."""
    command = [*command, app, f"--health-file={folder / 'health'}", *arguments]
    if processes is not None:
        command.append(f"--processes={processes}")
    points = ",".join(f"{name}={path}" for name, path in (sync_points or {}).items())
    (folder / "ledger").mkdir(exist_ok=True)
    return WorkerProcess(
        command,
        {
            **os.environ, VARIABLE: json.dumps(described), LEDGER_VARIABLE: str(folder / "ledger"),
            "HORSIES_SYNC_POINTS": points, "PYTHONUNBUFFERED": "1", **environment,
        },
        folder,
    )  # fmt: skip


@contextmanager
def ended(process: WorkerProcess, *, code: int | None = 0) -> Iterator[WorkerProcess]:
    """Own a worker for the length of the block."""
    try:
        yield process
        if process.is_running:
            left = process.stop()
            assert code is None or left == code, f"exit code {left}:\n{process.log[-6000:]}"
    except BaseException:
        sys.stderr.write(f"\n-- log of worker {process.pid}\n{process.log[-8000:]}\n")
        raise
    finally:
        if process.is_running:
            process.kill_all()


@contextmanager
def worker(
    where: Database | str,
    *arguments: str,
    processes: int | None = 2,
    folder: Path | None = None,
    wait: bool = True,
    sync_points: Mapping[str, Path] | None = None,
    environment: Mapping[str, str] | None = None,
    **config: Any,
) -> Iterator[WorkerProcess]:
    """A worker on the fast config (see worker_app), up and running; ended with the block."""
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="horsies-worker-")))
        started = start_worker(
            describe(where, **config), folder, *arguments, processes=processes, sync_points=sync_points,
            **(environment or {}),
        )  # fmt: skip
        stack.enter_context(ended(started))
        if wait:
            started.wait_up()
        yield started


@contextmanager
def tasks_on(where: Database | str, **config: Any) -> Iterator[SimpleNamespace]:
    """The tasks of worker_app, ready to be sent; `.app` is the app."""
    with worker_app.build(describe(where, **config)) as app:
        tasks = worker_app.register(app)
        tasks.app = app
        yield tasks


def check_invariants(
    db: Database, *, slack_s: float = 6.0, allowed: Sequence[str] = (), async_tasks: Sequence[str] = (), **more: Any
) -> None:
    """The rules of FAULTS 3 with the thresholds of the fast config, on a database where all is done."""
    found = invariants.check(
        db, slack_s=slack_s, running_stale_s=3, finalizing_stale_s=3, claimed_stale_s=3, wf_grace_s=1,
        async_tasks=[*ASYNC_TASKS, "nap_briefly", *async_tasks], **more,
    )  # fmt: skip
    found = [violation for violation in found if violation.rule not in allowed]
    assert not found, [(violation, _row(db, violation.id)) for violation in found]


def _row(db: Database, task_id: str) -> list[Any]:
    return db.execute("SELECT * FROM horsies_tasks WHERE id = %s", task_id)


class Chaos:
    """Sends `chaos` tasks and keeps the books: what was sent, and what the tasks wrote to their ledger."""

    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.folder = folder / "ledger"
        self.folder.mkdir(exist_ok=True)
        self.keys: dict[str, int] = {}
        """Key by task id."""

    def new_keys(self, count: int) -> range:
        return range(len(self.keys), len(self.keys) + count)

    def sent(self, handles: Sequence[TaskHandle[Any]], keys: Sequence[int]) -> None:
        self.keys |= {handle.task_id: key for handle, key in zip(handles, keys, strict=True)}

    def send(self, task: Any, count: int, seconds: float = 0.0) -> list[TaskHandle[Any]]:
        """So many calls in one statement, each with a key of its own."""
        keys = self.new_keys(count)
        handles = task.send_many([{"k": k, "seconds": seconds} for k in keys])
        self.sent(handles, keys)
        return handles

    def lines(self) -> list[tuple[int, str, str, int, float]]:
        found: list[tuple[int, str, str, int, float]] = []
        for file in self.folder.iterdir():
            for line in file.read_text().splitlines():
                k, run, phase, pid, at, *_ = line.split()
                found.append((int(k), run, phase, int(pid), float(at)))
        return sorted(found, key=lambda line: line[4])

    def starts(self, handle: TaskHandle[Any]) -> int:
        return sum(line[0] == self.keys[handle.task_id] and line[2] == "start" for line in self.lines())

    def load(self) -> None:
        """Make the tables that the L rules read."""
        with psycopg.connect(self.db.url) as connection:
            connection.execute(
                """DROP TABLE IF EXISTS chaos_sent, chaos_ledger;
                CREATE TABLE chaos_sent (k bigint PRIMARY KEY, task_id varchar(36), kind text NOT NULL,
                    acked boolean NOT NULL, at timestamptz);
                CREATE TABLE chaos_ledger (id bigserial PRIMARY KEY, k bigint NOT NULL, run uuid NOT NULL,
                    phase text NOT NULL CHECK (phase IN ('start','end')), pid int, at timestamptz NOT NULL)"""
            )
            with connection.cursor() as cursor:
                cursor.executemany(
                    "INSERT INTO chaos_sent VALUES (%s, %s, 'chaos', true, now())",
                    [(key, task_id) for task_id, key in self.keys.items()],
                )
                cursor.executemany(
                    "INSERT INTO chaos_ledger (k, run, phase, pid, at) VALUES (%s, %s, %s, %s, to_timestamp(%s))",
                    self.lines(),
                )
            # without statistics the rules are planned for millions of rows, and compiled for seconds
            connection.execute("ANALYZE chaos_sent, chaos_ledger, horsies_tasks, horsies_task_attempts")

    def check(self, **more: Any) -> None:
        """Every rule, the ledger's included."""
        self.load()
        check_invariants(self.db, **more)
