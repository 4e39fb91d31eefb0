"""What finished rows cost: drain, dashboard, commands, pruning and vacuum beside few and beside many; it has options.

Two databases on one durable server: `few` has some thousand finished tasks, `many` grows to each size of --rows. Everything is
measured in both, in turns, and printed as the ratio many/few. The rows are inserted by SQL, with ids in the order of time as
senders make them, an attempt for each, and arguments and results of about a hundred bytes; they lie in the last 30 days.
Secondary indexes are dropped while more than two million rows are loaded, and built afterwards: they are then denser than those of
a table that has grown. Loading stops when the disk has less than --keep-free-gb left, and says so.
"""

import argparse
import asyncio
import contextlib
import json
import math
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg

from bench import support
from bench.compare.adverse import id_at, rate
from bench.compare.servers import running
from bench.compare.system_under_test import SystemUnderTest
from bench.compare.systems import HORSIES
from bench.tui import queries
from horsies import AppConfig, PostgresConfig, RecoveryConfig
from horsies.operate.commands._progress import Progress
from horsies_tui.data.postgres import PostgresSource
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.retention.pruner import Pruner

FEW, CHUNK, DAYS = 10_000, 250_000, 30
AT_ONCE = 2
"""Chunks that are loaded at the same time."""
BULK = 2_000_000
"""More rows than these are loaded without secondary indexes."""
SECONDARY = """
SELECT indexrelid::regclass::text, pg_get_indexdef(indexrelid) FROM pg_index
 WHERE indrelid IN ('horsies_tasks'::regclass, 'horsies_task_attempts'::regclass)
   AND NOT EXISTS (SELECT FROM pg_constraint WHERE conindid = indexrelid)
"""
LOAD = f"""
WITH tasks AS (
    INSERT INTO horsies_tasks (id, task_name, queue_name, status, kwargs, result, error_code, task_options, enqueue_sha,
                               sent_at, created_at, enqueued_at, claimed_at, started_at, completed_at, failed_at,
                               terminal_at, updated_at, claimed_by_worker_id, claim_generation, worker_pid,
                               worker_hostname, worker_process_name)
    SELECT {id_at("t")}, 'task_' || i %% 40, 'queue_' || i %% 8, s,
           '{{"order":' || i || ',"customer":"customer-' || i %% 99991 || '","lines":[1,2,3],"note":"' || repeat('x', 30) || '"}}',
           CASE s WHEN 'COMPLETED' THEN '{{"ok":{{"charged":true,"reference":"' || i || '-' || repeat('y', 20) || '"}}}}'
                  ELSE '{{"err":{{"error_code":"SMTP_DOWN","message":"no answer from the mail server","data":null}}}}' END,
           CASE s WHEN 'FAILED' THEN 'SMTP_DOWN' END, '{{}}', md5(i::text),
           t, t, t, t + interval '20 ms', t + interval '20 ms',
           CASE s WHEN 'COMPLETED' THEN t + interval '220 ms' END, CASE s WHEN 'FAILED' THEN t + interval '220 ms' END,
           t + interval '220 ms', t + interval '220 ms', md5((i %% 100)::text)::uuid::text, 1, 1000 + i %% 16,
           'host-' || i %% 100, 'horsies-child-' || i %% 16
      FROM generate_series(%(begin)s::bigint, %(end)s::bigint - 1) AS i,
           LATERAL (SELECT %(last)s - make_interval(secs => (%(total)s - i) * %(apart)s) AS t,
                           CASE WHEN i %% 60 = 7 THEN 'FAILED' ELSE 'COMPLETED' END AS s) AS x
    RETURNING id, status, error_code, started_at, terminal_at, claimed_by_worker_id, worker_hostname, worker_pid,
              worker_process_name)
INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at, error_code, worker_id,
                                   worker_hostname, worker_pid, worker_process_name, created_at)
SELECT id, 1, status, started_at, terminal_at, error_code, claimed_by_worker_id, worker_hostname, worker_pid,
       worker_process_name, terminal_at FROM tasks
"""
SIZES = """
SELECT c.relname, t.relname, pg_relation_size(c.oid), c.relkind::text FROM pg_class t
  LEFT JOIN pg_index x ON x.indrelid = t.oid JOIN pg_class c ON c.oid IN (t.oid, x.indexrelid)
 WHERE t.relname IN ('horsies_tasks', 'horsies_task_attempts') GROUP BY 1, 2, 3, 4 ORDER BY 2, 4 DESC, 3 DESC
"""
AUTOVACUUM = """
SELECT relname, n_live_tup, n_dead_tup, autovacuum_count, autoanalyze_count
  FROM pg_stat_user_tables WHERE relname IN ('horsies_tasks', 'horsies_task_attempts') ORDER BY 1
"""
COMMANDS = {
    "horsies queues list": ["queues", "list"],
    "horsies tasks list": ["tasks", "list"],
    "horsies tasks list --status failed": ["tasks", "list", "--status", "failed"],
    "horsies tasks list --error-code SMTP_DOWN": ["tasks", "list", "--error-code", "SMTP_DOWN"],
    "horsies doctor": ["doctor"],
}
Row = dict[str, float | str]


