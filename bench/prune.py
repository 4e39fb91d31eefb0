"""Two million old rows pruned while load runs: the latency of claims during it, as a ratio to before, in one run."""

import asyncio
import os
import statistics
import time
from collections.abc import Sequence

import asyncpg

from bench import support
from horsies import AppConfig, Horsies, PostgresConfig, RecoveryConfig
from horsies_worker.identity import Identity
from horsies_worker.pruner import Pruner
from horsies_worker.queries import ClaimRequest, Queries
from horsies_worker.session import CLAIM_SETTINGS, Session

TASKS = int(os.environ.get("HORSIES_BENCH_PRUNE_TASKS", "1000000"))
ATTEMPTS = TASKS // 2
BEATS = TASKS // 2
CALM_S = 20.0
EVERY_S = 0.01

OLD_TASKS = """
INSERT INTO horsies_tasks (id, task_name, status, kwargs, result, claimed_at, started_at, completed_at, terminal_at,
                           created_at, enqueued_at, updated_at)
SELECT gen_random_uuid()::text, 'noop', 'COMPLETED', '{"n": 1}', '{"ok": 1}', t, t, t, t, t, t, t
  FROM generate_series(1, $1) AS i, LATERAL (SELECT now() - interval '60 days' + i * interval '1 s' AS t) AS x
"""
OLD_ATTEMPTS = """
INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at)
SELECT id, 1, 'COMPLETED', terminal_at, terminal_at FROM horsies_tasks LIMIT $1
"""
OLD_BEATS = """
INSERT INTO horsies_heartbeats (task_id, sender_id, role, sent_at)
SELECT 'gone', 'w', 'runner', now() - interval '60 days' FROM generate_series(1, $1)
"""


class Load:
    """Sends and claims ten tasks every few milliseconds, as an app and a worker do, and notes how long a claim took."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.claims: list[float] = []

    async def run(self, until: asyncio.Event) -> None:
        queries = Queries(None, Identity())
        connection = await asyncpg.connect(self._url, server_settings=CLAIM_SETTINGS)
        request = ClaimRequest(
            discover=["default"], hints=(), limit=10, room_sync=10, room_ahead=0, room_async=0, prefetch=0,
            async_names=(), short_names=(), other_names=["noop"],
        )  # fmt: skip
        try:
            while not until.is_set():
                await connection.execute(
                    "INSERT INTO horsies_tasks (id, task_name) "
                    "SELECT gen_random_uuid()::text, 'noop' FROM generate_series(1, 10)"
                )
                asked = time.monotonic()
                claimed = await queries.claim(
                    connection, request, lease_ms=120_000, queue_caps={}, cluster_cap=None, pooled=False
                )
                self.claims.append(time.monotonic() - asked)
                await connection.execute(
                    "UPDATE horsies_tasks SET status = 'COMPLETED', result = '{}', completed_at = now(), "
                    "terminal_at = now() WHERE id = ANY ($1)",
                    [row["id"] for row in claimed.rows],
                )
                await asyncio.sleep(EVERY_S)
        finally:
            await connection.close()


def percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] * 1000


async def measure(url: str, work: asyncio.Task[None] | None) -> list[float]:
    load, over = Load(url), asyncio.Event()
    running = asyncio.create_task(load.run(over))
    if work is None:
        await asyncio.sleep(CALM_S)
    else:
        await work
    over.set()
    await running
    return load.claims


def describe(name: str, claims: Sequence[float]) -> None:
    print(
        f"{name:8} {len(claims):6} claims   p50 {statistics.median(claims) * 1000:6.2f} ms   "
        f"p99 {percentile(claims, 0.99):6.2f} ms   worst {max(claims) * 1000:7.1f} ms"
    )


async def run(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        for statement, count in ((OLD_TASKS, TASKS), (OLD_ATTEMPTS, ATTEMPTS), (OLD_BEATS, BEATS)):
            await connection.execute(statement, count, timeout=600)
        await connection.execute("VACUUM ANALYZE", timeout=600)
        await connection.execute("CHECKPOINT", timeout=600)
        print(f"{TASKS:,} old tasks, {ATTEMPTS:,} attempts of theirs, {BEATS:,} old heartbeats")
        await measure(url, None)  # the first rounds warm the caches
        before = await measure(url, None)
        describe("before", before)

        app = Horsies(AppConfig(PostgresConfig(url), recovery=RecoveryConfig()))
        session = Session(app.config.broker, "pruner", settings=CLAIM_SETTINGS)
        started = time.monotonic()
        pruned = await measure(
            url, asyncio.create_task(Pruner(app.config, session, Queries(None, Identity())).run_once())
        )
        took = time.monotonic() - started
        describe("pruning", pruned)
        left = await connection.fetchval(
            "SELECT (SELECT count(*) FROM horsies_tasks WHERE terminal_at < now() - interval '30 days') + "
            "(SELECT count(*) FROM horsies_heartbeats)"
        )
        rows = TASKS + ATTEMPTS + BEATS
        print(f"{rows:,} rows gone in {took:.0f} s ({rows / took:,.0f}/s), {left} left")
        ratio = percentile(pruned, 0.99) / percentile(before, 0.99)
        print(f"claim p99 while pruning is {ratio:.2f} of before (bar: 2)")
        raise SystemExit(0 if ratio <= 2 and left == 0 else 1)
    finally:
        await connection.close()


def main() -> None:
    with support.database() as url:
        asyncio.run(run(url))


if __name__ == "__main__":
    main()
