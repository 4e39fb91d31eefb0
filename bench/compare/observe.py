"""What a run costs, seen from outside: a queue getting empty, the server's counters, the memory and CPU of a process tree."""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import psycopg


@dataclass(frozen=True, slots=True)
class Drain:
    first_s: float
    """From the start of the workers to the first task seen done."""

    rate: float
    """Tasks per second between the first and the last one seen done: starting Python does not count."""

    counted: int
    """The tasks of that span."""


class Stuck(Exception):
    """A queue did not get empty in time."""


def watch(
    remaining: Callable[[], int],
    total: int,
    began: float,
    *,
    is_alive: Callable[[], bool],
    on_first: Callable[[], None] = lambda: None,
    skip: float = 0.0,
    timeout_s: float = 90.0,
) -> Drain:
    """Follow a queue of `total` tasks to its end, asking rarely while much is left: the question has its price too.
    The clock starts when the first task is done, or `skip` of all: then even the last of many processes is up."""
    deadline = began + timeout_s
    left, first_s = total, 0.0
    while left >= total * (1 - skip):
        _check(deadline if is_alive() else 0, left)
        time.sleep(0.02)
        left = remaining()
        if not first_s and left < total:
            first_s = time.perf_counter() - began
    on_first()
    start, start_left = time.perf_counter(), left
    while left > 0:
        _check(deadline, left)
        speed = (start_left - left) / max(0.001, time.perf_counter() - start)
        time.sleep(min(0.25, max(0.01, 0.5 * left / speed)) if speed > 0 else 0.02)
        left = remaining()
    took = time.perf_counter() - start
    if not start_left:
        raise Stuck("all tasks were done before the first look: too few for a rate")
    return Drain(first_s, start_left / took, start_left)


def _check(deadline: float, left: int) -> None:
    if time.perf_counter() > deadline:
        raise Stuck(f"{left} tasks are left")


# -- the server --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counters:
    at: float
    statements: int
    wal_bytes: int
    commits: int
    fsyncs: int | None


class ServerMeter:
    """Counters of one database (statements, commits) and of the server (WAL); it leaves itself out of them."""

    def __init__(self, connection: psycopg.Connection[Any], database: str) -> None:
        self._connection = connection
        self._database = database
        connection.execute("SET pg_stat_statements.track = 'none'")
        self._version = connection.info.server_version

    def read(self) -> Counters:
        statements, wal, commits = self._row(
            "SELECT coalesce(sum(s.calls), 0)::bigint, (pg_current_wal_lsn() - '0/0')::bigint,"
            " (SELECT xact_commit FROM pg_stat_database WHERE datname = %s)"
            " FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = %s",
            self._database, self._database,
        )  # fmt: skip
        if self._version >= 180000:
            (fsyncs,) = self._row("SELECT coalesce(sum(fsyncs), 0)::bigint FROM pg_stat_io WHERE object = 'wal'")
        else:
            (fsyncs,) = self._row("SELECT wal_sync FROM pg_stat_wal")
        return Counters(time.perf_counter(), statements, wal, commits, fsyncs)

    def connections(self) -> int:
        (count,) = self._row(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()", self._database
        )
        return count

    def _row(self, sql: str, *values: Any) -> Any:
        return self._connection.execute(sql, values or None).fetchone()  # type: ignore[arg-type]


# -- processes ---------------------------------------------------------------------------------------


def tree(roots: Iterable[int]) -> list[psutil.Process]:
    found: list[psutil.Process] = []
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(root)
            found += [process, *process.children(recursive=True)]
    return found


def pss_mb(processes: Iterable[psutil.Process]) -> float | None:
    """Proportional set size: shared pages count once, so forked children are not charged twice. None: no Linux."""
    total = 0
    for process in processes:
        try:
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        except FileNotFoundError:
            if not Path("/proc/self/smaps_rollup").exists():
                return None
            continue
        except (ProcessLookupError, PermissionError):
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


def server_processes(connection: psycopg.Connection[Any]) -> list[psutil.Process]:
    """The server's own, when it runs on this machine; else none."""
    with contextlib.suppress(psutil.Error):
        backend = psutil.Process(connection.info.backend_pid)
        if backend.name().startswith("postgres"):
            return tree([backend.ppid()])
    return []


def load_average() -> float:
    return round(os.getloadavg()[0], 2)
