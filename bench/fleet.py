"""A fleet of workers: what idle ones and wake-ups cost, killed and frozen workers, large tables; it has parts and options.

`just bench fleet` runs all parts one after another, `just bench fleet PART --help` shows the options of one.
"""

import argparse
import asyncio
import contextlib
import inspect
import math
import multiprocessing
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import asyncpg

from bench import support
from bench.compare import observe
from bench.compare.adverse import FINISHED, id_at, insert
from bench.compare.scenarios import p99
from bench.compare.system_under_test import SystemUnderTest
from bench.compare.systems import HORSIES
from bench.table_settings import INSERT
from horsies import AppConfig, Horsies, PostgresConfig
from tests.support.waiting import eventually
from tests.support.workers import WorkerProcess

PRODUCERS, SENDERS = 4, 8
SPAWN = multiprocessing.get_context("spawn")
NOW, EMPTY = "SELECT clock_timestamp()", "TRUNCATE horsies_tasks CASCADE"
STARTS = """
SELECT array_agg(1000 * extract(epoch FROM started_at - enqueued_at)::float8) FROM horsies_tasks
 WHERE enqueued_at >= %s AND enqueued_at < %s AND NOT id = ANY (%s)
"""
LATEST = """
SELECT array_agg(name ORDER BY latest DESC) FROM (SELECT claimed_by_worker_id AS name, max(started_at) AS latest
  FROM horsies_tasks WHERE started_at > now() - interval '1 min' GROUP BY 1) AS x
"""
HELD = "SELECT array_agg(id) FROM horsies_tasks WHERE claimed_by_worker_id = ANY (%s) AND terminal_at IS NULL"
ENDED = "SELECT count(*) FROM horsies_tasks WHERE terminal_at BETWEEN %s AND %s"
READY = "SELECT count(*) FROM horsies_tasks WHERE status = 'PENDING' AND NOT withdrawn"
MAKE_READY = f"""
INSERT INTO horsies_tasks (id, task_name, queue_name, kwargs, enqueued_at)
SELECT {id_at("now() + i * interval '1 ms'")}, 'noop', 'q' || i % 100, '{{"n": 1}}',
       now() - interval '1 h' + i * interval '1 ms'
  FROM generate_series(1, <rows>) AS i
"""


class Fleet:
    """Workers that start one after another: two cores cannot start 32 at once."""

    def __init__(self, sut: SystemUnderTest, app: str = "app", processes: int = 1) -> None:
        (command,) = sut.call("commands", processes=processes, slots=None)
        self._command = [word.replace(":app", f":{app}") for word in command]
        self.sut, self.workers = sut, list[WorkerProcess]()

    def grow(self, count: int) -> None:
        """Start workers until there are so many; return when they are up and have calmed down."""
        while len(self.workers) < count:
            self.workers.append(WorkerProcess(self._command, self.sut.environment, self.sut.servers.directory))
            self.workers[-1].wait_up()
        before, cost = math.inf, sum(self.cost(1.0)[2:])
        while cost < 0.7 * before:
            before, cost = cost, sum(self.cost(1.0)[2:])

    def cost(self, seconds: float) -> tuple[datetime, datetime, float, float]:
        """From when until when by the database's clock, and the CPU seconds of the server and of all worker processes."""
        tree, broker = observe.tree(one.pid for one in self.workers), self.sut.broker
        since, server, workers = broker.value(NOW), broker.cpu_s(), observe.cpu_s(tree)
        time.sleep(seconds)
        return since, broker.value(NOW), broker.cpu_s() - server, observe.cpu_s(tree) - workers

    def close(self) -> None:
        for one in self.workers:
            one.kill_all()


def send(bare: bool, begin: float, seconds: float, rate: float = math.inf) -> float:
    """Single sends per second of this process by eight coroutines, from the time `begin` on, at most at `rate`."""

    async def send_alone(tasks: Any, number: int) -> int:
        connection = await asyncpg.connect(tasks.DATABASE_URL) if bare else None
        one, sent = partial(connection.execute, INSERT % 1) if connection else partial(tasks.noop.send_async, 1), 0
        await one()
        while time.time() < begin + seconds:
            await asyncio.sleep(begin + (number + sent * SENDERS) / rate - time.time())
            await one()
            sent += 1
        return sent

    async def send_all() -> float:
        import on_horsies

        sent = await asyncio.gather(*(send_alone(on_horsies, number) for number in range(SENDERS)))
        await on_horsies.app.aclose()
        return sum(sent) / seconds

    return asyncio.run(send_all())


