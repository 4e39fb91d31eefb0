"""What `bench day` reads from outside every few seconds: memory, descriptors, threads, connections, sizes of tables."""

import contextlib
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil

from bench.compare.observe import Postgres

TABLES = """
SELECT t.relname, pg_table_size(t.oid), pg_indexes_size(t.oid), s.n_dead_tup, s.n_live_tup, s.autovacuum_count
  FROM pg_class t JOIN pg_stat_user_tables s ON s.relid = t.oid
 WHERE t.relname LIKE 'horsies%' ORDER BY 1
"""
CONNECTIONS = """
SELECT regexp_replace(application_name, '[0-9a-f-]{36}', 'ID'), count(*)
  FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'
 GROUP BY 1
"""


class Process(NamedTuple):
    anonymous_kb: int
    """Its part of all pages without a file (Pss_Anon). Pages of libraries count elsewhere: how many processes share them
    depends on what else runs on the machine."""
    pss_kb: int
    descriptors: int
    threads: int


class Table(NamedTuple):
    heap: int
    indexes: int
    dead: int
    live: int
    vacuums: int


@dataclass(slots=True)
class Sample:
    at: float
    processes: Mapping[str, Process] = field(default_factory=dict[str, Process])
    connections: Mapping[str, int] = field(default_factory=dict[str, int])
    tables: Mapping[str, Table] = field(default_factory=dict[str, Table])


def of_process(process: psutil.Process) -> Process | None:
    """None: it has ended meanwhile."""
    with contextlib.suppress(OSError, psutil.NoSuchProcess):
        words = (line.split() for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:])
        kb = {name: int(size) for name, size, _ in words}
        return Process(kb["Pss_Anon:"], kb["Pss:"], process.num_fds(), process.num_threads())
    return None


def of_processes(roots: Mapping[str, int]) -> dict[str, Process]:
    """Each by its name; those that a process has started by its name and their number, oldest first."""
    found: dict[str, Process] = {}
    for name, pid in roots.items():
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(pid)
            started = sorted(root.children(recursive=True), key=lambda one: (one.create_time(), one.pid))
            for number, process in enumerate([root, *started]):
                if (one := of_process(process)) is not None:
                    found[f"{name}, child {number}" if number else name] = one
    return found


def take(roots: Mapping[str, int], postgres: Postgres) -> Sample:
    tables: Iterable[tuple[str, *tuple[int, ...]]] = postgres.connection.execute(TABLES).fetchall()
    return Sample(
        time.monotonic(),
        of_processes(roots),
        dict(postgres.connection.execute(CONNECTIONS).fetchall()),
        {name: Table(*figures) for name, *figures in tables},
    )
