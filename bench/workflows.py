"""Fan-out and fan-in of 100, 1,000 and 5,000 nodes: statements and time per node must not grow with the width.

One root, so many nodes that wait for it, one that waits for all of them. Also the same as a `map`, whose width only
exists at run time.
"""

import asyncio
import time
from typing import Any

import asyncpg

from bench import support
from horsies import from_node

WIDTHS = (100, 1_000, 5_000)
ROUNDS = 3

STATEMENTS = """
SELECT sum(calls)::int AS calls,
       sum(calls) FILTER (WHERE query LIKE '%horsies_workflow%')::int AS workflow
  FROM pg_stat_statements
 WHERE (query LIKE '%horsies_%' AND query NOT LIKE '%pg_stat_statements%') OR query ~* '^(BEGIN|COMMIT)'
"""


def fan(width: int) -> Any:
    from bench.worker_app import app, noop

    root = noop.node(node_id="root")(0)
    middle = [noop.node(node_id=f"n{n}")(from_node(root)) for n in range(width)]
    last = noop.node(node_id="last", waits_for=middle)(1)
    return app.workflow("fan", [root, *middle, last], output=last)


def mapped(width: int) -> Any:
    from bench.worker_app import app, count, noop, spread

    items = spread.node(node_id="items")(width)
    many = noop.node(node_id="many").map(items_from=items)
    last = count.node(node_id="last")(from_node(many))
    return app.workflow("map", [items, many, last], output=last)


async def one(connection: asyncpg.Connection, spec: Any) -> tuple[float, int, int]:
    """Seconds from start to end, statements in all, and those that touch a workflow."""
    await connection.execute("TRUNCATE horsies_workflows, horsies_workflow_tasks CASCADE")
    await support.clean(connection)
    await connection.execute("SELECT pg_stat_statements_reset()")
    began = time.perf_counter()
    handle = await spec.start_async()
    result = await handle.get_async(300_000)
    took = time.perf_counter() - began
    assert result.is_ok(), result
    row = await connection.fetchrow(STATEMENTS)
    assert row is not None
    return took, row["calls"], row["workflow"]


async def run(url: str) -> None:
    from bench.worker_app import app

    connection = await asyncpg.connect(url)
    try:
        await connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")
        with support.worker("--processes", "2"):
            await one(connection, fan(10))
            for name, build in (("fan", fan), ("map", mapped)):
                per_node: dict[int, float] = {}
                per_node_statements: dict[int, float] = {}
                for width in WIDTHS:
                    runs = [await one(connection, build(width)) for _ in range(ROUNDS)]
                    took, calls, workflow = min(runs)
                    per_node[width] = took / width * 1e6
                    per_node_statements[width] = calls / width
                    print(
                        f"{name} {width:6,}: {took:6.2f} s, {per_node[width]:7.0f} µs per node; "
                        f"{calls:6} statements, {calls / width:.3f} per node ({workflow} of them of workflows)"
                    )
                times, counts = list(per_node.values()), list(per_node_statements.values())
                print(
                    f"{name}: time per node, largest width to smallest {times[-1] / times[0]:.2f}, "
                    f"worst to best {max(times) / min(times):.2f}; statements per node, largest to smallest "
                    f"{counts[-1] / counts[0]:.2f}"
                )
    finally:
        await connection.close()
        await app.aclose()


def main() -> None:
    with support.database() as url:
        asyncio.run(run(url))


if __name__ == "__main__":
    main()
