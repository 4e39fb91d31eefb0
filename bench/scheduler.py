"""Lateness of 1,000 schedules that are due in the same minute, with one scheduler: p50, p99, and its statements."""

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import asyncpg

from bench import support

SCHEDULES = 1_000
ROUNDS = 3

# From the slot to the moment at which the task's row was committed, which is when a worker can see it.
LATENESS = """
SELECT slot, count(*)::int AS tasks, percentile_disc(0.5) WITHIN GROUP (ORDER BY late) AS p50,
       percentile_disc(0.99) WITHIN GROUP (ORDER BY late) AS p99, max(late) AS longest
  FROM (SELECT sent_at AS slot, 1000 * extract(epoch FROM pg_xact_commit_timestamp(xmin) - sent_at)::float8 AS late
          FROM horsies_tasks) AS t
 GROUP BY slot ORDER BY slot
"""
STATEMENTS = """
SELECT coalesce(sum(calls), 0)::int FROM pg_stat_statements
 WHERE query LIKE '%horsies_%' AND query NOT LIKE '%the bench%' OR query LIKE 'BEGIN%' OR query = 'COMMIT'
"""


def schedules() -> list[object]:
    """Half of them by the calendar of some zone, half by cron; all of them are due every minute."""
    from horsies import Cron, TaskSchedule

    zones = ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata", "Australia/Lord_Howe")
    return [
        TaskSchedule(
            f"minutely-{number:04}", "noop", Cron("* * * * *" if number % 2 else "*/1 0-23 * * *"),
            kwargs={"value": number}, timezone=zones[number % len(zones)],
        )
        for number in range(SCHEDULES)
    ]  # fmt: skip


async def run(url: str) -> None:
    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        log = Path(tempfile.gettempdir()) / f"horsies-bench-scheduler-{os.getpid()}.log"
        with log.open("wb") as output:
            command = [
                sys.executable,
                "-m",
                "horsies.cli",
                "scheduler",
                "bench.scheduler_app:app",
                "--health-file",
                os.devnull,
            ]
            process = subprocess.Popen(command, stdout=output, stderr=output)  # noqa: ASYNC220
        try:
            while (
                await connection.fetchval("SELECT count(*) FROM horsies_schedule_state /* the bench's */") < SCHEDULES
            ):
                if process.poll() is not None:
                    raise SystemExit(f"the scheduler did not start:\n{log.read_text()}")
                await asyncio.sleep(0.1)
            worst = 0.0
            for number in range(1, ROUNDS + 1):
                left = await connection.fetchval("SELECT (60 - extract(second FROM clock_timestamp()))::float8")
                if left < 5:  # too close: the next one
                    await asyncio.sleep(left + 3)
                    left = await connection.fetchval("SELECT (60 - extract(second FROM clock_timestamp()))::float8")
                await support.clean(connection)
                await asyncio.sleep(left - 2.5)
                await connection.execute("SELECT pg_stat_statements_reset()")
                await asyncio.sleep(6)
                used = await connection.fetchval(STATEMENTS)
                for row in await connection.fetch(LATENESS):
                    worst = max(worst, row["p99"])
                    print(
                        f"round {number}: slot {row['slot']:%H:%M:%S}  {row['tasks']} tasks  p50 {row['p50']:6.1f} ms"
                        f"  p99 {row['p99']:6.1f} ms  last {row['longest']:6.1f} ms   {used} statements in 6 s around it"
                    )
            print(f"{SCHEDULES:,} schedules in the same minute, one scheduler: p99 at most {worst:.0f} ms late")
        finally:
            process.terminate()
            process.wait(30)
            log.unlink()
    finally:
        await connection.close()


def main() -> None:
    began = time.perf_counter()
    with support.database(track_commit_timestamp="on") as url:
        asyncio.run(run(url))
    print(f"({time.perf_counter() - began:.0f} s)")


if __name__ == "__main__":
    main()
