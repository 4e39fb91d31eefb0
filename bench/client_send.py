"""How fast the client enqueues, as a ratio to the bare statements on a raw asyncpg connection.

`send_async`, one at a time, beside an INSERT of the same row; `send_many` of 10,000 beside a COPY of the same
rows. Interleaved rounds on a durable embedded server; then once more without waiting for the disk, where the
client's own work shows. Printed: the ratio of the best rounds, and the median of the ratios of neighbouring rounds,
which a busy machine disturbs less. Goals: 0.7 and 0.5.
"""

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import asyncpg

import horsies_schema
from horsies import AppConfig, Horsies, PostgresConfig, RetryPolicy, TaskError, TaskResult
from horsies_schema import embedded

ONE_AT_A_TIME, MANY = 100, 10_000
ROUNDS = {ONE_AT_A_TIME: 50, MANY: 15}
COLUMNS = (
    "id", "task_name", "queue_name", "priority", "kwargs", "sent_at", "enqueued_at", "max_retries", "task_options",
    "enqueue_sha",
)  # fmt: skip
INSERT = (
    f"INSERT INTO horsies_tasks ({', '.join(COLUMNS)}) VALUES ({', '.join(f'${n + 1}' for n in range(len(COLUMNS)))})"
)


def define(app: Horsies) -> Any:
    @app.task("bench", retry_policy=RetryPolicy.fixed(5, max_retries=3, auto_retry_for=["SMTP_DOWN"]))
    def task(order: int, note: str, urgent: bool = False) -> TaskResult[int, TaskError]:
        return TaskResult(ok=order)

    return task


async def rate(count: int, work: Callable[[], Awaitable[object]]) -> float:
    start = time.perf_counter()
    await work()
    return count / (time.perf_counter() - start)


async def measure(url: str, title: str, settings: dict[str, str]) -> None:
    options = "&options=" + "%20".join(f"-c%20{key}%3D{value}" for key, value in settings.items()) if settings else ""
    app = Horsies(AppConfig(PostgresConfig(url + options)))
    task = define(app)
    raw = await asyncpg.connect(url, server_settings=settings)

    async def rows(count: int) -> list[Any]:
        """The very rows that the client writes, under fresh ids."""
        return [tuple(row) for row in await raw.fetch(f"SELECT {', '.join(COLUMNS)} FROM horsies_tasks LIMIT {count}")]

    async def send_each() -> None:
        for n in range(ONE_AT_A_TIME):
            await task.send_async(n, "a note of some length", urgent=True)

    async def insert_each() -> None:
        for row in batch[:ONE_AT_A_TIME]:
            await raw.execute(INSERT, *row)

    async def send_many() -> None:
        await task.send_many_async([task.call(n, "a note of some length", urgent=True) for n in range(MANY)])

    async def copy_many() -> None:
        await raw.copy_records_to_table("horsies_tasks", records=batch, columns=COLUMNS)

    await send_many()
    batch = await rows(MANY)
    pairs = {
        "send_async / INSERT": (ONE_AT_A_TIME, send_each, insert_each),
        "send_many / COPY": (MANY, send_many, copy_many),
    }
    print(title)
    for name, (count, ours, bare) in pairs.items():
        rates: dict[Any, list[float]] = {ours: [], bare: []}
        for number in range(ROUNDS[count]):
            for side in (ours, bare) if number % 2 else (bare, ours):
                await raw.execute("TRUNCATE horsies_tasks CASCADE")
                rates[side].append(await rate(count, side))
        ratio = statistics.median(mine / theirs for mine, theirs in zip(rates[ours], rates[bare], strict=True))
        best = max(rates[ours]), max(rates[bare])
        print(f"  {name:20} best {best[0]:7,.0f}/s of {best[1]:7,.0f}/s = {best[0] / best[1]:.2f}   median {ratio:.2f}")
    await raw.close()
    await app.aclose()


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="horsies-bench-") as directory:
        Path(directory).chmod(0o755)  # root's server runs as another account
        server = embedded.start(Path(directory) / "server")  # a directory of our choice: fsync stays on
        try:
            horsies_schema.upgrade(server.url)
            asyncio.run(measure(server.url, "durable", {}))
            asyncio.run(measure(server.url, "synchronous_commit = off", {"synchronous_commit": "off"}))
        finally:
            server.stop()


if __name__ == "__main__":
    main()
