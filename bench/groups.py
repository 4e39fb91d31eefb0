"""Tasks with groups and limits: drains beside plain tasks, claims from a million, fairness, and what a throttled fleet asks.

BENCH_GROUPS=2000,50000,1 (tasks of a drain, waiting tasks, rounds) makes it shorter.
"""

import asyncio
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import asyncpg

from bench import support
from bench.compare.adverse import rate
from bench.compare.system_under_test import SystemUnderTest
from bench.unknown_names import WORKERS
from horsies_worker.claim.groups.plan import MAX_GROUPS
from horsies_worker.database.grouped_claim import GroupedRequest
from horsies_worker.database.queries import Queries
from horsies_worker.database.settings import CLAIM_SETTINGS
from horsies_worker.identity import Identity
from tests.support.waiting import eventually

TASKS = """INSERT INTO horsies_tasks (id, task_name, queue_name, group_key, kwargs, priority)
SELECT gen_random_uuid(), 'noop', 'default', {key}, json_build_object('n', i)::text, 100
  FROM generate_series(1, {count}) AS i"""
ENDED = "SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NOT NULL AND {which}"
LAST = "SELECT extract(epoch FROM max(terminal_at) - min(sent_at))::float8 FROM horsies_tasks WHERE {which}"
HOUR = {"limit": 1, "per_seconds": 3600, "burst": 1}


def reset(sut: SystemUnderTest, **policy: Any) -> None:
    connection = sut.broker.connection
    connection.execute(
        "TRUNCATE horsies_tasks, horsies_task_attempts, horsies_worker_states, horsies_queue_state, horsies_rate_limits"
    )
    if policy:
        connection.execute(
            "INSERT INTO horsies_queue_state (queue_name, override) VALUES ('default', %s)", [json.dumps(policy)]
        )


@contextmanager
def workers(sut: SystemUnderTest, count: int = 1) -> Iterator[None]:
    with sut.started(sut.call("commands", processes=2, slots=None) * count):
        eventually(lambda: sut.broker.value(WORKERS) == count, timeout=60, describe="the workers are up")
        rate(sut, 500)
        yield


def send(sut: SystemUnderTest, count: int, key: str) -> None:
    sut.broker.connection.execute(TASKS.format(count=count, key=key))


def seconds(sut: SystemUnderTest, count: int, which: str) -> float:
    """From the send of these tasks to the end of the last one."""
    ended = ENDED.format(which=which)
    eventually(lambda: sut.broker.value(ended) >= count, timeout=300, interval=0.05, describe=f"{count} tasks end")
    return float(sut.broker.value(LAST.format(which=which)))


# -- drains ----------------------------------------------------------------------------------------------------


def drain(sut: SystemUnderTest, tasks: int, key: str, **policy: Any) -> dict[str, float]:
    reset(sut, **policy)
    with workers(sut):
        sut.broker.connection.execute("TRUNCATE horsies_tasks, horsies_task_attempts")
        send(sut, tasks, key)
        return {"tasks drained/s": tasks / seconds(sut, tasks, "true")}


# -- one noisy group -------------------------------------------------------------------------------------------


def small_groups(sut: SystemUnderTest, big: int) -> dict[str, float]:
    reset(sut)
    with workers(sut, 2):
        sut.broker.connection.execute("TRUNCATE horsies_tasks, horsies_task_attempts")
        if big:
            send(sut, big, "'big'")
        send(sut, 990, "'small ' || i % 99")
        return {"seconds for 99 groups of 10": seconds(sut, 990, "group_key LIKE 'small%'")}


# -- many groups -----------------------------------------------------------------------------------------------


