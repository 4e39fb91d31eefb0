"""Drain of pre-enqueued no-op tasks with 2 processes, as a ratio to the bare-SQL lifecycle in the same run."""

import asyncio
import time

import asyncpg

from bench import bare_sql, support

TASKS = 20_000
ROUNDS = 3

STATEMENTS = """
SELECT calls, rows, mean_exec_time, shared_blks_hit / calls AS hits,
       CASE WHEN query LIKE 'WITH RECURSIVE found%room AS%' THEN 'claim'
            WHEN query LIKE 'WITH picked AS%claim_generation%' THEN 'claim next'
            WHEN query LIKE 'WITH mine AS%horsies_task_attempts%' THEN 'finalize'
            WHEN query LIKE 'WITH mine AS%unwanted%' THEN 'hand back'
            ELSE 'other' END AS what
  FROM pg_stat_statements WHERE query LIKE '%horsies_tasks%' AND query NOT LIKE '%pg_stat_statements%'
"""


async def enqueue(count: int) -> None:
    from bench.worker_app import app, noop

    await noop.send_many_async([(n,) for n in range(count)])
    await app.aclose()


async def worker_rate(connection: asyncpg.Connection, processes: int) -> float:
    """From the first claim to the last end, by the rows themselves: starting Python does not count."""
    with support.worker("--processes", str(processes)):
        while await connection.fetchval("SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NULL"):
            await asyncio.sleep(0.2)
    return await connection.fetchval(
        "SELECT count(*) / extract(epoch FROM max(terminal_at) - min(started_at))::float8 FROM horsies_tasks"
    )


async def run(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        ratios: list[float] = []
        for number in range(1, ROUNDS + 1):
            await support.clean(connection)
            await enqueue(TASKS)
            bare = await bare_sql.drain(url)
            await support.clean(connection)
            await enqueue(TASKS)
            await connection.execute("SELECT pg_stat_statements_reset()")
            ours = await worker_rate(connection, 2)
            ratios.append(ours / bare)
            print(
                f"round {number}: bare SQL {bare:8,.0f} tasks/s   worker {ours:8,.0f} tasks/s   ratio {ours / bare:.2f}"
            )
            for row in await connection.fetch(STATEMENTS):
                if row["what"] != "other":
                    print(
                        f"         {row['what']:10} {row['calls']:6} statements, {row['rows'] / row['calls']:6.1f} rows each,"
                        f" {row['mean_exec_time']:6.2f} ms, {row['hits']} buffers"
                    )
        print(
            f"drain of {TASKS:,} no-op tasks: {max(ratios):.2f} of bare SQL at best, {sorted(ratios)[len(ratios) // 2]:.2f} median"
        )
    finally:
        await connection.close()


def main() -> None:
    began = time.perf_counter()
    with support.database() as url:
        asyncio.run(run(url))
    print(f"({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