class Database:
    """One of the two databases, with a warm worker."""

    def __init__(self, sut: SystemUnderTest, largest: int) -> None:
        self.sut, self.connection = sut, sut.broker.connection
        self.rows, self.largest, self.apart_s = 0, largest, DAYS * 86_400 / largest
        self.last = sut.broker.value("SELECT now() - interval '1 hour'")

    def grow(self, rows: int, keep_free: int, seconds: float = math.inf) -> None:
        """Insert until there are so many, or the time is over. The older rows come first in the table, as in one that was
        filled by time."""
        began, first = time.monotonic(), self.rows
        with (
            self._without_indexes() if rows - first > BULK else contextlib.nullcontext(),
            Progress("loaded", "row", max(0, rows - first), has_batches=False) as progress,
            ThreadPoolExecutor(AT_ONCE) as loaders,
        ):
            while self.rows < rows:
                if shutil.disk_usage(self.sut.servers.directory).free < keep_free:
                    support.tell(progress, f"the disk is nearly full: {self.rows:,} instead of {rows:,} rows")
                    return
                if time.monotonic() > began + seconds:
                    support.tell(progress, f"the time is over: {self.rows:,} instead of {rows:,} rows")
                    return
                until = min(rows, self.rows + AT_ONCE * CHUNK)
                begins = range(self.rows, until, CHUNK)
                list(loaders.map(self._load, begins, [min(until, begin + CHUNK) for begin in begins]))
                progress.add(until - self.rows)
                self.rows = until

    def _load(self, begin: int, end: int) -> None:
        times = {"last": self.last, "total": self.largest, "apart": self.apart_s}
        with psycopg.connect(self.sut.url) as connection:
            # no notifications, and no check that the task of an attempt exists
            connection.execute("SET LOCAL session_replication_role = replica; SET LOCAL synchronous_commit = off")
            connection.execute(LOAD, {"begin": begin, "end": end, **times})

    @contextlib.contextmanager
    def _without_indexes(self) -> Generator[None]:
        indexes = self.connection.execute(SECONDARY).fetchall()
        for name, _ in indexes:
            self.connection.execute(f"DROP INDEX {name}")
        try:
            yield
        finally:
            with Progress("built", "index", len(indexes), has_batches=False) as progress:
                for _, definition in indexes:
                    self.connection.execute(definition)
                    progress.add(1)

    def vacuum(self) -> None:
        self.connection.execute("VACUUM (ANALYZE) horsies_tasks")
        self.connection.execute("VACUUM (ANALYZE) horsies_task_attempts")
        self.sut.broker.settle()

    def wal(self) -> int:
        return self.sut.broker.value("SELECT (pg_current_wal_lsn() - '0/0')::bigint")


def sizes(database: Database) -> dict[str, float]:
    """Bytes per task of each table and index."""
    rows = database.sut.broker.value("SELECT count(*) FROM horsies_task_attempts")
    found = {name: size / rows for name, _, size, _ in database.connection.execute(SIZES) if size / rows >= 1}
    return found | {"all": sum(found.values())}


def drains(few: Database, many: Database, tasks: int, rounds: int) -> list[Row]:
    """No-ops per second, and CPU and WAL of the server per task, in turns."""
    found: dict[str, list[dict[str, float]]] = {"few": [], "many": []}
    with Progress("measured", "drain", 2 * rounds, has_batches=False) as progress:
        for number in range(rounds):
            order = (("few", few), ("many", many)) if number % 2 else (("many", many), ("few", few))
            for name, one in order:
                progress.show(f"{progress.line()}: {name}")
                one.sut.broker.settle()
                cpu, wal = one.sut.broker.cpu_s(), one.wal()
                per_second = rate(one.sut, tasks)
                found[name].append({
                    "drain of no-ops, tasks/s": per_second,
                    "CPU of the server per task, sent and run, µs": (one.sut.broker.cpu_s() - cpu) / tasks * 1e6,
                    "WAL per task, sent and run, bytes": (one.wal() - wal) / tasks,
                })  # fmt: skip
                progress.add(1)
    return [
        ratio(figure, [one[figure] for one in found["few"]], [one[figure] for one in found["many"]])
        for figure in found["few"][0]
    ]


