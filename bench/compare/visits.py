"""The scenarios that all systems take part in. A visit is short, so that rounds can go A B C A B C."""

import asyncio
import math
import statistics
import time
from dataclasses import dataclass

from bench import bare_sql, round_trip
from bench.compare import observe
from bench.compare.results import Results
from bench.compare.servers import Servers
from bench.compare.station import Station, Workers
from bench.compare.table import BARE, HORSIES, System

SINGLES = 300
LATER, DELAY_S = 20, 2.0
BATCH = 100
"""Of the bare-SQL limit, as the must-show table has it."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much of a core visit."""

    singles: int
    trips: int
    idle_s: float


QUICK = Effort(singles=100, trips=100, idle_s=1.5)
FULL = Effort(singles=300, trips=300, idle_s=3.0)


def core(results: Results, servers: Servers, system: System, effort: Effort) -> None:
    """Enqueue, cold start, drain, round trips, and what the worker costs while idle: one start of everything."""
    on_postgresql = system.broker == "postgresql"
    with Station(system, servers) as station:
        results.add("enqueue_one", system.name, station.enqueue("noop", "one", effort.singles))
        total, bulk = _fill(station, "noop", system.drain)
        results.add("enqueue_many", system.name, bulk)
        total += effort.singles + 1
        station.settle()
        with station.workers() as workers:
            before = station.meter().read() if on_postgresql else None
            drain = station.drain(workers, total)
            results.add("drain_noop", system.name, drain.rate)
            results.add("cold_start", system.name, drain.first_s)
            results.add("cpu_worker", system.name, drain.worker_us)
            results.add("cpu_server", system.name, drain.server_us)
            if before is not None:
                after = station.meter().read()
                results.add("cost_statements", system.name, (after.statements - before.statements) / total)
                results.add("cost_wal", system.name, (after.wal_bytes - before.wal_bytes) / total)
            station.settle()
            _trips(results, system.name, station.call("round_trips", count=int(effort.trips * system.share_of_trips)))
            _idle(results, station, workers, effort.idle_s)


def _fill(station: Station, kind: str, count: int) -> tuple[int, float | None]:
    """Put `count` tasks into the queue; how many there are now, and tasks per second, which is what a user gets who has
    many to send: in bulk where the system can, one by one where there is no other way."""
    rate = station.enqueue(kind, "many", count)
    if rate is None:
        rate = station.enqueue(kind, "one", count)
    return (0 if rate is None else count + 1), rate


def _trips(results: Results, name: str, seconds: list[float]) -> None:
    times = sorted(seconds)
    results.add("trip_p50", name, statistics.median(times) * 1000)
    results.add("trip_p99", name, times[math.ceil(0.99 * len(times)) - 1] * 1000)


def _idle(results: Results, station: Station, workers: Workers, idle_s: float) -> None:
    name = station.system.name
    time.sleep(0.5)  # the aftermath of the last task
    processes = workers.processes()
    calm = station.meter().read() if station.system.broker == "postgresql" else None
    cpu, began = observe.cpu_s(processes), time.perf_counter()
    time.sleep(idle_s)
    took = time.perf_counter() - began
    results.add("idle_cpu", name, 100 * (observe.cpu_s(processes) - cpu) / took)
    if calm is not None:
        results.add("idle_statements", name, (station.meter().read().statements - calm.statements) / took)
    results.add("connections", name, station.connections())
    results.add("memory", name, observe.pss_mb(processes))


def bare(results: Results, servers: Servers, *, count: int, trips: bool) -> None:
    """What our statements reach without processes around them."""
    with Station(HORSIES, servers, name="bare") as station:
        station.enqueue("noop", "many", count)
        station.settle()
        own = time.process_time()
        results.add("drain_noop", BARE, asyncio.run(bare_sql.drain(station.url, batch=BATCH)))
        results.add("cpu_worker", BARE, (time.process_time() - own) / count * 1e6)
        if trips:
            _trips(results, BARE, asyncio.run(round_trip.bare_trips(station.url)))


def drain(results: Results, servers: Servers, system: System, kind: str) -> None:
    """Drain of async no-ops or of 1 ms tasks, 2 processes."""
    if kind == "sleep1" and not system.has_slots:
        return
    with Station(system, servers) as station:
        count = system.drain if kind == "anoop" else min(system.drain, 2_000)
        total, _ = _fill(station, kind, count)
        if not total:
            return
        station.settle()
        with station.workers(slots=None if kind == "anoop" else 1) as workers:
            metric = {"anoop": "drain_async", "sleep1": "drain_sleep1"}[kind]
            results.add(metric, system.name, station.drain(workers, total).rate)


def sleeping(results: Results, servers: Servers, system: System, *, processes: int = 8, seconds: float = 6.0) -> None:
    """50 ms tasks on one-slot processes, as a share of processes / 50 ms."""
    if not system.has_slots:
        return
    ideal = processes / 0.05
    with Station(system, servers) as station:
        total, _ = _fill(station, "sleep50", int(ideal * seconds))
        station.settle()
        with station.workers(processes, slots=1) as workers:
            results.add("drain_sleep50", system.name, station.drain(workers, total, skip=0.25).rate / ideal)


def later(results: Results, servers: Servers, system: System) -> None:
    """Tasks due at known times on an idle worker: how late do they start?"""
    if not system.has_delay:
        return
    with Station(system, servers) as station:
        station.stamps.touch(mode=0o666)
        with station.workers():
            time.sleep(3.0)  # up and idle
            station.call("later", count=LATER, delay_s=DELAY_S)
            deadline = time.monotonic() + DELAY_S + 15
            while len(lines := station.stamps.read_text().split()) < LATER and time.monotonic() < deadline:
                time.sleep(0.1)
            late = sorted(float(line) * 1000 for line in lines)
            if late:
                results.add("late_p50", system.name, statistics.median(late))
                results.add("late_p99", system.name, late[-1])


def transaction(results: Results, servers: Servers, system: System) -> None:
    with Station(system, servers) as station:
        results.add("enqueue_transaction", system.name, station.enqueue("noop", "transaction", SINGLES))


def costs(results: Results, servers: Servers, system: System) -> None:
    """Commits and fsyncs: sessions report those when they end, so they are read after the worker has stopped."""
    with Station(system, servers) as station:
        total, _ = _fill(station, "noop", system.drain)
        station.settle()
        before = station.meter().read()
        asked = 0

        def remaining() -> int:
            nonlocal asked
            asked += 1
            return station.remaining(total)

        with station.workers() as workers:
            observe.watch(remaining, total, workers.began, is_alive=workers.is_alive)
        time.sleep(1.1)
        after = station.meter().read()
        results.add("cost_commits", system.name, max(0, after.commits - before.commits - asked) / total)
        if before.fsyncs is not None and after.fsyncs is not None:
            results.add("cost_fsyncs", system.name, (after.fsyncs - before.fsyncs) / total)


def scaling(results: Results, servers: Servers, processes: int, copies: int, count: int) -> None:
    """Our own throughput by child processes and by workers."""
    with Station(HORSIES, servers) as station:
        total, _ = _fill(station, "noop", count)
        station.settle()
        with station.workers(processes, copies=copies) as workers:
            results.add(f"scale_{copies}x{processes}", HORSIES.name, station.drain(workers, total).rate)
