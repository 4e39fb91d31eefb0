"""Growth over a run of `bench day`, and the bars: pure functions over samples.

The third tenth of the run is compared with the last one, by medians: the first two are the warm-up.
"""

import statistics
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from bench.endurance.sampling import Sample

MEMORY_BAR, BLOAT_BAR = 0.01, 0.05
BLOAT_NEEDS_S = 300.0
"""Autovacuum looks once a minute; a shorter run says nothing about it."""
SMALL_TABLE = 2**20
"""A table below this size is not judged."""


class Growth(NamedTuple):
    title: str
    before: float
    after: float
    bar: float | None
    """None: shown, not judged."""

    @property
    def share(self) -> float:
        return self.after / self.before - 1 if self.before else float(self.after > 0)

    @property
    def holds(self) -> bool:
        return self.bar is None or self.share <= self.bar


def part(samples: Sequence[Sample], begin: float, end: float) -> list[Sample]:
    """The samples between two fractions of the time of the run."""
    first, length = samples[0].at, samples[-1].at - samples[0].at
    return [one for one in samples if begin * length <= one.at - first <= end * length]


def medians(
    title: str, samples: Sequence[Sample], figure: Callable[[Sample], float | None], bar: float | None
) -> Growth:
    """`figure` returns None for a sample without it."""
    before, after = (
        [value for one in tenth if (value := figure(one)) is not None]
        for tenth in (part(samples, 0.2, 0.3), part(samples, 0.9, 1.0))
    )
    if not before or not after:  # a process came or went: that is a growth without bound
        return Growth(title, len(before) and statistics.median(before), len(after) and statistics.median(after), bar)
    return Growth(title, statistics.median(before), statistics.median(after), bar)


def names(samples: Iterable[Sample]) -> list[str]:
    return sorted({name for one in samples for name in one.processes})


def memory(samples: Sequence[Sample]) -> list[Growth]:
    """Anonymous memory of each process in MB, and of the worker's processes together. These were forked from one process
    and share pages: a page that one of them writes is its own from then on, and the part of the others grows, while
    the sum grows by what is new. So the sum is judged, and its parts are shown."""

    def of(name: str) -> Callable[[Sample], float | None]:
        return lambda one: one.processes[name].anonymous_kb / 1024 if name in one.processes else None

    def of_worker(one: Sample) -> float:
        return sum(each.anonymous_kb for name, each in one.processes.items() if name.startswith("worker")) / 1024

    return [
        *(
            medians(name, samples, of(name), None if name.startswith("worker") else MEMORY_BAR)
            for name in names(samples)
        ),
        medians("worker, all processes", samples, of_worker, MEMORY_BAR),
    ]


def counts(samples: Sequence[Sample]) -> list[Growth]:
    """Descriptors and threads of each process, connections of the server: none may be added."""
    found: list[Growth] = []
    for name in names(samples):
        for field in ("descriptors", "threads"):
            found.append(
                medians(
                    f"{name}: {field}", samples,
                    lambda one, n=name, f=field: getattr(one.processes[n], f) if n in one.processes else None, 0.0,
                )
            )  # fmt: skip
    return [*found, medians("connections of the server", samples, lambda one: sum(one.connections.values()), 0.0)]


def bloat(samples: Sequence[Sample]) -> list[Growth]:
    """The largest size of each table with its indexes, in MB: middle third, and last third."""
    is_long = samples[-1].at - samples[0].at >= BLOAT_NEEDS_S

    def peak(tables: Iterable[str], begin: float, end: float) -> float:
        return max(
            sum(one.tables[table].heap + one.tables[table].indexes for table in tables)
            for one in part(samples, begin, end)
        )

    large = [name for name in samples[-1].tables if peak([name], 0.0, 1.0) >= SMALL_TABLE]
    found: list[Growth] = []
    for title, tables in (*((name, [name]) for name in large), ("all tables", [*samples[-1].tables])):
        before, after = peak(tables, 1 / 3, 2 / 3), peak(tables, 2 / 3, 1.0)
        found.append(Growth(title, before / 2**20, after / 2**20, BLOAT_BAR if is_long else None))
    return found