def ratio(title: str, few: list[float], many: list[float]) -> Row:
    one, other = statistics.median(few), statistics.median(many)
    each = [after / max(before, 1e-9) for before, after in zip(few, many, strict=True)]
    return {
        "figure": title,
        "few": one,
        "many": other,
        "ratio": other / max(one, 1e-9),
        "smallest": min(each),
        "largest": max(each),
    }


async def dashboard(few: Database, many: Database, rounds: int) -> list[Row]:
    """Milliseconds of the reads of each screen, in turns."""
    found: dict[str, tuple[list[float], list[float]]] = {}
    asked = []
    for one in (few, many):
        source = PostgresSource(PostgresConfig(one.sut.url, pool_max_size=1, application_name="horsies tui"))
        asked.append(
            queries(source, one.sut.broker.value("SELECT id FROM horsies_tasks WHERE status = 'FAILED' LIMIT 1"))
        )
    names = [name for name in asked[0] if not name.startswith(("worker 24", "workflow"))]  # no rows of these here
    with Progress("measured", "read", len(names), has_batches=False) as progress:
        for name in names:
            progress.show(f"{progress.line()}: {name}")
            spent: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                for which in (0, 1):
                    began = time.perf_counter()
                    try:
                        await asked[which][name]()
                    except Exception as error:  # a read that ends at its time limit is a result, too
                        which_one = "many" if which else "few"
                        support.tell(progress, f"  {name}: {which_one}: {type(error).__name__}: {error}")
                    spent[which].append((time.perf_counter() - began) * 1000)
            found[name] = spent
            progress.add(1)
    return [ratio(f"dashboard: {name}, ms", *spent) for name, spent in found.items()]


def commands(few: Database, many: Database, rounds: int) -> list[Row]:
    """Seconds of whole commands, the start of Python included."""
    rows: list[Row] = []
    with Progress("measured", "command", len(COMMANDS), has_batches=False) as progress:
        for title, words in COMMANDS.items():
            progress.show(f"{progress.line()}: {title}")
            spent: tuple[list[float], list[float]] = ([], [])
            for _ in range(rounds):
                for which, one in enumerate((few, many)):
                    began = time.perf_counter()
                    command = [sys.executable, "-m", "horsies.cli", *words, "--database-url", one.sut.url]
                    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
                    spent[which].append(time.perf_counter() - began)
                    if done.returncode > (words == ["doctor"]):  # what the doctor finds here is no matter
                        # a command that ends at its time limit is a result, too
                        which_one = "many" if which else "few"
                        support.tell(progress, f"  {title}: {which_one}: {done.stderr.strip()[:300]}")
            rows.append(ratio(f"{title}, s", *spent))
            progress.add(1)
    return rows


async def prune(database: Database, hours: int) -> int:
    """One run of the worker's own pruner, with its rests. How many tasks it deleted."""
    before = database.sut.broker.value(
        "SELECT count(*) FROM horsies_tasks WHERE terminal_at < now() - make_interval(hours => %s)", hours
    )
    config = AppConfig(PostgresConfig(database.sut.url), recovery=RecoveryConfig(terminal_record_retention_hours=hours))
    session = Session(config.broker, "pruner", Queries(None, Identity("bench", "bench", 1)))
    try:
        await Pruner(session, config).run_once()
    finally:
        await session.close()
    return before


