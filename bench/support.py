"""What the single benches share: horsies on a durable server of its own, and numbers that make a try shorter."""

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

from bench.compare.servers import running
from bench.compare.system_under_test import PEERS_FOLDER, SystemUnderTest
from bench.compare.systems import HORSIES

T = TypeVar("T")


def numbers(variable: str, default: str) -> list[int]:
    """Comma-separated numbers of an environment variable, for a try that is shorter than the default."""
    return [int(word) for word in os.environ.get(variable, default).split(",")]


def in_turns(variants: Mapping[str, Callable[[], T]], rounds: int) -> Iterator[dict[str, T]]:
    """What the variants return in each round; every round begins with another one."""
    names = [*variants]
    for number in range(rounds):
        order = names[number % len(names) :] + names[: number % len(names)]
        yield {name: variants[name]() for name in order}


@contextmanager
def horsies(**settings: str) -> Iterator[SystemUnderTest]:
    """A migrated database; `import on_horsies`, the app of `bench/peers`, works on it from here on."""
    with running(with_redis=False, **settings) as servers, SystemUnderTest(HORSIES, servers) as sut:
        os.environ["BENCH_DATABASE_URL"] = sut.url
        sys.path.insert(0, str(PEERS_FOLDER))
        yield sut
