"""How fast the client enqueues, as a ratio to the bare statements on a raw asyncpg connection. Goals: 0.7 and 0.5.

`send_async` one at a time beside an INSERT of the same row; `send_many` of 10,000 beside a COPY of the same rows;
`app.send_many` of 10,000 calls of three senders with options of their own beside `send_many`. Rounds are interleaved, on a durable server and again without waiting for the disk, where the client's own work shows. Printed: the
ratio of the best rounds, and the median of the ratios of neighbouring rounds, which a busy machine disturbs less.
BENCH_ROUNDS=4,2,2 makes it shorter.
"""

import asyncio
import statistics
import time
from typing import Any

import asyncpg

from bench import support
from horsies import AppConfig, Horsies, PostgresConfig, RetryPolicy, TaskError, TaskResult

SINGLE, BULK = 100, 10_000
COLUMNS = "id, task_name, queue_name, priority, kwargs, sent_at, enqueued_at, max_retries, task_options, enqueue_sha"
INSERT = f"INSERT INTO horsies_tasks ({COLUMNS}) VALUES ({', '.join(f'${n + 1}' for n in range(10))})"


async def measure(url: str, title: str, **settings: str) -> None:
    options = "".join(f"{'&' if '?' in url else '?'}options=-c%20{key}%3D{value}" for key, value in settings.items())
    app = Horsies(AppConfig(PostgresConfig(url + options)))
    raw = await asyncpg.connect(url, server_settings=settings)

    @app.task("bench", retry_policy=RetryPolicy.fixed(5, max_retries=3, auto_retry_for=["SMTP_DOWN"]))
    def task(order: int, note: str, urgent: bool = False) -> TaskResult[int, TaskError]:
        return TaskResult(ok=order)

    async def send_each() -> None:
        for n in range(SINGLE):
            await task.send_async(n, "a note of some length", urgent=True)

    async def insert_each() -> None:
        for row in rows[:SINGLE]:
            await raw.execute(INSERT, *row)

    async def send_many() -> None:
        await task.send_many_async([task.call(n, "a note of some length", urgent=True) for n in range(BULK)])

    senders = (task, task.with_options(priority=5), task.with_options(delay=1, metadata={"tenant": "a"}))

    async def send_mixed() -> None:
        calls = (senders[n % 3].call(n, "a note of some length", urgent=True) for n in range(BULK))
        await app.send_many_async(calls)

    async def copy_many() -> None:
        await raw.copy_records_to_table("horsies_tasks", records=rows, columns=COLUMNS.split(", "))

    await send_many()
    rows = [tuple(row) for row in await raw.fetch(f"SELECT {COLUMNS} FROM horsies_tasks LIMIT {BULK}")]
    print(title)
    pairs: dict[str, Any] = {
        "send_async / INSERT": (send_each, insert_each),
        "send_many / COPY": (send_many, copy_many),
        "mixed / send_many": (send_mixed, send_many),
    }
    for (name, pair), count, rounds in zip(
        pairs.items(), (SINGLE, BULK, BULK), support.numbers("BENCH_ROUNDS", "50,15,15"), strict=True
    ):
        rates: dict[Any, list[float]] = {side: [] for side in pair}
        for number in range(rounds):
            for side in pair if number % 2 else reversed(pair):
                await raw.execute("TRUNCATE horsies_tasks CASCADE")
                began = time.perf_counter()
                await side()
                rates[side].append(count / (time.perf_counter() - began))
        ours, bare = (rates[side] for side in pair)
        ratio = statistics.median(one / other for one, other in zip(ours, bare, strict=True))
        best = f"best {max(ours):7,.0f}/s of {max(bare):7,.0f}/s = {max(ours) / max(bare):.2f}"
        print(f"  {name:20} {best}   median {ratio:.2f}", flush=True)
    await raw.close()
    await app.aclose()


def main() -> None:
    with support.horsies() as sut:
        asyncio.run(measure(sut.url, "durable"))
        asyncio.run(measure(sut.url, "synchronous_commit = off", synchronous_commit="off"))
