"""Idle round trip `send` -> `get`, as a ratio to a bare NOTIFY round trip of the same database work in the same run.

Bare: insert, NOTIFY, claim, finish with its attempt row, NOTIFY, read: two connections that listen to each other, the
worker's statements, no processes.
"""

import asyncio
import statistics
import time

import asyncpg

from bench import support
from horsies.ids import new_id
from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.decide import Transition
from horsies_worker.identity import Identity
from horsies_worker.queries import ClaimRequest, Queries
from horsies_worker.session import CLAIM_SETTINGS

TRIPS = 200
ROUNDS = 3


async def bare_trips(url: str) -> list[float]:
    queries = Queries(None, Identity())
    producer, reader = await asyncpg.connect(url), await asyncpg.connect(url)
    server_side, listener = await asyncpg.connect(url, server_settings=CLAIM_SETTINGS), await asyncpg.connect(url)
    finalizer = await asyncpg.connect(url)
    news, done = asyncio.Event(), asyncio.Event()
    await listener.add_listener("task_new", lambda *_: news.set())
    await reader.add_listener("task_done", lambda *_: done.set())

    async def serve() -> None:
        request = ClaimRequest(("default",), (), 1, 1, 0, 0, 0, (), (), ("noop",))
        while True:
            await news.wait()
            news.clear()
            claimed = await queries.claim(
                server_side, request, lease_ms=1000, queue_caps={}, cluster_cap=None, pooled=False
            )
            now = time.time()
            ends = [
                Transition(row["id"], row["claim_generation"], 1, TaskStatus.COMPLETED, '{"ok":1}', None, None, None,
                           AttemptOutcome.COMPLETED, 0, 0, now, now, 1, "bare")
                for row in claimed.rows
            ]  # fmt: skip
            await queries.finalize_own(finalizer, ends)

    server = asyncio.create_task(serve())
    times: list[float] = []
    try:
        for _ in range(TRIPS):
            began = time.perf_counter()
            task_id = new_id()
            await producer.execute(
                "INSERT INTO horsies_tasks (id, task_name, kwargs) VALUES ($1, 'noop', '{}')", task_id
            )
            await done.wait()
            done.clear()
            await reader.fetchrow("SELECT result FROM horsies_tasks WHERE id = $1", task_id)
            times.append(time.perf_counter() - began)
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)
        for connection in (producer, reader, server_side, listener, finalizer):
            await connection.close()
    return times


async def our_trips() -> list[float]:
    from bench.worker_app import app, noop

    times: list[float] = []
    try:
        for _ in range(5):
            (await (await noop.send_async(0)).get_async(10_000)).unwrap()
        for number in range(TRIPS):
            began = time.perf_counter()
            handle = await noop.send_async(number)
            (await handle.get_async(10_000)).unwrap()
            times.append(time.perf_counter() - began)
    finally:
        await app.aclose()
    return times


def line(name: str, times: list[float]) -> str:
    return f"{name:10} p50 {1000 * statistics.median(times):6.2f} ms   p99 {1000 * sorted(times)[int(0.99 * len(times))]:6.2f} ms"


async def run(url: str) -> None:
    connection = await asyncpg.connect(url)
    ratios: list[tuple[float, float]] = []
    for _ in range(ROUNDS):
        await support.clean(connection)
        bare = await bare_trips(url)
        with support.worker("--processes", "2"):
            ours = await our_trips()
        p50 = statistics.median(ours) / statistics.median(bare)
        p99 = sorted(ours)[int(0.99 * TRIPS)] / sorted(bare)[int(0.99 * TRIPS)]
        ratios.append((p50, p99))
        print(f"{line('bare', bare)}   {line('horsies', ours)}   ratio p50 {p50:.2f}, p99 {p99:.2f}")
    await connection.close()
    print(
        f"idle round trip: p50 {min(r[0] for r in ratios):.2f}x of bare at best, {sorted(r[0] for r in ratios)[1]:.2f}x median"
    )


def main() -> None:
    with support.database() as url:
        asyncio.run(run(url))


if __name__ == "__main__":
    main()