@contextlib.contextmanager
def sending(sut: SystemUnderTest, rate: float) -> Iterator[None]:
    """A process that sends at this rate while the block runs."""
    sut.broker.connection.execute(EMPTY)
    with SPAWN.Pool(1) as pool:
        pool.apply_async(send, (False, time.time() + 1.0, math.inf, rate))
        eventually(
            lambda: sut.broker.value(ENDED, "-infinity", "infinity") > 2 * rate, timeout=60, describe="tasks are run"
        )
        yield


def started(sut: SystemUnderTest, since: datetime, until: datetime, left_out: Sequence[str] = ()) -> list[float]:
    """Milliseconds to the start of each task that was sent between these; infinite if it is not there 20 s later."""
    deadline = time.monotonic() + 20.0
    while None in (found := sut.broker.value(STARTS, since, until, list(left_out))):
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return [math.inf if one is None else one for one in found]


def wakeups(workers: str = "1,8,32", processes: int = 1, rate: float = 100.0, seconds: float = 10.0) -> None:
    """CPU of server and workers per task, and start latency, at a steady rate, by the number of idle workers"""
    support.row("workers", "idle ms/s", "tasks/s", "server µs", "workers µs", "both µs", "to first", "p50 ms", "p99 ms")
    first = 0.0
    with support.horsies(max_connections="1000") as sut, contextlib.closing(Fleet(sut, processes=processes)) as fleet:
        for count in sorted(int(word) for word in workers.split(",")):
            fleet.grow(count)
            idle = sum(fleet.cost(seconds)[2:]) / seconds * 1000
            with sending(sut, rate):
                since, until, *costs = fleet.cost(seconds)
                times = started(sut, since, until)
            server, worker = (cost / len(times) * 1e6 for cost in costs)
            first = first or server + worker
            cells = (server, worker, server + worker, (server + worker) / first, statistics.median(times), p99(times))
            support.row(f"{count}", idle, len(times) / (until - since).total_seconds(), *cells)


def producers(rounds: int = 5, seconds: float = 3.0) -> None:
    """32 single senders beside one worker: as is, without the triggers, and as bare INSERTs without the triggers"""
    with support.horsies() as sut, SPAWN.Pool(PRODUCERS) as pool, contextlib.closing(Fleet(sut, "polling")) as fleet:
        fleet.grow(1)
        trips = [one * 1000 for one in sut.call("round_trips", count=300)]
        support.row("idle round trip, ms", "p50", statistics.median(trips), "p99", p99(trips))

        def rate(triggers: str, bare: bool) -> dict[str, float]:
            sut.broker.connection.execute(f"{EMPTY}; ALTER TABLE horsies_tasks {triggers} TRIGGER USER")
            sut.broker.settle()
            sent = pool.starmap(send, [(bare, time.time() + 1.0, seconds)] * PRODUCERS, chunksize=1)
            eventually(lambda: not sut.broker.value(sut.description["remaining"]), timeout=120, describe="tasks end")
            return {"single sends/s": sum(sent)}

        variants = {"no triggers": ("DISABLE", False), "as is": ("ENABLE", False), "bare INSERTs": ("DISABLE", True)}
        calls = {name: partial(rate, *arguments) for name, arguments in variants.items()}
        support.in_turns(calls, rounds, warm_up=1)  # the first round imports and connects


