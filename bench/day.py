"""A day in minutes: memory, descriptors, connections and bloat over a million tasks; it has options.

A durable PostgreSQL with its default autovacuum, a worker with two processes, a scheduler, a client that sends in bulk and singly
and waits for results, and a dashboard that shows one screen after the other, first 48 quick rounds as a warm-up. Records are
kept for an hour that is --hour seconds long, and pruned as often: pruning goes on all the time. The third tenth of the run is
compared with the last one, by medians; the first two are the warm-up. By default a million tasks lie between the tenths that
are compared. The worker recycles no child unless --recycle says so, as is the default of `horsies worker`: a child that is
replaced hides its growth. Exit code 1: a bar was missed.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

from bench import support
from bench.compare.observe import Postgres
from bench.compare.servers import running
from bench.endurance import judging, sampling
from bench.endurance.judging import Growth
from bench.endurance.sampling import Sample

ROOT = Path(__file__).parents[1]
APP = "bench.endurance.app:app"


@contextlib.contextmanager
def started(
    name: str, words: Sequence[str], environment: dict[str, str], folder: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    with (folder / f"{name}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", *words], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(40)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def watch(tasks: int, hour_s: float, every_s: float, recycle: int | None) -> tuple[list[Sample], float]:
    """All samples, and the tasks that ended per second."""
    with running(with_redis=False) as servers:
        url = servers.create_database("day")
        environment = {**os.environ, "BENCH_DATABASE_URL": url, "BENCH_HOUR_S": str(hour_s), "PYTHONUNBUFFERED": "1"}
        subprocess.run(["horsies-migrate", "up", "--url", url], check=True, stdout=subprocess.DEVNULL)
        recycling = [f"--max-tasks-per-child={recycle}"] if recycle else []
        commands = {
            "worker": ["bench.endurance.worker", APP, "--processes=2", "--loglevel=WARNING", *recycling],
            "scheduler": ["horsies.cli", "scheduler", APP],
            "dashboard": ["bench.endurance.dashboard"],
            "client": ["bench.endurance.client", str(tasks)],
        }
        postgres = Postgres(url)
        samples: list[Sample] = []
        with contextlib.ExitStack() as stack:
            processes = {
                name: stack.enter_context(started(name, words, environment, servers.directory))
                for name, words in commands.items()
            }
            roots = {name: process.pid for name, process in processes.items()}
            began = told = time.monotonic()
            while processes["client"].poll() is None:
                time.sleep(every_s)
                for name, process in processes.items():
                    if name != "client" and process.poll() is not None:
                        raise RuntimeError(f"{name} ended: {_end_of(servers.directory / f'{name}.log')}")
                if processes["client"].poll() is None:
                    samples.append(sampling.take(roots, postgres))
                if time.monotonic() > told + 30:
                    told = time.monotonic()
                    print(
                        _progress(samples[-1], _end_of(servers.directory / "client.log", 20), told - began), flush=True
                    )
            took = time.monotonic() - began
            if processes["client"].returncode:
                raise RuntimeError(f"the client ended: {_end_of(servers.directory / 'client.log')}")
        postgres.close()
        return samples, tasks / took


def _end_of(log: Path, most: int = 2_000) -> str:
    return log.read_text(errors="replace")[-most:]


def _progress(sample: Sample, sent: str, seconds: float) -> str:
    memory = ", ".join(f"{name} {one.pss_kb / 1024:.1f}" for name, one in sample.processes.items())
    size = sum(one.heap + one.indexes for one in sample.tables.values()) / 2**20
    dead = sum(one.dead for one in sample.tables.values())
    return (
        f"  {seconds:4.0f} s, {int(sent.split()[-1]) if sent.split() else 0:,} tasks; MB: {memory}; tables {size:.0f} MB, "
        f"{dead:,} dead rows; {sum(sample.connections.values())} connections"
    )


def show(title: str, found: Sequence[Growth]) -> None:
    support.row(title, "before", "last", "growth", "bar")
    for one in found:
        bar = "–" if one.bar is None else f"{one.bar:.0%}" if one.holds else f"{one.bar:.0%} missed"
        support.row(f"  {one.title}", f"{one.before:,.2f}", f"{one.after:,.2f}", f"{one.share:+.2%}", bar)
    print(flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="just bench day", description=__doc__)
    parser.add_argument("--tasks", type=int, default=1_500_000, help="default: %(default)s")
    parser.add_argument(
        "--hour", type=float, default=15.0, help="seconds of an hour of retention (default: %(default)s)"
    )
    parser.add_argument("--every", type=float, default=2.0, help="seconds between samples (default: %(default)s)")
    parser.add_argument("--recycle", type=int, help="replace a child of the worker after so many tasks")
    parser.add_argument("--json", type=Path, help="write every sample to this file")
    given = parser.parse_args(arguments or [])
    samples, rate = watch(given.tasks, given.hour, given.every, given.recycle)
    if given.json:
        given.json.write_text(json.dumps([asdict(one) for one in samples]))
    last = samples[-1]
    print(f"\n{given.tasks:,} tasks, {rate:,.0f}/s, {last.at - samples[0].at:.0f} s, {len(samples)} samples\n")
    memory, counts, bloat = judging.memory(samples), judging.counts(samples), judging.bloat(samples)
    show("anonymous memory, MB", memory)
    show("counts", counts)
    show("largest size, MB", bloat)
    if bloat[0].bar is None:
        print(f"bloat is not judged: the run took less than {judging.BLOAT_NEEDS_S:.0f} s\n")
    support.row("at the end", "live rows", "dead rows", "autovacuums")
    for name, table in last.tables.items():
        if table.vacuums or table.heap > judging.SMALL_TABLE:
            support.row(f"  {name}", f"{table.live:,}", f"{table.dead:,}", f"{table.vacuums}")
    missed = [one.title for one in (*memory, *counts, *bloat) if not one.holds]
    print(f"\n{'missed: ' + ', '.join(missed) if missed else 'all bars hold'}")
    return 1 if missed else 0
