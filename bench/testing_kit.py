"""How long the tests of a user's project take in real mode: 50 varied tests, each with a clean database.

    python -m bench.testing_kit [processes of pytest-xdist ...]

Prints the wall time of a whole `pytest` run, with the start of the server and the migration, and the processor time of
Python.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SHOP = """
from datetime import timedelta

from horsies import (
    AppConfig, Cron, Horsies, PostgresConfig, RetryPolicy, ScheduleConfig, TaskError, TaskResult, TaskSchedule,
    crash_point, current_task, from_node, sleep, snooze, wait_for_signal,
)

schedules = [TaskSchedule("nightly", "double", Cron("30 2 * * *"), kwargs={"n": 1})]
app = Horsies(AppConfig(PostgresConfig("postgresql://production/shop"), schedule=ScheduleConfig(schedules)))
AGAIN = RetryPolicy.fixed(60, 3, auto_retry_for=["BUSY", "WORKER_CRASHED"])
Number = TaskResult[int, TaskError]


@app.task("double", retry_policy=AGAIN)
def double(n: int) -> Number:
    crash_point("half")
    return TaskResult(ok=2 * n)


@app.task("busy", retry_policy=AGAIN)
def busy(n: int) -> Number:
    return TaskResult(err=TaskError("BUSY")) if current_task().attempt < 3 else TaskResult(ok=n)


@app.task("later")
async def later(n: int) -> Number:
    await double.send_async(n)
    return TaskResult(ok=n)


@app.task("polls")
def polls(n: int) -> Number:
    return snooze(seconds=30) if current_task().snoozes < n else TaskResult(ok=n)


@app.task("items")
def items(n: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=list(range(n)))


listed = items.node(node_id="items")(3)
mapped = double.node(node_id="mapped").map(listed)
fan = app.workflow("fan", [listed, mapped], output=mapped)
nap = sleep(timedelta(days=1), node_id="nap")
go = wait_for_signal("go", int, node_id="go", waits_for=[nap])
end = double.node(node_id="end")(from_node(go))
waits = app.workflow("waits", [nap, go, end], output=end)
"""

TESTS = """
from datetime import timedelta

import psycopg
import pytest

from horsies import TaskResult, testing
from shop import app, busy, double, fan, go, later, polls, waits

HOUR = timedelta(hours=1)


@pytest.mark.parametrize("n", range(6))
def test_a_task(horsies_db, n):
    handle = double.send(n)
    horsies_db.drain()
    assert handle.get() == TaskResult(ok=2 * n)


@pytest.mark.parametrize("n", range(6))
def test_a_task_that_sends(horsies_db, n):
    handle = later.send(n)
    assert horsies_db.drain().completed == 2
    assert handle.get() == TaskResult(ok=n)


@pytest.mark.parametrize("n", range(6))
def test_retries(horsies_db, n):
    handle = busy.send(n)
    assert horsies_db.drain().retried == 1
    horsies_db.advance(HOUR)
    horsies_db.drain()
    horsies_db.advance(HOUR)
    assert horsies_db.drain().result(handle) == TaskResult(ok=n)


@pytest.mark.parametrize("n", range(1, 5))
def test_until_quiet(horsies_db, n):
    handle = polls.send(n)
    assert horsies_db.drain(until_quiet=True).result(handle) == TaskResult(ok=n)


@pytest.mark.parametrize("n", range(5))
def test_delays_and_keys(horsies_db, n):
    sender = double.with_options(unique_key="one", metadata={"tenant": "acme"}, group="acme")
    handle, same = sender.schedule(HOUR, n), sender.send(n)
    assert same.is_duplicate
    assert horsies_db.drain().attempts == 0
    horsies_db.advance(HOUR)
    assert horsies_db.drain().result(handle) == TaskResult(ok=2 * n)


@pytest.mark.parametrize("n", range(5))
def test_a_workflow(horsies_db, n):
    run = fan.start()
    horsies_db.drain()
    assert run.get() == TaskResult(ok=[0, 2, 4])


@pytest.mark.parametrize("n", range(4))
def test_a_workflow_that_waits(horsies_db, n):
    run = waits.start()
    horsies_db.drain(until_quiet=True)
    horsies_db.signal(run, go, n)
    horsies_db.drain()
    assert run.get() == TaskResult(ok=2 * n)


@pytest.mark.parametrize("n", range(4))
def test_a_schedule(horsies_db, n):
    horsies_db.advance(timedelta(days=n + 1))
    assert horsies_db.drain().completed == n + 1


@pytest.mark.parametrize("moment", ["before_start", "started", "half", "returned", "written"])
def test_a_crash(horsies_db, moment):
    handle = double.send(4)
    with testing.crash_at(moment):
        horsies_db.drain()
    assert handle.get() == TaskResult(ok=8)


@pytest.mark.parametrize("n", range(5))
def test_in_a_transaction(horsies_db, n):
    with psycopg.connect(horsies_db.url) as connection:
        handle = double.with_options(connection=connection).send(n)
        assert horsies_db.drain(connection=connection).result(handle) == TaskResult(ok=2 * n)
        connection.rollback()
    assert horsies_db.drain().attempts == 0
"""


def measure(directory: Path, processes: int) -> str:
    """Run the tests once, and tell how long it took."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("HORSIES_T", "PYTEST_"))}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(processes)]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        command, cwd=directory, env={**kept, "PYTHONPATH": str(directory)}, capture_output=True, text=True, check=False
    )
    took, after = time.monotonic() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode or "50 passed" not in done.stdout:
        sys.exit(done.stdout + done.stderr)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return f"50 tests, {processes or 'without'} pytest-xdist: {took:.1f} s, {spent:.1f} s of processor time in Python"


def main() -> None:
    counts = [int(one) for one in sys.argv[1:]] or [0, 2]
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        (directory / "shop.py").write_text(SHOP)
        (directory / "test_shop.py").write_text(TESTS)
        (directory / "pytest.ini").write_text(
            "[pytest]\nhorsies_app = shop:app\nasyncio_default_fixture_loop_scope = function\n"
        )
        for count in counts:
            print(measure(directory, count), f"(load {os.getloadavg()[0]:.1f})", flush=True)


if __name__ == "__main__":
    main()
