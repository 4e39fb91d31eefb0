"""What a load needs: connections, processes, WAL, disk, vacuum and CPU. Pure arithmetic on measured coefficients.

Each coefficient names the bench that measured it; `just bench capacity` compares the results with a real run. CPU
figures are those of one machine, on which a trivial statement (`SELECT 1`, 50 times a second) costs client and server
190 µs together.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from horsies._checks import Checks

DAY_S: Final = 86_400
_PAGE: Final = 8_192
_PAGE_ROOM: Final = 8_168
"""A page without its header."""


@dataclass(frozen=True, slots=True)
class Coefficient:
    """A measured number, and where it comes from."""

    value: float
    means: str
    source: str


_CAPACITY: Final = "just bench capacity"
_HISTORY: Final = "just bench history"
_CONNECTIONS: Final = "docs/operations/connections.md"

TASK_ROW: Final = Coefficient(312, "bytes of a finished task's row without arguments and result", _CAPACITY)
ATTEMPT_ROW: Final = Coefficient(184, "bytes of the row of an attempt", _CAPACITY)
INDEXES: Final = Coefficient(213, "bytes of a finished task and its attempt in all indexes", _HISTORY)
SLACK: Final = Coefficient(1.15, "dead rows that wait for vacuum, and index pages that are half full", _HISTORY)
WAL_TASK: Final = Coefficient(2_040, "bytes of WAL of a task that is sent, claimed and ended", _CAPACITY)
WAL_ARGUMENT: Final = Coefficient(1.2, "bytes of WAL for each byte of arguments and result", _CAPACITY)
WAL_PRUNED: Final = Coefficient(1_100, "bytes of WAL to prune a task and its attempt, vacuum included", _HISTORY)
WAL_WORKER: Final = Coefficient(260, "bytes of WAL per second of an idle worker", _CAPACITY)
WAL_CHECKPOINT: Final = Coefficient(80_000, "bytes of images of hot pages after each checkpoint", _CAPACITY)
CHECKPOINT_S: Final = Coefficient(300, "seconds between checkpoints", "PostgreSQL's default of checkpoint_timeout")
DEAD_ROWS: Final = Coefficient(2, "dead versions that the claim and the end of a task leave", "docs/decisions/0003")
VACUUM_SHARE: Final = Coefficient(0.01, "share of dead rows that starts a vacuum", "docs/decisions/0003")
VACUUM_LEAST: Final = Coefficient(1_000, "dead rows that start a vacuum at least", "docs/decisions/0003")
PRUNE_RATE: Final = Coefficient(6_500, "rows per second that the pruner deletes, with its rests", _HISTORY)
IDLE_SERVER: Final = Coefficient(0.00065, "cores of the server for an idle worker", _CAPACITY)
IDLE_WORKER: Final = Coefficient(0.00104, "cores of an idle worker", _CAPACITY)
FLEET: Final = Coefficient(0.058, "more CPU per task for each doubling of the workers", "just bench fleet wakeups")
WORKER_CONNECTIONS: Final = Coefficient(5, "connections of a busy worker", _CONNECTIONS)
RESERVED: Final = Coefficient(10, "connections for migrations, the exporter, the doctor and people", _CONNECTIONS)
DRAIN: Final = Coefficient(11_000, "tasks per second of no-ops that one server has drained", "just bench")

SERVER_CPU: Final[Sequence[tuple[float, float]]] = (
    (20, 1_400), (50, 1_100), (100, 900), (200, 680), (400, 410), (800, 290), (11_000, 80),
)  # fmt: skip
"""Tasks per second that are sent one by one, and µs of the server for each: the more come, the more share a claim and a
commit. The last point is the drain of a full queue. Source: `just bench capacity`, `just bench`."""
WORKER_CPU: Final[Sequence[tuple[float, float]]] = (
    (20, 1_100), (50, 700), (100, 490), (200, 345), (400, 190), (800, 125), (11_000, 62),
)  # fmt: skip
"""The same for the worker, without the user's code."""

