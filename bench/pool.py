"""No-op jobs through two children, without a database: jobs/s and the parent's CPU per job.

    uv run python -m bench.pool [--jobs 60000] [--processes 2] [--no-run-ahead]

Refills like the claimer will: a batch of what fits, each time the pool says that there is room.
"""

import argparse
import asyncio
import resource
import time
from collections.abc import Sequence

from horsies_worker.jobs import ChildSpec, Job, Outcome
from horsies_worker.pool import ChildPool


def cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_mb() -> int:
    with open("/proc/self/statm") as statm:  # noqa: PTH123
        return int(statm.read().split()[1]) * 4 // 1024


async def run(jobs: int, processes: int, task: str, *, run_ahead: bool) -> None:
    done = sent = unstarted = 0
    finished = asyncio.Event()
    pool: ChildPool

    def on_outcome(_job: Job, _outcome: Outcome) -> None:
        nonlocal done
        done += 1
        if done == jobs:
            finished.set()

    def on_unstarted(returned: Sequence[Job]) -> None:
        nonlocal sent, unstarted
        unstarted += len(returned)
        sent -= len(returned)

    def on_room() -> None:
        nonlocal sent
        room = pool.room()
        # Only once a child runs low, as a claim in flight would.
        count = min(room.sync + (room.ahead if pool.is_short(task) else 0), jobs - sent)
        if count >= 1 and (room.sync or count >= 32):
            batch = [Job(f"0190-{sent + n:032d}", 1, 1, task, None, None) for n in range(count)]
            sent += count
            pool.submit(batch)

    spec = ChildSpec("tests.support.pool_apps:app", processes=processes, run_ahead=run_ahead)
    pool = ChildPool(
        spec,
        on_outcome=on_outcome,
        on_unstarted=on_unstarted,
        on_room=on_room,
        on_progress=lambda _job, _text: None,
        on_fatal=print,
    )
    before = time.perf_counter()
    await pool.start()
    print(f"first child ready after {(time.perf_counter() - before) * 1000:.0f} ms")
    before, cpu = time.perf_counter(), cpu_s()
    memory = resident_mb()
    on_room()
    await finished.wait()
    seconds, used = time.perf_counter() - before, cpu_s() - cpu
    print(
        f"{jobs} x {task}, {processes} children: {jobs / seconds:,.0f} jobs/s, "
        f"parent CPU {used / jobs * 1e6:.1f} µs/job, {unstarted} given back, "
        f"parent memory {memory} -> {resident_mb()} MB"
    )
    await pool.stop(5)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=60_000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--task", default="noop")
    parser.add_argument("--no-run-ahead", action="store_true")
    options = parser.parse_args()
    asyncio.run(run(options.jobs, options.processes, options.task, run_ahead=not options.no_run_ahead))
