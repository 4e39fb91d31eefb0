"""What the bench reads from outside while a system works: processes (CPU, memory) and brokers (tasks left, counters).

`Postgres` and `Redis` have the same methods, so that scenarios need not tell them apart; counters exist in PostgreSQL only.
"""

import contextlib
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil
import psycopg

COUNTERS = """
SELECT coalesce(sum(s.calls), 0)::bigint, (pg_current_wal_lsn() - '0/0')::bigint
  FROM pg_stat_statements s JOIN pg_database d ON d.oid = s.dbid WHERE d.datname = current_database()
"""


def tree(roots: Iterable[int]) -> list[psutil.Process]:
    """These processes with everything that they started."""
    found: list[psutil.Process] = []
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            found += [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    return found


def cpu_s(processes: Iterable[psutil.Process]) -> float:
    """CPU time of their threads, in nanoseconds of the scheduler (Linux only) because an idle worker needs less than a tick
    of 10 ms in a second, and of their children that have ended."""
    total = 0.0
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, OSError):
            threads = Path(f"/proc/{process.pid}/task").glob("*/schedstat")
            total += sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9
            total += sum(process.cpu_times()[2:4])
    return total


def pss_mb(processes: Iterable[psutil.Process]) -> float:
    """Proportional set size (Linux only): pages that forked children share count once."""
    total = 0
    for process in processes:
        with contextlib.suppress(OSError):
            total += int(Path(f"/proc/{process.pid}/smaps_rollup").read_text().split("\nPss:")[1].split()[0])
    return total / 1024


class Postgres:
    def __init__(self, url: str) -> None:
        self.connection = psycopg.connect(url, autocommit=True)
        self.connection.execute("SET pg_stat_statements.track = 'none'")

    def value(self, sql: str, *parameters: Any) -> Any:
        row = self.connection.execute(sql, parameters or None).fetchone()  # type: ignore[arg-type]
        return row[0] if row else None

    def remaining(self, _total: int, sql: str) -> int:
        return self.value(sql)

    def counters(self) -> Any:
        """Statements in this database, without the bench's own, and bytes of WAL."""
        return self.connection.execute(COUNTERS).fetchone()

    def connections(self) -> int:
        return self.value("SELECT count(*) - 1 FROM pg_stat_activity WHERE datname = current_database()")

    def settle(self) -> None:
        """Write a checkpoint now, so that there is none in the middle of a measurement."""
        with contextlib.suppress(psycopg.errors.InsufficientPrivilege):
            self.connection.execute("CHECKPOINT")

    def cpu_s(self) -> float:
        """Of all processes of the server; 0 when it runs on another machine."""
        with contextlib.suppress(psutil.Error):
            backend = psutil.Process(self.connection.info.backend_pid)
            return cpu_s(tree([backend.ppid()])) if backend.name().startswith("postgres") else 0.0
        return 0.0

    def close(self) -> None:
        self.connection.close()


class Redis:
    """The few commands that the bench itself needs, over a socket. Database 1 holds the results."""

    def __init__(self, port: int, pid: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._file = self._socket.makefile("rb")
        self._pid = pid

    def command(self, *words: str) -> str:
        parts = [f"*{len(words)}\r\n"] + [f"${len(word)}\r\n{word}\r\n" for word in words]
        self._socket.sendall("".join(parts).encode())
        kind = self._file.readline()
        if kind[:1] == b"-":
            raise RuntimeError(kind.decode())
        return (self._file.read(int(kind[1:]) + 2) if kind[:1] == b"$" else kind[1:]).decode().strip()

    def remaining(self, total: int, _sql: None) -> int:
        self.command("SELECT", "1")
        return total - int(self.command("DBSIZE"))

    def counters(self) -> None:
        return None

    def connections(self) -> int:
        return len(self.command("CLIENT", "LIST").splitlines()) - 1

    def settle(self) -> None:
        pass

    def cpu_s(self) -> float:
        return cpu_s(tree([self._pid]))

    def close(self) -> None:
        self._socket.close()
