"""A parent process that tests kill: starts a pool, runs one job, prints the pids as JSON, and waits.

python -m tests.support.pool_parent <app locator> <task> <kwargs as JSON>
"""

import asyncio
import json
import os
import sys

from tests.support.pools import PoolHarness
from tests.support.waiting import eventually_async


async def main(app: str, task: str, kwargs: str) -> None:
    harness = PoolHarness(app, processes=2, start_timeout_s=600)
    starting = asyncio.ensure_future(harness.pool.start())
    await eventually_async(lambda: harness.pool.stats().template_pid is not None)
    template = harness.pool.stats().template_pid
    if task:
        await starting
        await harness.all_ready()
        harness.send(harness.job(task, **json.loads(kwargs)))
    pids = {"parent": os.getpid(), "template": template, "children": sorted(harness.pids())}
    print(json.dumps(pids), flush=True)  # noqa: T201
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
