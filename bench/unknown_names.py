"""Beside a worker that does not know the name, and beside 100,000 tasks of an unknown name: as ratios to being alone."""

import asyncio
import statistics
import sys
from contextlib import ExitStack

import asyncpg

from bench import support
from bench.drain import enqueue
from bench.round_trip import our_trips

TASKS = 20_000
STRANGERS = 100_000
ROUNDS = 3
OTHER = "bench.worker_app:other"


async def drain(connection: asyncpg.Connection, *, beside: bool = False, strangers: int = 0) -> float:
    """Known tasks per second: of one worker alone, beside one that does not know them, or behind unknown tasks."""
    await support.clean(connection)
    await connection.execute(
        "INSERT INTO horsies_tasks (id, task_name) SELECT 'unknown ' || i, 'unknown' FROM generate_series(1, $1) AS i",
        strangers,
    )
    await enqueue(TASKS)
    await connection.execute("VACUUM (ANALYZE) horsies_tasks")
    with ExitStack() as stack:
        if beside:
            stack.enter_context(support.worker("--processes", "2", app=OTHER))
        stack.enter_context(support.worker("--processes", "2"))
        # by an index: a count over the unknown tasks as well would slow down what it measures
        while await connection.fetchval("SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NOT NULL") < TASKS:
            await asyncio.sleep(0.2)
    return await connection.fetchval(
        "SELECT count(*) / extract(epoch FROM max(terminal_at) - min(started_at))::float8 FROM horsies_tasks"
        " WHERE terminal_at IS NOT NULL"
    )


async def trips(connection: asyncpg.Connection, *, beside: bool) -> float:
    """p50 of single round trips, in seconds."""
    await support.clean(connection)
    with ExitStack() as stack:
        if beside:
            stack.enter_context(support.worker("--processes", "2", app=OTHER))
        stack.enter_context(support.worker("--processes", "2"))
        return statistics.median(await our_trips())


async def run(url: str, rounds: int) -> None:
    connection = await asyncpg.connect(url)
    ratios: dict[str, list[float]] = {"drain beside": [], "p50 beside": [], "drain behind unknown tasks": []}
    try:
        for number in range(1, rounds + 1):
            alone = await drain(connection)
            beside = await drain(connection, beside=True)
            behind = await drain(connection, strangers=STRANGERS)
            single, single_beside = await trips(connection, beside=False), await trips(connection, beside=True)
            print(
                f"round {number}: drain alone {alone:,.0f}/s, beside {beside:,.0f}/s, behind {behind:,.0f}/s;"
                f" p50 alone {1000 * single:.2f} ms, beside {1000 * single_beside:.2f} ms",
                flush=True,
            )
            ratios["drain beside"].append(beside / alone)
            ratios["p50 beside"].append(single_beside / single)
            ratios["drain behind unknown tasks"].append(behind / alone)
    finally:
        await connection.close()
    for what, found in ratios.items():
        print(
            f"{what}: {statistics.median(found):.2f} of alone (median of {rounds}, {min(found):.2f} to {max(found):.2f})"
        )


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with support.database() as url:
        asyncio.run(run(url, rounds))


if __name__ == "__main__":
    main()
