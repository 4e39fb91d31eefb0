"""What nobody publishes: horsies with a full table, a pinned xmin, a pooler, a killed worker, big payloads.

Each as a ratio to the normal case of the same round. The worker is up and warm; a batch is committed as one; its rate is
read from the rows themselves, by the database's clock.
"""

import contextlib
import time
from collections.abc import Iterator

from bench.compare.pooler import pooler
from bench.compare.results import METRICS, Metric, Results
from bench.compare.servers import Servers
from bench.compare.station import Station, Workers
from bench.compare.table import HORSIES

FINISHED = """
INSERT INTO horsies_tasks (id, task_name, status, kwargs, result, claimed_at, started_at, completed_at, terminal_at,
                           created_at, enqueued_at, updated_at)
SELECT gen_random_uuid()::text, 'noop', 'COMPLETED', '{"n": 1}', '{"ok": 1}', t, t, t, t, t, t, t
  FROM generate_series(1, %s) AS i, LATERAL (SELECT now() - interval '20 days' + i * interval '1 ms' AS t) AS x
"""
ATTEMPTS = """
INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at)
SELECT id, 1, 'COMPLETED', terminal_at, terminal_at FROM horsies_tasks
ON CONFLICT DO NOTHING
"""
# at the highest priority: a claim must not walk over them to the ready ones behind
FUTURE = """
INSERT INTO horsies_tasks (id, task_name, kwargs, priority, enqueued_at)
SELECT gen_random_uuid()::text, 'noop', '{"n": 1}', 1, now() + interval '1 day' + i * interval '1 ms'
  FROM generate_series(1, %s) AS i
"""
RATE = """
SELECT count(*) / extract(epoch FROM max(terminal_at) - min(started_at))::float8 FROM horsies_tasks
 WHERE terminal_at >= %s AND enqueued_at > (SELECT min(enqueued_at) FROM horsies_tasks WHERE terminal_at >= %s)
"""
ENDED = "SELECT count(*) FROM horsies_tasks WHERE terminal_at >= %s"
# a retry waits a second: it counts as live
LIVE = "SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING')"
LOST = "SELECT count(*) FROM horsies_tasks WHERE status <> 'COMPLETED'"
NORMAL = "normal"
for _name, _title in {
    "finished": "beside 1 million finished tasks", "future": "beside 1 million future-dated tasks",
    "pinned": "while a transaction pins xmin", "pooled": "through PgBouncer, transaction mode",
}.items():  # fmt: skip
    METRICS[f"adverse_{_name}"] = Metric(f"drain {_title}: ratio to normal", "of normal")
METRICS["adverse_normal"] = Metric("drain of no-ops by a warm worker", "tasks/s")
METRICS["killed_heal"] = Metric("a worker of two is killed: until its tasks have ended", "s", False)
METRICS["killed_lost"] = Metric("a worker of two is killed: tasks lost", "", False)
for _size in ("1 KB", "100 KB", "1 MB"):
    METRICS[f"payload {_size}"] = Metric(f"drain of tasks with {_size} in and out", "tasks/s")


@contextlib.contextmanager
def warm(servers: Servers, name: str, *, processes: int = 2, more: dict[str, str] | None = None) -> Iterator[Station]:
    """A database of its own with a worker that has done its first tasks."""
    with Station(HORSIES, servers, name=name, more=more) as station, station.workers(processes) as workers:
        rate(station, workers, 2_000)
        yield station


def rate(station: Station, workers: Workers | None, count: int, *, kind: str = "noop", size: int = 0) -> float:
    (since,) = station.database.execute("SELECT clock_timestamp()").fetchone() or (None,)
    station.enqueue(kind, "many", count, size)
    deadline = time.monotonic() + 120
    while (left := count + 1 - ended(station, since)) > 0:
        if time.monotonic() > deadline:
            raise TimeoutError(f"{left} of {count} tasks are left")
        time.sleep(0.1)
    (value,) = station.database.execute(RATE, (since, since)).fetchone() or (0.0,)
    return float(value)


def ended(station: Station, since: object) -> int:
    """By the index over ends: counting what is left would read a million rows ten times a second, and be measured."""
    with station.database.transaction():
        station.database.execute("SET LOCAL enable_seqscan = off")
        (count,) = station.database.execute(ENDED, (since,)).fetchone() or (0,)
    return int(count)


