"""Adverse conditions, horsies alone: full tables, and a transaction that pins xmin.

The worker is up and warm, and a batch is committed at once; its rate is read from the rows, by the database's clock.
"""

import contextlib
import statistics
import time
from collections.abc import Iterator

import psycopg

from bench.compare.scenarios import Context
from bench.compare.system_under_test import SystemUnderTest
from bench.compare.systems import HORSIES
from tests.support.waiting import eventually


def id_at(moment: str) -> str:
    """SQL for an id as senders make them, ordered by time (UUID version 7): random ones would touch all of an index."""
    digits = f"lpad(to_hex((extract(epoch FROM {moment}) * 1000)::bigint), 12, '0')"
    return f"left({digits}, 8) || '-' || right({digits}, 4) || '-7' || substr(gen_random_uuid()::text, 16)"


FINISHED = f"""
WITH tasks AS (
    INSERT INTO horsies_tasks (id, task_name, status, kwargs, result, claimed_at, started_at, completed_at, terminal_at,
                               created_at, enqueued_at, updated_at)
    SELECT {id_at("t")}, 'noop', 'COMPLETED', '{{"n": 1}}', '{{"ok": 1}}', t, t, t, t, t, t, t
      FROM generate_series(1, <rows>) AS i, LATERAL (SELECT now() - interval '20 days' + i * interval '1 ms' AS t) AS x
    RETURNING id, terminal_at)
INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at)
SELECT id, 1, 'COMPLETED', terminal_at, terminal_at FROM tasks
"""
# At the highest priority: a claim must not scan them to reach the ready tasks behind them.
FUTURE = """
INSERT INTO horsies_tasks (id, task_name, kwargs, priority, enqueued_at)
SELECT gen_random_uuid()::text, 'noop', '{"n": 1}', 1, now() + interval '1 day' + i * interval '1 ms'
  FROM generate_series(1, <rows>) AS i
"""
RATE = """
SELECT (count(*) / extract(epoch FROM max(terminal_at) - min(started_at)))::float8 FROM horsies_tasks
 WHERE terminal_at >= %s AND enqueued_at > (SELECT min(enqueued_at) FROM horsies_tasks WHERE terminal_at >= %s)
"""


@contextlib.contextmanager
def warm(context: Context, name: str) -> Iterator[SystemUnderTest]:
    """A database of its own, with a worker that has run its first tasks."""
    with SystemUnderTest(HORSIES, context.servers, name) as sut, sut.workers():
        rate(sut, 2_000)
        yield sut


def rate(sut: SystemUnderTest, count: int) -> float:
    """Tasks per second of one batch. Its end is seen by the index on terminal_at: a scan of a million rows, ten times a
    second, would slow the worker down."""
    since, ended = (
        sut.broker.value("SELECT clock_timestamp()"),
        "SELECT count(*) FROM horsies_tasks WHERE terminal_at >= %s",
    )
    sut.broker.connection.execute("SET enable_seqscan = off")
    sut.enqueue("noop", "send_many", count)
    eventually(lambda: sut.broker.value(ended, since) > count, timeout=120, interval=0.1, describe=f"{count} tasks end")
    return sut.broker.value(RATE, since, since)


def insert(sut: SystemUnderTest, statement: str, rows: int) -> None:
    with sut.broker.connection.transaction():
        sut.broker.connection.execute("SET LOCAL session_replication_role = replica")  # no notification per row
        sut.broker.connection.execute(statement.replace("<rows>", str(rows)))
    sut.broker.connection.execute("VACUUM ANALYZE horsies_tasks")


def full_tables(context: Context, rows: int, rounds: int = 6) -> None:
    """Three databases side by side, drained in turn, each round in another order; only the empty one is emptied again."""
    with contextlib.ExitStack() as stack:
        suts = [(name, stack.enter_context(warm(context, name))) for name in ("normal", "finished", "future")]
        insert(suts[1][1], FINISHED, rows)
        insert(suts[2][1], FUTURE, rows)
        for number in range(rounds):
            rates: dict[str, float] = {}
            for name, sut in suts[number % 3 :] + suts[: number % 3]:
                if name == "normal":
                    sut.broker.connection.execute("TRUNCATE horsies_tasks, horsies_task_attempts, horsies_heartbeats")
                sut.broker.settle()
                rates[name] = rate(sut, context.tasks())
            context.results.add("adverse_normal", HORSIES.name, rates["normal"])
            for name in ("finished", "future"):
                context.results.add(f"adverse_{name}", HORSIES.name, rates[name] / rates["normal"])


def pinned(context: Context, seconds: float) -> None:
    """Drain after drain under an old snapshot; the last third counts, when dead rows have accumulated."""
    with warm(context, "pinned") as sut, psycopg.connect(sut.url) as holder:
        normal = [rate(sut, context.tasks()) for _ in range(2)]
        holder.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        holder.execute("SELECT count(*) FROM horsies_queue_state")
        began, rates = time.monotonic(), list[tuple[float, float]]()
        while time.monotonic() < began + seconds:
            rates.append((time.monotonic() - began, rate(sut, context.tasks())))
        late = [one for at, one in rates if at >= seconds * 2 / 3] or [rates[-1][1]]
        context.results.add("adverse_pinned", HORSIES.name, statistics.mean(late) / statistics.mean(normal))