def faults(workers: int = 8, rate: float = 50.0, times: int = 50) -> None:
    """Start latency of tasks sent in the second after the worker that started the latest task was killed or frozen"""
    kill, freeze, few = WorkerProcess.kill, WorkerProcess.freeze, max(1, times // 5)
    with support.horsies() as sut, contextlib.closing(Fleet(sut)) as fleet, contextlib.ExitStack() as stack:
        fleet.grow(workers)
        stack.enter_context(sending(sut, rate))
        support.row("", "times", "tasks", "p50 ms", "p99 ms", "max ms", "left out")
        for title, victims, fault, repeats in (
            ("no fault", 0, freeze, few), ("kill -9", 1, kill, times), ("SIGSTOP", 1, freeze, times),
            ("SIGSTOP of three at once", 3, freeze, few),
        ):  # fmt: skip
            judged = [judge(fleet, victims, fault) for _ in range(repeats)]
            found, left_out = [one for some, _ in judged for one in some], sum(held for _, held in judged)
            support.row(title, repeats, len(found), statistics.median(found), p99(found), max(found), left_out)


def judge(fleet: Fleet, count: int, fault: Callable[[WorkerProcess], None]) -> tuple[list[float], int]:
    """Milliseconds to the start of the tasks of the second after the fault, and how many tasks the victims hold. These are
    left out, for no other worker may start them. The fleet is whole again afterwards."""
    broker, workers = fleet.sut.broker, {one.worker_id: one for one in fleet.workers}

    def latest() -> list[str]:
        return [name for name in broker.value(LATEST) if name in workers][:count]

    eventually(lambda: len(latest()) == count, describe=f"{count} workers have started tasks")
    names = latest()
    for name in names:
        fault(workers[name])
    since = broker.value(NOW)
    time.sleep(1.2)  # the second that counts, and time for its last sends to commit
    held: list[str] = broker.value(HELD, names) or []
    times = started(fleet.sut, since, since + timedelta(seconds=1), held)
    if fault is WorkerProcess.kill:
        fleet.workers = [one for one in fleet.workers if one.is_running]
        fleet.grow(len(workers))
    else:
        time.sleep(1.0)
        for name in names:
            workers[name].thaw()
        eventually(lambda: not broker.value(HELD, names), timeout=60, describe="the frozen workers go on")
    return times, len(held)


def tables(workers: int = 16, scale: float = 0.1, rounds: int = 5, seconds: float = 4.0) -> None:
    """Drain of 1 million ready tasks in 100 queues, alone and beside 10 million finished ones; --scale is for both"""
    with (
        support.horsies() as alone, SystemUnderTest(HORSIES, alone.servers, "beside") as beside,
        contextlib.ExitStack() as stack,
    ):  # fmt: skip
        insert(beside, FINISHED, int(scale * 10_000_000))
        calls: dict[str, Callable[[], dict[str, float]]] = {}
        for name, sut in (("alone", alone), ("beside finished ones", beside)):
            asyncio.run(switch(sut, "pause_queue"))
            fleet = stack.enter_context(contextlib.closing(Fleet(sut, "queues")))
            fleet.grow(workers)
            calls[name] = partial(drain, fleet, int(scale * 1_000_000), seconds, keep=sut is beside)
        support.in_turns(calls, rounds, warm_up=1)


def drain(fleet: Fleet, ready: int, seconds: float, *, keep: bool) -> dict[str, float]:
    """Between a resume and a pause of all queues: a table that is not emptied keeps nearly all of its ready tasks."""
    broker, names = fleet.sut.broker, [one.worker_id for one in fleet.workers]
    if not keep:
        broker.connection.execute(EMPTY)
    insert(fleet.sut, MAKE_READY, ready - broker.value(READY))
    broker.settle()
    asyncio.run(switch(fleet.sut, "resume_queue"))
    # counting a million ready tasks takes a tenth of a second: not often, and no more than needed
    warm = ready - min(ready // 20, 5_000)
    eventually(lambda: broker.value(READY) < warm, timeout=60, interval=1.0, describe="the drain runs")
    since, until, *costs = fleet.cost(seconds)
    ended, left = broker.value(ENDED, since, until), broker.value(READY)
    asyncio.run(switch(fleet.sut, "pause_queue"))
    eventually(lambda: not broker.value(HELD, names), timeout=60, describe="what was claimed ends")
    if not left:
        raise SystemExit("all tasks were done before the time was over: raise --scale, or lower --seconds")
    return {"tasks/s": ended / (until - since).total_seconds(), "CPU per task, µs": sum(costs) / ended * 1e6}


async def switch(sut: SystemUnderTest, verb: str) -> None:
    import on_horsies

    app = Horsies(AppConfig(PostgresConfig(sut.url)))
    await asyncio.gather(*(getattr(app.get_broker(), verb)(name) for name in on_horsies.QUEUES))
    await app.aclose()


def main(arguments: Sequence[str] = ()) -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # workers have sessions of their own: end them first
    parser = argparse.ArgumentParser(prog="bench fleet", description=__doc__)
    commands, parts = parser.add_subparsers(metavar="PART"), (wakeups, producers, faults, tables)
    for part in parts:
        command = commands.add_parser(part.__name__, description=part.__doc__, help=part.__doc__)
        command.set_defaults(part=part)
        for name, option in inspect.signature(part).parameters.items():
            kind, default = type(option.default), option.default
            command.add_argument(f"--{name}", type=kind, default=default, help="default: %(default)s")
    options = vars(parser.parse_args(arguments))
    for part in [options.pop("part")] if options else parts:
        print(f"\n{part.__name__}: {part.__doc__}\n", flush=True)
        part(**options)
    return 0