def pruning(few: Database, many: Database, target: int) -> list[Row]:
    """About `target` of the oldest rows of `many`, and as many of `few`, which gets them first."""
    rows: dict[str, tuple[list[float], list[float]]] = {}
    few.rows, few.largest, few.apart_s = 0, target, many.apart_s
    few.last = few.sut.broker.value("SELECT now() - interval '10 days'")
    few.grow(few.largest, 0)
    few.vacuum()
    for which, one in enumerate((few, many)):
        oldest = one.sut.broker.value("SELECT extract(epoch FROM now() - min(terminal_at)) / 3600 FROM horsies_tasks")
        hours = 9 * 24 if one is few else max(2, int(float(oldest) - target * one.apart_s / 3600))
        one.sut.broker.settle()
        cpu, wal, began = one.sut.broker.cpu_s(), one.wal(), time.monotonic()
        deleted = max(1, asyncio.run(prune(one, hours)))
        took, spent, written = time.monotonic() - began, one.sut.broker.cpu_s() - cpu, one.wal() - wal
        began, before = time.monotonic(), one.wal()
        one.connection.execute("VACUUM (INDEX_CLEANUP ON) horsies_tasks")
        vacuumed, vacuum_wal = time.monotonic() - began, one.wal() - before
        one.vacuum()
        figures = {
            "pruning: rows per second, with its rests": deleted / took,
            "pruning: CPU of the server per row, µs": spent / deleted * 1e6,
            "pruning: WAL per row, bytes": written / deleted,
            "pruning: rows deleted": float(deleted),
            "vacuum of horsies_tasks after it, all indexes, s": vacuumed,
            "the same: WAL per deleted row, bytes": vacuum_wal / deleted,
        }
        for name, value in figures.items():
            rows.setdefault(name, ([], []))[which].append(value)
    return [ratio(name, *values) for name, values in rows.items()]


def vacuums(few: Database, many: Database) -> list[Row]:
    found = {"few": few, "many": many}
    rows: list[Row] = []
    for name, one in found.items():
        for table, live, dead, count, analyzed in one.connection.execute(AUTOVACUUM):
            rows.append(
                {
                    "figure": f"autovacuum of {table} in {name}",
                    "live": live,
                    "dead": dead,
                    "runs": count,
                    "analyses": analyzed,
                }
            )
    return rows


@contextlib.contextmanager
def both(largest: int) -> Iterator[tuple[Database, Database]]:
    """With a worker for each database. Autovacuum is as PostgreSQL has it."""
    with (
        running(
            with_redis=False, max_wal_size="4GB", checkpoint_timeout="15min", maintenance_work_mem="512MB"
        ) as servers,
        contextlib.ExitStack() as stack,
    ):
        suts = [stack.enter_context(SystemUnderTest(HORSIES, servers, name)) for name in ("few", "many")]
        yield Database(suts[0], FEW), Database(suts[1], largest)


def measure(few: Database, many: Database, tasks: int, rounds: int, prunes: int, *, reads: bool) -> list[Row]:
    rows: list[Row] = []

    def step(title: str, work: Callable[[], list[Row]]) -> None:
        print(f"-- {title}", flush=True)
        for one in work():
            rows.append(one)
            if "ratio" in one:
                support.row(
                    str(one["figure"]), *(one[name] for name in ("few", "many", "ratio", "smallest", "largest"))
                )
            else:
                print("  ", one, flush=True)

    step("bytes per task", lambda: [{"figure": f"size: {name}", "bytes": size} for name, size in sizes(many).items()])
    if reads:
        step("dashboard", lambda: asyncio.run(dashboard(few, many, rounds * 3)))
        step("commands", lambda: commands(few, many, rounds))
    with few.sut.workers(), many.sut.workers():
        for one in (few, many):
            rate(one.sut, 2_000)
        step("drain", lambda: drains(few, many, tasks, rounds))
    step("pruning", lambda: pruning(few, many, prunes))
    step("autovacuum", lambda: vacuums(few, many))
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="just bench history", description=__doc__)
    parser.add_argument("--rows", default="1000000", help="sizes that the table grows to, in turn: 1000000,10000000")
    parser.add_argument("--tasks", type=int, default=20_000, help="no-ops of a drain")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prune", type=int, default=200_000, help="rows to prune at each size")
    parser.add_argument("--keep-free-gb", type=int, default=25)
    parser.add_argument("--load-seconds", type=float, default=math.inf, help="load for no longer than that, each time")
    parser.add_argument("--no-reads", action="store_true", help="leave out the dashboard and the commands")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    given = parser.parse_args(arguments or [])
    found: dict[str, Any] = {}
    sizes_asked = sorted(int(word) for word in given.rows.split(","))
    with both(sizes_asked[-1]) as (few, many):
        few.grow(FEW, 0)
        few.vacuum()
        for size in sizes_asked:
            began = time.monotonic()
            many.grow(size, given.keep_free_gb * 2**30, given.load_seconds)
            loaded = time.monotonic() - began
            many.vacuum()
            print(f"\n== {many.rows:,} finished tasks, loaded in {loaded:,.0f} s\n", flush=True)
            support.row("", "few", "many", "ratio", "smallest", "largest")
            found[str(many.rows)] = measure(few, many, given.tasks, given.rounds, given.prune, reads=not given.no_reads)
            if given.json:
                given.json.write_text(json.dumps(found, indent=1))
    return 0
