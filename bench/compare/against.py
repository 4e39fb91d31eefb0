"""Two commits of horsies in turns: this working tree beside REV, in a temporary worktree with an environment of its own.

Both run the scenario `core` through the same driver. Every round gives one ratio new/old per metric; printed are their median,
smallest and largest. On a busy machine the ratios of CPU per task are steadier than those of rates.
"""

import argparse
import contextlib
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.compare.install import Unavailable, run
from bench.compare.results import METRICS, Results
from bench.compare.run import measure
from bench.compare.scenarios import Context, core
from bench.compare.servers import running
from bench.compare.systems import HORSIES, UVLOOP, System
from bench.compare.targets import figure
from horsies.operate.commands._progress import Progress

OLD = "old"
SHOWN = (
    "drain_noop", "trip_p50", "trip_p99", "enqueue_one", "enqueue_many", "cpu_worker", "cpu_server", "cost_statements",
    "cost_wal",
)  # fmt: skip


@contextlib.contextmanager
def installed(revision: str) -> Iterator[System]:
    """horsies as of `revision`, as a peer."""
    with tempfile.TemporaryDirectory(prefix="horsies-bench-") as folder:
        tree = Path(folder) / "horsies"
        python = str(tree / ".venv" / "bin" / "python")
        run("git", "worktree", "add", "--detach", str(tree), revision)
        try:
            run("uv", "sync", "--quiet", "--python", sys.executable, "--no-dev", "--all-packages", cwd=tree)
            run("uv", "pip", "install", "--quiet", "--python", python, UVLOOP)
            yield System(OLD, HORSIES.module, (), HORSIES.broker, HORSIES.drain, interpreter=python)
        finally:
            run("git", "worktree", "remove", "--force", str(tree))


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="bench against", description=__doc__)
    parser.add_argument("revision", help="a commit, tag or branch; HEAD shows what uncommitted changes do")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--scale", type=float, default=0.5, help="factor on the tasks of a drain")
    parser.add_argument("--repeats", type=int, default=300, help="single sends, and round trips, in a round")
    options = parser.parse_args(arguments)
    results = Results("against")
    try:
        with installed(options.revision) as old, running(with_redis=False) as servers:
            context = Context(results, servers, options.scale, options.repeats, idle_s=0.5)
            with Progress("measured", "run", 2 * options.rounds, has_batches=False) as progress:
                for number in range(options.rounds):
                    for system in (HORSIES, old) if number % 2 else (old, HORSIES):
                        title = f"round {number + 1} {system.name}"
                        measure(results, progress, title, partial(core, context, system))
    except Unavailable as reason:
        parser.error(f"cannot install {options.revision}: {reason}")
    print(f"\n{'new/old, median':>67} {'spread':>14}   {'new':>8} {'old':>8}")
    for key in SHOWN:
        values = [results.samples.get(key, {}).get(name, []) for name in (HORSIES.name, OLD)]
        if ratios := [new / old for new, old in zip(*values, strict=False)]:
            spread = f"{min(ratios):.2f} to {max(ratios):.2f}"
            medians = " ".join(f"{figure(statistics.median(one)):>8}" for one in values)
            better = "more is better" if METRICS[key].more_is_better else "less is better"
            print(f"{METRICS[key]!s:52} {statistics.median(ratios):14.2f} {spread:>14}   {medians}   {better}")
    return 1 if results.failures else 0
