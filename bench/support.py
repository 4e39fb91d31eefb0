"""What the single benches share: horsies on a durable server of its own, variants in turns, and numbers that make a try shorter."""

import os
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from bench.compare.servers import running
from bench.compare.system_under_test import PEERS_FOLDER, SystemUnderTest
from bench.compare.systems import HORSIES
from bench.compare.targets import figure
from horsies.operate.commands._progress import Progress


def numbers(variable: str, default: str) -> list[int]:
    """Comma-separated numbers of an environment variable, for a try that is shorter than the default."""
    return [int(word) for word in os.environ.get(variable, default).split(",")]


def row(title: str, *cells: str | float) -> None:
    """A line of a table; numbers with three digits."""
    words = [cell if isinstance(cell, str) else figure(cell) for cell in cells]
    print(f"{title:33}" + "".join(f"{word:>15}" for word in words), flush=True)


def tell(progress: Progress, text: str) -> None:
    """Print a line that stays, in place of the progress."""
    progress.clear()
    print(text, flush=True)


def in_turns(variants: Mapping[str, Callable[[], Mapping[str, float]]], rounds: int, *, warm_up: int = 0) -> None:
    """Call every variant in each round, beginning with another one each time. Print what they return by name: medians,
    spread, the ratio of medians to the first variant, and the spread of the ratios of single rounds."""
    names = [*variants]
    found: list[dict[str, Mapping[str, float]]] = []
    with Progress("measured", "run", (warm_up + rounds) * len(names), has_batches=False) as progress:
        for number in range(warm_up + rounds):
            found.append({})
            for name in names[number % len(names) :] + names[: number % len(names)]:
                progress.show(f"{progress.line()}: {name}")
                found[-1][name] = variants[name]()
                progress.add(1)
    found = found[warm_up:]
    for figures in found[0][names[0]]:
        row(figures, "median", "smallest", "largest", f"to {names[0]}", "smallest", "largest")
        first = [values[names[0]][figures] for values in found]
        for name in names:
            values = [values[name][figures] for values in found]
            ratios = [one / other for one, other in zip(values, first, strict=True)]
            middle = statistics.median(values)
            row(
                f"  {name}",
                middle,
                min(values),
                max(values),
                middle / statistics.median(first),
                min(ratios),
                max(ratios),
            )


@contextmanager
def horsies(**settings: str) -> Iterator[SystemUnderTest]:
    """A migrated database; `import on_horsies`, the app of `bench/peers`, works on it from here on."""
    with running(with_redis=False, **settings) as servers, SystemUnderTest(HORSIES, servers) as sut:
        os.environ["BENCH_DATABASE_URL"] = sut.url
        sys.path.insert(0, str(PEERS_FOLDER))
        yield sut
