"""The capacity model beside the real thing: a steady load, and each figure as measured / model; it has options.

One worker with two processes, and one process that sends tasks one by one at a steady rate. CPU is that of the server and of
the worker's processes, WAL that of the whole server, disk that of the tables and indexes when they are packed (VACUUM FULL):
a run of seconds has not reached the steady state of autovacuum. CPU is compared as a multiple of what a trivial statement costs
at the same time, because machines differ and a busy one is slower. Connections are the worker's, and those of the sender.
A figure that is off by more than 30 % makes the command fail.
"""

import argparse
import asyncio
import contextlib
import json
import threading
import time
from typing import Any

import psutil

from bench import support
from bench.compare import observe
from bench.fleet import EMPTY, ENDED, SPAWN, Fleet
from bench.history import SIZES
from horsies.operate.capacity import (
    CHECKPOINT_S,
    WAL_CHECKPOINT,
    WAL_PRUNED,
    Load,
    capacity,
    wal_per_second,
)
from tests.support.waiting import eventually

BOUND, SENDERS = 0.30, 8
YARDSTICK_US = 190.0
"""The yardstick when the coefficients were measured; CPU figures are compared as multiples of it."""
PAYLOADS = "SELECT avg(length(kwargs))::float8, avg(length(result))::float8 FROM horsies_tasks"
SENT_BY = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'horsies'"


def send(size: int, seconds: float, rate: float) -> None:
    """Single sends by eight coroutines, with an argument of about `size` bytes."""

    async def one(tasks: Any, number: int, begin: float) -> None:
        sent = 0
        while time.time() < begin + seconds:
            await asyncio.sleep(begin + (number + sent * SENDERS) / rate - time.time())
            await tasks.count.send_async([1] * (size // 2))
            sent += 1

    async def all_of_them() -> None:
        import on_horsies

        begin = time.time()  # after the imports, or the first tasks would come in a burst
        await asyncio.gather(*(one(on_horsies, number, begin) for number in range(SENDERS)))
        await on_horsies.app.aclose()

    asyncio.run(all_of_them())


class Yardstick:
    """A session that runs a trivial statement 50 times a second beside the load: how dear a wake-up and a statement are on
    this machine just now. A busy machine makes all CPU figures larger, and this one alike."""

    def __init__(self, url: str) -> None:
        self._postgres = observe.Postgres(url)
        self._backend = [psutil.Process(self._postgres.connection.info.backend_pid)]
        self._over = threading.Event()
        self._client_s, self._count = 0.0, 0
        self._thread = threading.Thread(target=self._run)
        self._server_s = observe.cpu_s(self._backend)
        self._thread.start()

    def _run(self) -> None:
        began = time.thread_time()
        while not self._over.wait(0.02):
            self._postgres.connection.execute("SELECT 1")
            self._count += 1
        self._client_s = time.thread_time() - began

    def end(self) -> tuple[float, float]:
        """µs of CPU for each statement, of both sides; and the seconds of the server's part."""
        self._over.set()
        self._thread.join()
        server_s = observe.cpu_s(self._backend) - self._server_s
        self._postgres.close()
        return (server_s + self._client_s) / max(self._count, 1) * 1e6, server_s


def measure(rate: float, seconds: float, size: int) -> dict[str, float]:
    with support.horsies() as sut, contextlib.closing(Fleet(sut, processes=2)) as fleet, SPAWN.Pool(1) as pool:
        broker = sut.broker
        fleet.grow(1)
        broker.connection.execute(EMPTY)
        broker.settle()
        began = broker.counters()[1]
        sending = pool.apply_async(send, (size, seconds + 6.0, rate))
        ran = f"{2 * rate:g} tasks have run"
        eventually(lambda: broker.value(ENDED, "-infinity", "infinity") > 2 * rate, timeout=60, describe=ran)
        yardstick = Yardstick(sut.url)
        since, until, server, worker = fleet.cost(seconds)
        speed, own_s = yardstick.end()
        server -= own_s
        tasks = broker.value(ENDED, since, until)
        connections = broker.connections()
        senders = broker.value(SENT_BY)
        sending.get(120)
        eventually(lambda: not broker.value(sut.description["remaining"]), timeout=60, describe="all tasks end")
        written, every = broker.counters()[1] - began, broker.value("SELECT count(*) FROM horsies_tasks")
        for table in ("horsies_tasks", "horsies_task_attempts"):
            broker.connection.execute(f"VACUUM FULL {table}")
        arguments, result = broker.connection.execute(PAYLOADS).fetchone()
        size_now = sum(one for _, _, one, _ in broker.connection.execute(SIZES))
        return {
            "rate": tasks / (until - since).total_seconds(), "server_us": server / tasks * 1e6,
            "worker_us": worker / tasks * 1e6, "yardstick": speed, "wal": written / every, "disk": size_now / every, "tasks": every,
            "connections": connections - senders, "senders": senders, "arguments": arguments, "result": result,
        }  # fmt: skip


def compare(found: dict[str, float]) -> list[tuple[str, float, float]]:
    """Each figure: measured, and as the model has it for the rate that was reached."""
    rate, speed = found["rate"], YARDSTICK_US / found["yardstick"]
    load = Load(
        tasks_per_second=rate, task_seconds=0.0, retention_days=1, peak=1, processes=2, web_processes=1, schedulers=0,
        arguments_bytes=round(found["arguments"]), result_bytes=round(found["result"]),
    )  # fmt: skip
    model = capacity(load)
    # one checkpoint, no pruning: what this run had
    seconds = found["tasks"] / rate
    wal = (wal_per_second(load, 1) - WAL_CHECKPOINT.value / CHECKPOINT_S.value) / rate - WAL_PRUNED.value
    return [
        ("CPU of the server, µs per task", found["server_us"] * speed, model.server_cores / rate * 1e6),
        ("CPU of the worker, µs per task", found["worker_us"] * speed, model.worker_cores / rate * 1e6),
        ("WAL, bytes per task", found["wal"], wal + WAL_CHECKPOINT.value / (rate * seconds)),
        ("disk, bytes per task, packed", found["disk"], model.bytes_per_task),
        ("connections of the worker", found["connections"], model.connections - 11 - 10 - 1),
    ]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="just bench capacity", description=__doc__)
    parser.add_argument(
        "--rate", default="40,150,500", help="tasks per second, one run for each (default: %(default)s)"
    )
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--size", type=int, default=200, help="bytes of the arguments (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print the figures as measured, for the coefficients")
    given = parser.parse_args(arguments or [])
    worst = 0.0
    for rate in map(float, given.rate.split(",")):
        found = measure(rate, given.seconds, given.size)
        if given.json:
            print(json.dumps({"asked": rate, **found}), flush=True)
        support.row(f"{found['rate']:.0f} tasks/s", "measured", "model", "ratio")
        for title, real, model in compare(found):
            ratio = real / model
            worst = max(worst, abs(ratio - 1))
            support.row(f"  {title}", real, model, ratio)
    within = worst <= BOUND
    print(f"\nthe model is {'within' if within else 'off by more than'} {BOUND:.0%}; the worst figure by {worst:.0%}")
    return 0 if within else 1
