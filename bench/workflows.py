"""Fan-out and fan-in of 100, 1,000 and 5,000 nodes: time and statements per node must not grow with the width.

One root, nodes that wait for it, one node that waits for all of them; and the same as a `map`, whose width is only known
at run time. BENCH_WIDTHS=10,100 makes it shorter.
"""

import asyncio
import time
from typing import Any

from bench import support
from bench.compare.system_under_test import SystemUnderTest
from horsies import from_node

ROUNDS = 3
STATEMENTS = """
SELECT sum(calls)::int FROM pg_stat_statements
 WHERE (query LIKE '%horsies_%' AND query NOT LIKE '%pg_stat_statements%') OR query ~* '^(BEGIN|COMMIT)'
"""


def fan(tasks: Any, width: int) -> Any:
    root = tasks.noop.node(node_id="root")(0)
    middle = [tasks.noop.node(node_id=f"n{n}")(from_node(root)) for n in range(width)]
    last = tasks.noop.node(node_id="last", waits_for=middle)(1)
    return tasks.app.workflow("fan", [root, *middle, last], output=last)


def mapped(tasks: Any, width: int) -> Any:
    items = tasks.spread.node(node_id="items")(width)
    many = tasks.noop.node(node_id="many").map(items_from=items)
    last = tasks.count.node(node_id="last")(from_node(many))
    return tasks.app.workflow("map", [items, many, last], output=last)


async def run_once(sut: SystemUnderTest, workflow: Any) -> tuple[float, int]:
    """Seconds from start to end, and the number of statements."""
    sut.broker.connection.execute("TRUNCATE horsies_workflows, horsies_workflow_tasks, horsies_tasks CASCADE")
    sut.broker.settle()
    sut.broker.value("SELECT pg_stat_statements_reset()")
    began = time.perf_counter()
    (await (await workflow.start_async()).get_async(300_000)).unwrap()
    return time.perf_counter() - began, sut.broker.value(STATEMENTS)


async def measure(sut: SystemUnderTest) -> None:
    import on_horsies

    await run_once(sut, fan(on_horsies, 10))
    for build in (fan, mapped):
        for width in support.numbers("BENCH_WIDTHS", "100,1000,5000"):
            took, statements = min([await run_once(sut, build(on_horsies, width)) for _ in range(ROUNDS)])
            each = f"{took / width * 1e6:7.0f} µs and {statements / width:.3f} statements per node"
            print(f"{build.__name__:6} {width:6,}: {took:6.2f} s, {each}", flush=True)
    await on_horsies.app.aclose()


def main() -> None:
    with support.horsies() as sut, sut.workers():
        asyncio.run(measure(sut))
