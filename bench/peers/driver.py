"""The little protocol between the bench and a system that lives in an environment of its own.

    <the system's python> driver.py <module> <verb> '<json arguments>'

prints one line of JSON. Standard library only, and run as a script: its folder, and nothing else of the repository,
is on the path, so the original `horsies` never sees ours. A module offers

    REMAINING                        SQL that counts what has not ended; None: the results in Redis are counted
    prepare()                        tables and the like, once
    commands(processes, slots)       the worker's command lines; slots per process, None: what its docs recommend
    enqueue(kind, how, count, size)  seconds; `how` is one, many or transaction; None where it has no such thing
    round_trips(count)               seconds of each, one at a time, until the caller knows the result
    later(count, delay_s)            tasks that are due `delay_s` from now, and note how late they start

and tasks of these kinds: noop, anoop (async def), sleep1 and sleep50 (milliseconds), stamp, and load (a text).
"""

import importlib
import json
import os
import sys
import time
from typing import Any

DATABASE_URL = os.environ.get("BENCH_DATABASE_URL", "")
REDIS_URL = os.environ.get("BENCH_REDIS_URL", "")
BROKER_URL, RESULTS_URL = f"{REDIS_URL}/0", f"{REDIS_URL}/1"


def stamp(due: float) -> None:
    """Note how late a delayed task starts. A file, because not every system has results; one short append is atomic."""
    late = time.time() - due
    with open(os.environ["BENCH_STAMPS"], "a") as stamps:  # noqa: PTH123
        stamps.write(f"{late}\n")


def text(size: int) -> str:
    """A payload of so many bytes that does not compress to nothing."""
    piece = "".join(chr(97 + (n * n * 31 + n * 7) % 26) for n in range(4096))
    return (piece * (size // len(piece) + 1))[:size]


def main(module_name: str, verb: str, arguments: str) -> None:
    module: Any = importlib.import_module(module_name)
    if verb == "describe":
        answer: Any = {"remaining": module.REMAINING, "python": sys.version.split()[0]}
    else:
        answer = getattr(module, verb)(**json.loads(arguments))
    print("\n" + json.dumps(answer), flush=True)


if __name__ == "__main__":
    sys.modules["driver"] = sys.modules["__main__"]  # the module imports us by name
    main(*sys.argv[1:4])
