"""Does the parent's memory stay flat? Resident size of the worker's parent over 200,000 no-op tasks."""

import asyncio

import asyncpg
import psutil

from bench import support

TASKS = 200_000
CHUNK = 20_000


async def run(url: str) -> None:
    from bench.worker_app import app, noop

    with support.worker("--processes", "2") as process:
        connection = await asyncpg.connect(url)
        parent = psutil.Process(process.pid)
        sizes: list[float] = []
        for done in range(CHUNK, TASKS + 1, CHUNK):
            await noop.send_many_async([(n,) for n in range(CHUNK)])
            while await connection.fetchval("SELECT EXISTS (SELECT FROM horsies_tasks WHERE terminal_at IS NULL)"):
                await asyncio.sleep(0.2)
            sizes.append(parent.memory_info().rss / 2**20)
            print(f"{done:8,} tasks: {sizes[-1]:.1f} MB", flush=True)
            await connection.execute("TRUNCATE horsies_tasks, horsies_task_attempts")
        await app.aclose()
        await connection.close()
        settled = sizes[1]
        print(
            f"growth from {2 * CHUNK:,} to {TASKS:,} tasks: {sizes[-1] - settled:+.1f} MB ({100 * (sizes[-1] / settled - 1):+.1f} %)"
        )


def main() -> None:
    with support.database() as url:
        asyncio.run(run(url))


if __name__ == "__main__":
    main()
