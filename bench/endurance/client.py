"""The client of `bench day`: rounds of a thousand tasks, in bulk and singly, with waits for their results.

A round is sent when the one before the last has ended, so that the backlog is bounded. The argument is the number of tasks.
"""

import asyncio
import sys
from typing import Any

from bench.endurance import app as tasks
from horsies.errors import RetrievalCode

ROUND = 1_000
BULK = {"noop": 500, "anoop": 200, "echo": 200, "fails": 50, "again": 10}
SINGLES, RUNS = 20, 5
"""A run has four tasks."""
AHEAD, PATIENCE_MS = 2, 120_000
NUMBERS = list(range(30))
DISTINCT = 5_000
"""Arguments repeat after so many tasks. pydantic keeps the last 16,384 short strings that it has read from JSON; with new
strings in every round this cache takes a million tasks to fill, about 1 MB per process, and looks like a leak."""


def calls(kind: str, first: int, count: int) -> list[Any]:
    task = getattr(tasks, kind)
    numbers = [n % DISTINCT for n in range(first, first + count)]
    given = [(NUMBERS, f"order-{n}") if kind == "echo" else (n,) for n in numbers]
    return [task.call(*one) for one in given]


async def send(first: int) -> list[Any]:
    """One round; returns what the client waits for."""
    awaited: list[Any] = []
    for kind, count in BULK.items():
        handles = await getattr(tasks, kind).send_many_async(calls(kind, first, count))
        awaited += handles[-5:]
    for n in range(SINGLES):
        awaited.append(await tasks.noop.send_async(first + n))
    awaited += [await tasks.diamond.start_async() for _ in range(RUNS)]
    return awaited


async def main(count: int) -> None:
    rounds: list[list[Any]] = []
    for first in range(0, count, ROUND):
        rounds.append(await send(first))
        while len(rounds) > AHEAD or (rounds and first + ROUND >= count):
            results = await asyncio.gather(*(handle.get_async(PATIENCE_MS) for handle in rounds.pop(0)))
            errors = {one.err_value.error_code for one in results if one.is_err()}
            # on a slow machine a record may be pruned before it is asked for
            assert errors <= {"NO_MAIL", RetrievalCode.TASK_NOT_FOUND}, errors
        print(first + ROUND, flush=True)
    await tasks.app.aclose()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