COEFFICIENTS: Final = {
    name.lower(): value for name, value in sorted(globals().items()) if isinstance(value, Coefficient)
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What is asked of an installation."""

    tasks_per_second: float
    """On average over a day."""
    task_seconds: float
    """How long a task runs, on average."""
    retention_days: float
    """How long finished tasks stay (`terminal_record_retention_hours`)."""
    peak: float = 2.0
    """The busiest minutes, as a multiple of the average: processes and CPU are sized for them."""
    arguments_bytes: int = 100
    result_bytes: int = 50
    processes: int = 8
    """Child processes of one worker."""
    busy: float = 0.7
    """The share of the time that a process shall be busy at the peak."""
    web_processes: int = 4
    """Processes that send tasks."""
    pool_size: int = 10
    """`pool_max_size` of these."""
    workflows: bool = False
    schedulers: int = 1

    def __post_init__(self) -> None:
        checks = Checks("capacity")
        for name, least, most in (
            ("tasks_per_second", 0.001, 1_000_000.0), ("task_seconds", 0.0, 86_400.0),
            ("retention_days", 0.0, 36_500.0), ("peak", 1.0, 1_000.0), ("busy", 0.05, 1.0),
        ):  # fmt: skip
            value = getattr(self, name)
            if not least <= value <= most:  # NaN is not
                checks.add(name, f"{value:g} is not between {least:g} and {most:,.0f}", "give a number in this range")
        checks.integer("arguments_bytes", self.arguments_bytes, 0, 1_000_000_000)
        checks.integer("result_bytes", self.result_bytes, 0, 1_000_000_000)
        checks.integer("processes", self.processes, 1, 1_000)
        checks.integer("web_processes", self.web_processes, 0, 100_000)
        checks.integer("pool_size", self.pool_size, 1, 1_000)
        checks.integer("schedulers", self.schedulers, 0, 1_000)
        checks.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """What the load needs. Bytes, seconds, cores."""

    slots: int
    """Child processes of all workers together."""
    workers: int
    connections: int
    """What `max_connections` must allow without a pooler."""
    direct_connections: int
    """Those that go past a pooler, for LISTEN and session locks."""
    wal_bytes_per_day: float
    rows: float
    """Finished tasks that are kept."""
    bytes_per_task: float
    """Row, attempt and indexes, without slack."""
    disk_bytes: float
    """Tables and indexes once the retention is reached; without WAL."""
    dead_rows_per_second: float
    vacuum_every_s: float
    """How often autovacuum visits horsies_tasks."""
    server_cores: float
    """Of PostgreSQL at the peak."""
    worker_cores: float
    """Of all workers at the peak, without the user's code."""
    notes: tuple[str, ...]
    """Where a figure leaves what was measured."""


def capacity(load: Load) -> Capacity:
    """The needs of a load at steady state."""
    rate, peak_rate = load.tasks_per_second, load.tasks_per_second * load.peak
    slots = max(1, math.ceil(peak_rate * load.task_seconds / load.busy))
    workers = math.ceil(slots / load.processes)
    direct = workers + load.web_processes + load.schedulers
    others = workers * (int(WORKER_CONNECTIONS.value) - 1 + load.workflows) + load.schedulers + 1
    rows = rate * DAY_S * load.retention_days
    per_task = task_bytes(load.arguments_bytes, load.result_bytes)
    dead = rate * (DEAD_ROWS.value + (1 if load.retention_days else 0))
    return Capacity(
        slots=slots,
        workers=workers,
        connections=direct + others + load.web_processes * load.pool_size + int(RESERVED.value),
        direct_connections=direct,
        wal_bytes_per_day=DAY_S * wal_per_second(load, workers),
        rows=rows,
        bytes_per_task=per_task,
        disk_bytes=rows * per_task * SLACK.value,
        dead_rows_per_second=dead,
        vacuum_every_s=(VACUUM_LEAST.value + VACUUM_SHARE.value * rows) / dead,
        server_cores=_cores(SERVER_CPU, peak_rate, workers) + workers * IDLE_SERVER.value,
        worker_cores=_cores(WORKER_CPU, peak_rate, workers) + workers * IDLE_WORKER.value,
        notes=tuple(_notes(load, peak_rate, workers, rows)),
    )


def task_bytes(arguments: int, result: int) -> float:
    """Row, attempt and indexes of one finished task. A page holds whole rows, and 80 % of it is filled at first."""
    row = _in_page(TASK_ROW.value + arguments + result, filled=0.8)
    return row + _in_page(ATTEMPT_ROW.value, filled=1.0) + INDEXES.value


def wal_per_second(load: Load, workers: int) -> float:
    each = WAL_TASK.value + WAL_ARGUMENT.value * (load.arguments_bytes + load.result_bytes) + WAL_PRUNED.value
    return (
        load.tasks_per_second * each
        + workers * WAL_WORKER.value
        + WAL_CHECKPOINT.value / CHECKPOINT_S.value
    )  # fmt: skip


def cpu_per_task(points: Sequence[tuple[float, float]], rate: float) -> float:
    """µs per task at this rate, between the measured points along straight lines of their logarithms. Below the
    first and above the last point it stays as it is there."""
    if rate <= points[0][0]:
        return points[0][1]
    for (low, before), (high, after) in pairwise(points):
        if rate <= high:
            share = math.log(rate / low) / math.log(high / low)
            return before * (after / before) ** share
    return points[-1][1]


def _cores(points: Sequence[tuple[float, float]], rate: float, workers: int) -> float:
    return rate * cpu_per_task(points, rate) / 1e6 * (1 + FLEET.value * math.log2(workers))


def _in_page(row: float, *, filled: float) -> float:
    """Bytes of the table for a row: rows are aligned to 8 bytes and have a pointer of 4. What does not fit in
    a quarter of a page is compressed or stored aside; here it counts in full."""
    aligned = math.ceil(row / 8) * 8 + 4
    in_page = int(_PAGE_ROOM * filled / aligned)
    return _PAGE / in_page if in_page else aligned / filled


def _notes(load: Load, peak_rate: float, workers: int, rows: float) -> list[str]:
    notes: list[str] = []
    if peak_rate > DRAIN.value:
        notes.append(
            f"{peak_rate:,.0f} tasks/s at the peak is more than one server has drained ({DRAIN.value:,.0f}/s on 2 "
            "cores): measure on your server, or spread queues over several databases"
        )
    if load.tasks_per_second > PRUNE_RATE.value:
        notes.append(
            f"the pruner has deleted {PRUNE_RATE.value:,.0f} rows/s: at this rate the table grows beyond its retention"
        )
    if rows > 40_000_000:
        notes.append(f"{rows:,.0f} finished tasks are more than were measured (40 million): see docs/decisions/0020")
    if load.arguments_bytes + load.result_bytes > 1_500:
        notes.append("PostgreSQL compresses rows above 2 kB: disk and WAL may be less than said")
    if workers == 1:
        notes.append("one worker is enough for the load; a second one on another host lets one of them fail")
    return notes
