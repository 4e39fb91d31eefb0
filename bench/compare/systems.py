"""The systems that are compared: their versions, and how many tasks keep each busy for a few seconds."""

import argparse
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class System:
    name: str
    module: str  # in bench/peers; it says what the system can do
    requirements: tuple[str, ...]  # of its environment; none: the environment of this workspace
    broker: str  # postgresql or redis
    drain: int  # no-ops of one drain: two to four seconds of work on two cores; a rate does not depend on it
    share_of_trips: float = 1.0  # fewer round trips than for others, where one takes a tenth of a second
    has_slots: bool = True  # whether a process can be limited to one task at a time
    interpreter: str | None = None  # of an environment outside the cache


UVLOOP: Final = "uvloop==0.23.0"
HORSIES: Final = System("horsies", "on_horsies", (), "postgresql", 20_000)
PEERS: Final = (
    System("celery", "on_celery", ("celery[redis]==5.7.0",), "redis", 1_000),
    System("dramatiq", "on_dramatiq", ("dramatiq[redis]==2.2.1",), "redis", 4_000),
    System("taskiq", "on_taskiq", ("taskiq==0.13.0", "taskiq-redis==1.2.4", UVLOOP), "redis", 4_000),
    System("procrastinate", "on_procrastinate", ("procrastinate==3.10.0", "psycopg[binary]==3.3.8"), "postgresql", 1_500),
    System("pgqueuer", "on_pgqueuer", ("pgqueuer[asyncpg]==1.6.0", UVLOOP), "postgresql", 20_000, 0.3, has_slots=False),
)  # fmt: skip
BARE_SQL: Final = "bare SQL"
"""The worker's own statements without processes, in batches of 100: what the database allows."""


def find(names: str) -> tuple[System, ...]:
    """The peers in a comma-separated list of the command line; "none" for horsies alone."""
    known = {peer.name: peer for peer in PEERS}
    wanted = [] if names == "none" else [name.strip() for name in names.split(",")]
    if unknown := [name for name in wanted if name not in known]:
        raise argparse.ArgumentTypeError(f"there is no peer {unknown[0]!r}; choose among: {', '.join(known)}, or none")
    return tuple(known[name] for name in wanted)