async def claims(url: str, rounds: int, *, limit: int) -> tuple[list[float], float]:
    """Seconds of each claim, and buffers per claimed task."""
    queries = Queries(None, Identity("bench", "bench", 1))
    connection = await asyncpg.connect(url, server_settings=CLAIM_SETTINGS)
    took, cursors = [], {}
    try:
        buffers = tasks = 0
        for _ in range(rounds):
            request = GroupedRequest(
                queues=["default"], looks=(), is_walk=True, cursors=cursors, max_groups=MAX_GROUPS, limit=limit,
                room_async=0, room_sync=limit, room_ahead=0, async_names=(), short_names=(), sync_names=["noop"],
                expected_at=float("inf"),
            )  # fmt: skip
            before = await connection.fetchval(_BUFFERS)
            began = time.perf_counter()
            rows, report = await queries.claim_grouped(
                connection, request, queue_caps={}, cluster_cap=None, pooled=False
            )
            took.append(time.perf_counter() - began)
            await connection.fetchval("SELECT pg_stat_force_next_flush()")
            buffers += await connection.fetchval(_BUFFERS) - before
            tasks += len(rows)
            cursors = {(queue, priority): cursor.next_round() for queue, priority, cursor in report.cursors}
        return took[3:], buffers / max(1, tasks)
    finally:
        await connection.close()


_BUFFERS = """SELECT sum(heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit)::bigint
 FROM pg_statio_user_tables WHERE relname LIKE 'horsies%'"""


def fill(sut: SystemUnderTest, waiting: int) -> None:
    reset(sut, fair=True)
    sut.broker.connection.execute("SET session_replication_role = replica")
    send(sut, waiting, "'g' || i % 10000")
    sut.broker.connection.execute("SET session_replication_role = origin")
    sut.broker.connection.execute("VACUUM ANALYZE horsies_tasks")


def many_groups(sut: SystemUnderTest, waiting: int, limit: int, **policy: Any) -> None:
    sut.broker.connection.execute("UPDATE horsies_queue_state SET override = %s", [json.dumps(policy)])
    sut.broker.connection.execute("DELETE FROM horsies_tasks WHERE status = 'RUNNING'")  # they would fill the groups
    sut.broker.connection.execute("VACUUM horsies_tasks")
    took, buffers = asyncio.run(claims(sut.url, 300, limit=limit))
    took.sort()
    name = f"  {limit} of {waiting:,}{', limited' if policy else ''}"
    support.row(name, statistics.median(took) * 1000, took[int(len(took) * 0.99)] * 1000, took[-1] * 1000, buffers)


# -- an idle fleet ---------------------------------------------------------------------------------------------


def throttled(sut: SystemUnderTest, groups: int) -> None:
    reset(sut, rate=HOUR)
    statements = "SELECT coalesce(sum(calls), 0)::float8 FROM pg_stat_statements WHERE query LIKE '%horsies%'"
    with workers(sut, 4):
        sut.broker.connection.execute("TRUNCATE horsies_tasks, horsies_task_attempts")
        send(sut, 3 * groups, f"'g' || i % {groups}")
        seconds(sut, groups, "true")
        figures = []
        for _ in range(2):  # the second ten seconds are those of a fleet that has seen every group
            before, began = sut.broker.value(statements), time.monotonic()
            time.sleep(10)
            figures.append((sut.broker.value(statements) - before) / (time.monotonic() - began))
    support.row(f"  4 workers, {groups:,} groups", *figures)


def main() -> None:
    tasks, waiting, rounds = support.numbers("BENCH_GROUPS", "20000,1000000,3")
    with support.horsies(shared_preload_libraries="pg_stat_statements") as sut:
        sut.broker.connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        key = "'g' || i % 1000"
        support.in_turns(
            {
                "plain": partial(drain, sut, tasks, "NULL"),
                "one group": partial(drain, sut, tasks, "'g'"),
                "1,000 groups": partial(drain, sut, tasks, key),
                "1,000 groups, two at once each": partial(drain, sut, tasks, key, max_concurrency=2),
            },
            rounds,
        )
        support.in_turns(
            {
                "alone": partial(small_groups, sut, 0),
                "beside a group of 100,000": partial(small_groups, sut, min(100_000, waiting)),
            },
            rounds,
        )
        support.row("claims from 10,000 groups", "p50, ms", "p99, ms", "longest, ms", "buffers/task")
        fill(sut, waiting)
        for limit in (1, 10, 64):
            many_groups(sut, waiting, limit)
            many_groups(sut, waiting, limit, max_concurrency=2)
        support.row("statements/s, all throttled", "at first", "then")
        throttled(sut, 1_000)