def full_tables(results: Results, servers: Servers, *, rounds: int, count: int, rows: int) -> None:
    """Three databases side by side, drained in turn, each time another one first; only the empty one is emptied again."""
    with contextlib.ExitStack() as stack:
        stations = {name: stack.enter_context(warm(servers, name)) for name in (NORMAL, "finished", "future")}
        fill(stations["finished"], FINISHED, rows)
        fill(stations["future"], FUTURE, rows)
        for number in range(rounds):
            speeds: dict[str, float] = {}
            turned = [*stations.items()] * 2
            for name, station in turned[number % 3 :][:3]:
                if name == NORMAL:
                    station.database.execute("TRUNCATE horsies_tasks, horsies_task_attempts, horsies_heartbeats")
                station.settle()
                speeds[name] = rate(station, None, count)
            results.add("adverse_normal", HORSIES.name, speeds[NORMAL])
            for name in ("finished", "future"):
                results.add(f"adverse_{name}", HORSIES.name, speeds[name] / speeds[NORMAL])


def fill(station: Station, statement: str, rows: int) -> None:
    database = station.database
    with database.transaction():
        database.execute("SET LOCAL session_replication_role = replica")  # no notification per row
        for begun in range(0, rows, 250_000):
            database.execute(statement, (min(250_000, rows - begun),))
        if statement is FINISHED:
            database.execute(ATTEMPTS)
    database.execute("VACUUM ANALYZE horsies_tasks")


def pinned(results: Results, servers: Servers, *, seconds: float, count: int) -> None:
    """Drain after drain under an old snapshot; what counts is the last third, when the dead rows have piled up."""
    with warm(servers, "pinned") as station:
        normal = [rate(station, None, count) for _ in range(2)]
        with servers.connect(station.database.info.dbname) as holder, holder.transaction():
            holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            holder.execute("SELECT count(*) FROM horsies_queue_state")
            began, speeds = time.monotonic(), list[tuple[float, float]]()
            while time.monotonic() < began + seconds:
                speeds.append((time.monotonic() - began, rate(station, None, count)))
        late = [speed for at, speed in speeds if at >= seconds * 2 / 3] or [speeds[-1][1]]
        results.add("adverse_pinned", HORSIES.name, sum(late) / len(late) / (sum(normal) / len(normal)))


def pooled(results: Results, servers: Servers, *, rounds: int, count: int) -> None:
    with contextlib.ExitStack() as stack:
        direct = stack.enter_context(warm(servers, "direct"))
        database = "horsies_bench_pooled"
        url = stack.enter_context(pooler(servers.url_of(database), servers.directory))
        through = stack.enter_context(warm(servers, "pooled", more={"BENCH_POOLER_URL": url}))
        for _ in range(rounds):
            normal = rate(direct, None, count)
            results.add("adverse_pooled", HORSIES.name, rate(through, None, count) / normal)


def killed(results: Results, servers: Servers, *, count: int) -> None:
    """Two workers share 1 ms tasks; one is killed with its children in the middle of it."""
    with Station(HORSIES, servers, name="killed") as station, station.workers(1, copies=2) as workers:
        rate(station, None, 200, kind="sleep1")
        station.enqueue("sleep1", "many", count)
        while station.remaining(count) > count * 2 // 3:
            time.sleep(0.01)
        workers.roots[0].kill()
        fell, deadline = time.perf_counter(), time.perf_counter() + 90
        while _value(station, LIVE) and time.perf_counter() < deadline:
            time.sleep(0.05)
        results.add("killed_heal", HORSIES.name, time.perf_counter() - fell)
        results.add("killed_lost", HORSIES.name, _value(station, LOST))


def _value(station: Station, statement: str) -> int:
    (value,) = station.database.execute(statement).fetchone() or (0,)
    return int(value)


def payloads(results: Results, servers: Servers, *, rounds: int) -> None:
    with warm(servers, "payload") as station:
        for _ in range(rounds):
            for name, size, count in (("1 KB", 1_000, 4_000), ("100 KB", 100_000, 200), ("1 MB", 1_000_000, 20)):
                results.add(f"payload {name}", HORSIES.name, rate(station, None, count, kind="load", size=size))
