"""The protocol between the bench and a system that is installed in an environment of its own.

    <the system's python> driver.py <module> <verb> '<json arguments>'

prints one line of JSON. The driver needs only the standard library and runs as a script: its folder, and nothing else of
the repository, is on the path, so another commit of horsies never imports this one. A module offers

    REMAINING                     SQL that counts unfinished tasks; None: the bench counts results in Redis
    TASKS                         the tasks by kind: noop, anoop (async def), sleep50 (milliseconds)
    commands(processes, slots)    command lines of a worker; slots per process, None: as the documentation advises
    send(kind, value), wait(sent) send one task; wait until the caller knows its result

and, where the system needs or supports it,

    prepare()                     create the tables in PostgreSQL
    connect()                     the async context in which the other functions are called
    send_many(kind, values)       bulk enqueue
    TRIP_KIND                     the kind of task to send on round trips, if not noop
"""

import asyncio
import contextlib
import importlib
import json
import os
import sys
import time

DATABASE_URL = os.environ.get("BENCH_DATABASE_URL", "")
REDIS_URL = os.environ.get("BENCH_REDIS_URL", "")
BROKER_URL, RESULTS_URL = f"{REDIS_URL}/0", f"{REDIS_URL}/1"
WARM_UP_TRIPS = 5


def noop(n):
    return n


async def anoop(n):
    return n


def sleep50(n):
    time.sleep(0.05)
    return n


SYNC_BODIES = {"noop": noop, "sleep50": sleep50}
BODIES = {**SYNC_BODIES, "anoop": anoop}


async def describe(system):
    return {"remaining": system.REMAINING, "kinds": list(system.TASKS)}


async def commands(system, processes, slots):
    return system.commands(processes, slots)


async def prepare(system):
    await system.prepare()


async def enqueue(system, kind, how, count):
    """Seconds for `count` tasks after a first one that opens the connections; None: the system cannot do it."""
    if kind not in system.TASKS or not hasattr(system, how):
        return None
    send = getattr(system, how)
    async with getattr(system, "connect", contextlib.nullcontext)():
        await system.send(kind, 0)
        began = time.perf_counter()
        if how == "send_many":
            await send(kind, range(count))
        else:
            for value in range(count):
                await send(kind, value)
        return time.perf_counter() - began


async def round_trips(system, count):
    """Seconds of each round trip, one at a time, from the call that sends a task to its result."""
    kind, times = getattr(system, "TRIP_KIND", "noop"), []
    async with getattr(system, "connect", contextlib.nullcontext)():
        for number in range(count + WARM_UP_TRIPS):
            began = time.perf_counter()
            await system.wait(await system.send(kind, number))
            times.append(time.perf_counter() - began)
    return times[WARM_UP_TRIPS:]


if __name__ == "__main__":
    sys.modules["driver"] = sys.modules["__main__"]  # the module imports this one by name
    module, verb, arguments = sys.argv[1:4]
    print("\n" + json.dumps(asyncio.run(globals()[verb](importlib.import_module(module), **json.loads(arguments)))))
