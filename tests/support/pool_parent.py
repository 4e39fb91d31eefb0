"""A parent process of its own, to be killed: starts a pool, runs one job, prints who is who, waits.

python -m tests.support.pool_parent <app locator> <task> <kwargs as JSON>
"""

import asyncio
import json
import os
import sys

from tests.support.pools import Yard
from tests.support.waiting import eventually_async


async def main(app: str, task: str, kwargs: str) -> None:
    yard = Yard(app, processes=2, start_timeout_s=600)
    starting = asyncio.ensure_future(yard.pool.start())
    await eventually_async(lambda: yard.pool._template is not None)
    assert yard.pool._template is not None
    template = yard.pool._template.pid
    if task:
        await starting
        await yard.all_ready()
        yard.send(yard.job(task, **json.loads(kwargs)))
    pids = {"parent": os.getpid(), "template": template, "children": sorted(yard.pids())}
    print(json.dumps(pids), flush=True)  # noqa: T201
    await asyncio.sleep(600)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
