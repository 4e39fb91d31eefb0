"""One run: cluster, tables, load, faults in turns, verdict."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import horsies_schema
from tests.support.ha.cluster import cluster
from tests.support.ha.faults import NEED_CABLES, Fault, inflict, pause_of
from tests.support.ha.load import load
from tests.support.ha.network import network
from tests.support.ha.verdict import Verdict, judge
from tests.support.postgres import Database


def plan(counts: dict[str, int], seed: int) -> list[str]:
    """All faults in an order of their own for each seed."""
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    random.Random(seed).shuffle(kinds)
    return kinds


def run(kinds: Sequence[str], mode: str, folder: Path, tell: Callable[[str], None]) -> Verdict:
    with network() as net:
        if any(place.cable is None for place in net.places.values()) and set(NEED_CABLES) & set(kinds):
            tell(f"no network namespaces here (they need root and iproute2): left out: {', '.join(NEED_CABLES)}")
            kinds = [kind for kind in kinds if kind not in NEED_CABLES]
        with cluster(net, folder, mode) as nodes:
            nodes.create_database("queue")
            db = Database("queue", nodes.url("queue"))
            horsies_schema.upgrade(db.url)
            tell(f"the cluster is up in {mode} mode: {db.url}")
            faults: list[Fault] = []
            with load(db.url, folder) as work:
                try:
                    for at, kind in enumerate(kinds, 1):
                        fault = inflict(kind, nodes, work)
                        faults.append(fault)
                        pause = pause_of(fault, fault.over, work.starts())
                        tell(
                            f"{at:3} of {len(kinds)} {kind:12} {fault.old} -> {fault.new}: "
                            f"{pause:.1f} s without a start, whole again after {fault.over - fault.began:.1f} s"
                        )
                    return judge(db, work, faults, mode)
                except BaseException:
                    tell(nodes.tails())
                    raise
