"""100,000 runs that wait for a signal: what an idle fleet asks of the server beside none of them, and how fast a signal moves one.

BENCH_WAITS=1000,10,50 (waiting runs, seconds per measurement, signals) makes it shorter.
"""

import asyncio
import statistics
import time
from typing import Any

from bench import support
from bench.compare.system_under_test import SystemUnderTest
from bench.unknown_names import WORKERS
from horsies import wait_for_signal
from tests.support.waiting import eventually

COST = """SELECT (SELECT sum(calls)::float8 FROM pg_stat_statements WHERE query NOT LIKE '%%pg_stat_%%'),
       (SELECT sum(shared_blks_hit + shared_blks_read)::float8 FROM pg_stat_statements
         WHERE query NOT LIKE '%%pg_stat_%%')"""
WAITING = "SELECT count(*) FROM horsies_workflow_tasks WHERE status = 'WAITING'"
COLUMNS = """SELECT string_agg(column_name, ', '), string_agg('x.' || column_name, ', ') FROM information_schema.columns
 WHERE table_name = %s AND column_name <> ALL (%s)"""


def copy(sut: SystemUnderTest, table: str, key: str, workflow_id: str, count: int) -> None:
    """Copy the rows of one run, so that 100,000 runs need no 100,000 starts."""
    given = ["id", "workflow_id"] if key == "workflow_id" else ["id"]
    columns, values = sut.broker.connection.execute(COLUMNS, [table, given]).fetchone()
    own = "gen_random_uuid(), 'run-' || n" if key == "workflow_id" else "'run-' || n"
    sut.broker.connection.execute(
        f"INSERT INTO {table} ({', '.join(given)}, {columns}) SELECT {own}, {values}"
        f" FROM {table} x, generate_series(1, {count}) AS n WHERE x.{key} = %s",
        [workflow_id],
    )


def cost(sut: SystemUnderTest, seconds: int) -> tuple[float, float]:
    """Statements and buffers per second."""
    before, began = sut.broker.connection.execute(COST).fetchone(), time.perf_counter()
    time.sleep(seconds)
    after, took = sut.broker.connection.execute(COST).fetchone(), time.perf_counter() - began
    return (after[0] - before[0]) / took, (after[1] - before[1]) / took


async def latencies(app: Any, flow: Any, count: int) -> list[float]:
    found: list[float] = []
    for number in range(1, count + 1):
        handle = app.workflow_handle(f"run-{number}", flow)
        began = time.perf_counter()
        await handle.signal_async("go", True)
        (await handle.get_async(60_000)).unwrap()
        found.append((time.perf_counter() - began) * 1000)
    await app.aclose()
    return sorted(found)


def main() -> None:
    count, seconds, signals = support.numbers("BENCH_WAITS", "100000,60,300")
    with support.horsies() as sut:
        import on_horsies

        wait = wait_for_signal("go", bool, timeout=86_400)
        last = on_horsies.noop.node(node_id="last", waits_for=[wait])(1)
        flow = on_horsies.app.workflow("waits", [wait, last], output=last)
        with sut.started(sut.call("commands", processes=1, slots=None) * 2):
            eventually(lambda: sut.broker.value(WORKERS) == 2, timeout=60, describe="the workers are up")
            time.sleep(10)
            none = cost(sut, seconds)
            handle = flow.start()
            eventually(lambda: sut.broker.value(WAITING) == 1, timeout=60, describe="the run waits")
            copy(sut, "horsies_workflows", "id", handle.workflow_id, count)
            copy(sut, "horsies_workflow_tasks", "workflow_id", handle.workflow_id, count)
            sut.broker.settle()
            time.sleep(10)
            many = cost(sut, seconds)
            found = asyncio.run(latencies(on_horsies.app, flow, signals))
        support.row("an idle fleet of 2 workers", "none wait", f"{count:,} wait", "ratio")
        support.row("  statements per second", none[0], many[0], many[0] / none[0])
        support.row("  buffers per second", none[1], many[1], many[1] / none[1])
        consumed = sut.broker.value(
            "SELECT percentile_cont(0.5) WITHIN GROUP (ORDER BY extract(epoch FROM consumed_at - created_at)) * 1000"
            " FROM horsies_workflow_signals WHERE consumed_at IS NOT NULL"
        )
        support.row("signal to its node, p50 ms", float(consumed))
        support.row("signal to the end of the run, ms", "p50", "p90")
        support.row("", statistics.median(found), found[int(0.9 * len(found))])
