"""The scenarios that all systems take part in. Each is short, so that a round visits every system in turn."""

import asyncio
import math
import statistics
import time
from dataclasses import dataclass

from bench import bare_sql
from bench.compare import observe
from bench.compare.results import Results
from bench.compare.servers import Servers
from bench.compare.system_under_test import SystemUnderTest, Workers
from bench.compare.systems import BARE_SQL, HORSIES, System


@dataclass(frozen=True, slots=True)
class Context:
    results: Results
    servers: Servers
    scale: float  # factor on the number of tasks of a drain
    repeats: int  # single sends, and round trips
    idle_s: float

    def tasks(self, system: System = HORSIES) -> int:
        return max(100, int(system.drain * self.scale))


def core(context: Context, system: System) -> None:
    """Enqueue, cold start, drain, round trips, and what the worker costs while it is idle: one start of everything."""
    results, name = context.results, system.name
    with SystemUnderTest(system, context.servers) as sut:
        results.add("enqueue_one", name, sut.enqueue("noop", "send", context.repeats))
        total, bulk_rate = sut.fill("noop", context.tasks(system))
        results.add("enqueue_many", name, bulk_rate)
        total += context.repeats + 1
        sut.broker.settle()
        with sut.workers() as workers:
            before = sut.broker.counters()
            drained = sut.drain(workers, total)
            results.add("drain_noop", name, drained.rate)
            results.add("cold_start", name, drained.first_s)
            results.add("cpu_worker", name, drained.worker_us)
            results.add("cpu_server", name, drained.server_us)
            if before is not None:
                after = sut.broker.counters()
                results.add("cost_statements", name, (after[0] - before[0]) / total)
                results.add("cost_wal", name, (after[1] - before[1]) / total)
            sut.broker.settle()
            trips = sut.call("round_trips", count=int(context.repeats * system.share_of_trips))
            results.add("trip_p50", name, statistics.median(trips) * 1000)
            results.add("trip_p99", name, p99(trips) * 1000)
            _add_idle_costs(context, sut, workers)


def p99(values: list[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1]


def _add_idle_costs(context: Context, sut: SystemUnderTest, workers: Workers) -> None:
    results, name, tree = context.results, sut.system.name, workers.processes()
    time.sleep(0.5)  # until the last task's effects are over
    before, cpu = sut.broker.counters(), observe.cpu_s(tree)
    time.sleep(context.idle_s)
    results.add("idle_cpu", name, 100 * (observe.cpu_s(tree) - cpu) / context.idle_s)
    if before is not None:
        results.add("idle_statements", name, (sut.broker.counters()[0] - before[0]) / context.idle_s)
    results.add("connections", name, sut.broker.connections())
    results.add("memory", name, observe.pss_mb(tree))


def bare(context: Context) -> None:
    """What the worker's statements reach without processes around them."""
    with SystemUnderTest(HORSIES, context.servers, "bare") as sut:
        total, _ = sut.fill("noop", context.tasks())
        sut.broker.settle()
        cpu = time.process_time()
        context.results.add("drain_noop", BARE_SQL, asyncio.run(bare_sql.drain(sut.url, batch=100)))
        context.results.add("cpu_worker", BARE_SQL, (time.process_time() - cpu) / total * 1e6)


def async_noops(context: Context, system: System) -> None:
    with SystemUnderTest(system, context.servers) as sut:
        if "anoop" in sut.description["kinds"]:
            total, _ = sut.fill("anoop", context.tasks(system))
            sut.broker.settle()
            with sut.workers() as workers:
                context.results.add("drain_async", system.name, sut.drain(workers, total).rate)


def sleep50(context: Context, system: System) -> None:
    """50 ms tasks on 8 processes with one slot each, as a share of 8 / 50 ms."""
    ideal = 8 / 0.05
    if system.has_slots:
        with SystemUnderTest(system, context.servers) as sut:
            total, _ = sut.fill("sleep50", int(ideal * 6))
            with sut.workers(8, slots=1) as workers:
                context.results.add("drain_sleep50", system.name, sut.drain(workers, total, skip=0.25).rate / ideal)
