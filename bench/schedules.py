"""10,000 schedules that were made at run time, 1,000 of them due in one minute: how late their tasks are committed.

Once spread over the minute and once in the same second, with two schedulers. BENCH_SCHEDULES=1000,100,20 (schedules, due
ones, seconds over which they are spread) makes it shorter.
"""

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil

from bench import support
from bench.compare.system_under_test import PEERS_FOLDER, SystemUnderTest
from horsies import Hourly, Monthly, TaskSchedule
from tests.support.waiting import eventually

SCHEDULERS = 2
LATENESS = """SELECT extract(epoch FROM pg_xact_commit_timestamp(xmin) - sent_at)::float8
  FROM horsies_tasks WHERE sent_at >= %s"""
COST = """SELECT sum(calls)::float8, sum(total_exec_time)::float8 FROM pg_stat_statements
 WHERE query NOT LIKE '%%pg_stat_%%' AND query LIKE '%%horsies_schedule%%'"""


@contextmanager
def schedulers(url: str) -> Iterator[list[psutil.Process]]:
    with TemporaryDirectory() as folder:
        environment = {**os.environ, "BENCH_DATABASE_URL": url, "PYTHONPATH": str(PEERS_FOLDER)}
        line = [sys.executable, "-m", "horsies.cli", "scheduler", "on_horsies:app", "--loglevel", "WARNING"]
        processes = [
            subprocess.Popen([*line, f"--health-file={Path(folder) / str(number)}"], env=environment)
            for number in range(SCHEDULERS)
        ]
        try:
            yield [psutil.Process(process.pid) for process in processes]
        finally:
            for process in processes:
                process.terminate()
                process.wait(30)


def measure(sut: SystemUnderTest, title: str, due: int, spread: int) -> None:
    """Give `due` schedules a slot in `spread` seconds from a moment on, and wait for their tasks."""
    import on_horsies

    connection = sut.broker.connection
    moment: datetime = sut.broker.value("SELECT date_trunc('second', now())") + timedelta(seconds=15)
    slots = [moment + timedelta(seconds=number * spread // due) for number in range(due)]
    on_horsies.app.schedules.put_many(
        TaskSchedule(f"due{number:05}", "noop", Hourly(slot.minute, slot.second), kwargs={"n": number})
        for number, slot in enumerate(slots)
    )
    unplanned = "SELECT count(*) FROM horsies_schedule_state WHERE config_hash IS NULL"
    eventually(lambda: sut.broker.value(unplanned) == 0, timeout=15, describe="all are planned")
    sent = "SELECT count(*) FROM horsies_tasks WHERE sent_at >= %s"
    eventually(
        lambda: connection.execute(sent, [moment]).fetchone()[0] == due, timeout=spread + 60, interval=0.5,
        describe="every slot has its task",
    )  # fmt: skip
    late = sorted(row[0] * 1000 for row in connection.execute(LATENESS, [moment]).fetchall())
    support.row(title, statistics.median(late), late[int(0.99 * len(late))], late[-1])


def main() -> None:
    count, due, spread = support.numbers("BENCH_SCHEDULES", "10000,1000,60")
    with support.horsies(track_commit_timestamp="on") as sut:
        import on_horsies

        on_horsies.app.schedules.put_many(
            TaskSchedule(f"idle{number:05}", "noop", Monthly(1 + number % 28, "04:00"), kwargs={"n": number})
            for number in range(count - due)
        )
        sut.broker.settle()
        with schedulers(sut.url) as running:
            known = "SELECT count(*) FROM horsies_schedule_state WHERE next_run_at IS NOT NULL"
            eventually(lambda: sut.broker.value(known) == count - due, timeout=60, describe="all are planned")
            time.sleep(5)
            before, began = [sum(one.cpu_times()[:2]) for one in running], time.perf_counter()
            cost = sut.broker.connection.execute(COST).fetchone()
            time.sleep(10)
            took = time.perf_counter() - began
            used = [sum(one.cpu_times()[:2]) - old for one, old in zip(running, before, strict=True)]
            after = sut.broker.connection.execute(COST).fetchone()
            support.row(f"{count - due:,} that are not due", "CPU %", "statements/s", "server ms/s", "MB each")
            support.row(
                f"  {SCHEDULERS} schedulers", 100 * sum(used) / took, (after[0] - cost[0]) / took,
                (after[1] - cost[1]) / took, max(one.memory_info().rss for one in running) / 2**20,
            )  # fmt: skip
            support.row("lateness of the commit, ms", "p50", "p99", "largest")
            measure(sut, f"  {due:,} within {spread} s", due, spread)
            measure(sut, f"  {due:,} in one second", due, 1)
            support.row("memory of a scheduler, MB", max(one.memory_info().rss for one in running) / 2**20)
