"""The runs `quick` (a few minutes) and `full`. Every round visits all systems, each round in another order."""

import argparse
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import psycopg

from bench.compare import adverse, report, scenarios
from bench.compare.install import Unavailable
from bench.compare.results import Results, read
from bench.compare.scenarios import Context
from bench.compare.servers import running
from bench.compare.system_under_test import Failed
from bench.compare.systems import HORSIES, PEERS, System, find
from horsies.operate.commands._progress import Progress

RESULTS = Path(__file__).parents[1] / "results"
QUICK = {"core": scenarios.core, "async": scenarios.async_noops}
PER_SYSTEM: dict[str, Callable[[Context, System], None]] = QUICK | {"sleep50": scenarios.sleep50}
SCENARIOS = [*PER_SYSTEM, "tables", "pinned"]
Job = tuple[str, Callable[[], None]]


def main(mode: str, arguments: Sequence[str]) -> int:
    is_quick = mode == "quick"
    parser = argparse.ArgumentParser(prog=f"bench {mode}", description=__doc__)
    parser.add_argument("--rounds", type=int, default=2 if is_quick else 5)
    parser.add_argument("--scale", type=float, default=0.5 if is_quick else 1.0, help="factor on the tasks of a drain")
    parser.add_argument("--peers", type=find, default=PEERS, help="names, or none (default: all that are installed)")
    parser.add_argument("--scenarios", nargs="+", choices=SCENARIOS, default=[*QUICK] if is_quick else SCENARIOS)
    parser.add_argument("--rows", type=int, default=1_000_000, help="of the full tables")
    parser.add_argument("--pin-seconds", type=float, default=60.0, help="how long a transaction pins xmin")
    parser.add_argument("--output", type=Path, default=RESULTS / f"{mode}.json")
    parser.add_argument("--add-to", type=Path, help="the JSON of a run whose samples this one continues")
    options = parser.parse_args(arguments)
    results = read(options.add_to) if options.add_to else Results(mode)
    results.settings = {"rounds": options.rounds, "scale": options.scale, "rows": options.rows}
    repeats, idle_s = (100, 1.5) if is_quick else (300, 3.0)
    try:
        with running() as servers:
            run_rounds(Context(results, servers, options.scale, repeats, idle_s), options)
    except KeyboardInterrupt:
        results.failures.append("interrupted")
    finally:
        results.write(options.output)
    print(report.text(results), f"\n\nsamples in {options.output}")
    return 1 if results.failures else 0


def run_rounds(context: Context, options: argparse.Namespace) -> None:
    rounds = [[*of_round(context, options, number)] for number in range(options.rounds)]
    last: list[Job] = []
    if "tables" in options.scenarios:
        last.append(("tables", partial(adverse.full_tables, context, options.rows)))
    if "pinned" in options.scenarios:
        last.append(("pinned", partial(adverse.pinned, context, options.pin_seconds)))
    results = context.results
    with Progress("measured", "scenario", sum(map(len, rounds)) + len(last), has_batches=False) as progress:
        for jobs in rounds:
            results.load_average_before_each_round.append(round(os.getloadavg()[0], 2))
            for title, scenario in jobs:
                measure(results, progress, title, scenario)
            results.write(options.output)
        for title, scenario in last:
            measure(results, progress, title, scenario)


def of_round(context: Context, options: argparse.Namespace, number: int) -> Iterator[Job]:
    """What one round measures, beginning with another system each time."""
    systems = [HORSIES, *options.peers]
    first = (number + 1) % len(systems)
    if "core" in options.scenarios:
        yield "core bare SQL", partial(scenarios.bare, context)
    for name, scenario in PER_SYSTEM.items():
        if name in options.scenarios and (name in QUICK or number % 2 == 0):  # the long ones take half the rounds
            for system in systems[first:] + systems[:first]:
                yield f"{name} {system.name}", partial(scenario, context, system)


def measure(results: Results, progress: Progress, title: str, scenario: Callable[[], None]) -> None:
    """Run one scenario; a failure is reported and does not end the run."""
    began = time.monotonic()
    progress.show(f"{progress.line()}: {title}")
    try:
        scenario()
        told = f"{title} ({time.monotonic() - began:.0f} s)"
    except Unavailable as reason:
        results.left_out[title] = str(reason)
        told = None
    except (Failed, AssertionError, OSError, subprocess.TimeoutExpired, psycopg.Error) as error:
        results.failures.append(f"{title}: {error}")
        told = f"{title} failed: {error}"
    progress.clear()
    if told is not None:
        print(told, flush=True)
    progress.add(1)
