"""Who is measured, in which versions, and how many tasks keep each busy for a few seconds."""

import argparse
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class System:
    """`requirements` is what its environment holds; none: the workspace's own environment."""

    name: str
    module: str
    requirements: tuple[str, ...]
    broker: str
    """postgresql or redis"""

    drain: int
    """No-op tasks of one drain: two to four seconds of work on two cores. A rate does not depend on it."""

    note: str
    """What its figures have to be read with."""

    python: str | None = None
    """A version that it insists on; None: the one that runs the bench."""

    has_async: bool = False
    has_delay: bool = True
    """Whether a task can be sent for later, without a process of its own for that, and in less than seconds."""

    share_of_trips: float = 1.0
    """Of the round trips of others, where one takes a tenth of a second."""

    has_slots: bool = True
    """Whether a process can be held to one task at a time."""

    is_reference: bool = False
    """Shown, but no peer in the must-show table."""


UVLOOP: Final = "uvloop==0.23.0"

HORSIES: Final = System(
    "horsies",
    "on_horsies",
    (),
    "postgresql",
    20_000,
    "results, attempts and rows kept; child processes",
    has_async=True,
)
PEERS: Final = (
    System(
        "celery", "on_celery", ("celery[redis]==5.7.0",), "redis", 1_000,
        "prefork, prefetch 64, early acks, no gossip, mingle or heartbeat; no bulk enqueue",
    ),
    System(
        "dramatiq", "on_dramatiq", ("dramatiq[redis]==2.2.1",), "redis", 4_000,
        "8 threads per process (default); no bulk enqueue",
    ),
    System(
        "taskiq", "on_taskiq", ("taskiq==0.13.0", "taskiq-redis==1.2.4", UVLOOP), "redis", 4_000,
        "Redis streams with acks; results polled every 2 ms; no bulk enqueue", has_async=True, has_delay=False,
    ),
    System(
        "procrastinate", "on_procrastinate", ("procrastinate==3.10.0", "psycopg[binary]==3.3.8"), "postgresql", 1_500,
        "no results: status polled every 2 ms; concurrency 10 per process", has_async=True,
    ),
    System(
        "pgqueuer", "on_pgqueuer", ("pgqueuer[asyncpg]==1.6.0", UVLOOP), "postgresql", 20_000,
        "no results, rows deleted, tasks share the worker's event loop; batches of 100", has_async=True, has_slots=False,
        share_of_trips=0.3,
    ),
    System(
        "original", "on_original", ("horsies[pg-binary]==0.5.4",), "postgresql", 300,
        "the original horsies 0.5.4, children not recycled", python="3.13", has_delay=False, is_reference=True,
    ),
)  # fmt: skip
BARE: Final = "bare SQL"
"""Our own statements without processes, batches of 100: what the database allows."""


def find(names: str) -> tuple[System, ...]:
    """The peers in a comma-separated list of a command line."""
    known = {peer.name: peer for peer in PEERS}
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    for name in wanted:
        if name not in known:
            raise argparse.ArgumentTypeError(f"there is no peer {name!r}; choose among: {', '.join(known)}")
    return tuple(known[name] for name in wanted)
