"""What befalls the leader, and how long nothing was claimed afterwards."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from itertools import pairwise
from typing import NamedTuple

from tests.support.ha.cluster import Cluster
from tests.support.ha.load import Load
from tests.support.waiting import eventually

GOES_ON_S = 120.0
SETTLE_S = 2.0
NEED_CABLES = ("lagged crash", "cut")


class Fault(NamedTuple):
    kind: str
    began: float
    old: str
    new: str
    over: float
    """When the cluster was whole again."""


def switch_over(cluster: Cluster, load: Load) -> tuple[str, str]:
    old = cluster.switch_over()
    return old, cluster.wait_leader(besides=old).name


def crash(cluster: Cluster, load: Load) -> tuple[str, str]:
    node = cluster.wait_leader()
    node.crash()
    return node.name, cluster.wait_leader(besides=node.name).name


def lagged_crash(cluster: Cluster, load: Load) -> tuple[str, str]:
    """The leader dies when the standbys have not got its last commits: work goes on while they are cut off. Its own
    cable is taken down before it dies, or its kernel would send them what waits in its sockets."""
    node = cluster.wait_leader()
    with ExitStack() as leader:
        with ExitStack() as standbys:
            for other in cluster.nodes.values():
                if other is not node:
                    standbys.enter_context(cluster.cut_off(other))
            _wait_going_on(load)
            leader.enter_context(cluster.cut_off(node))
            node.crash()
        return node.name, cluster.wait_leader(besides=node.name).name


def freeze(cluster: Cluster, load: Load) -> tuple[str, str]:
    """The old leader wakes when another one leads and work goes on, and believes for a moment that it leads."""
    node = cluster.wait_leader()
    with cluster.frozen(node):
        new = cluster.wait_leader(besides=node.name).name
        _wait_going_on(load)
    return node.name, new


def cut(cluster: Cluster, load: Load) -> tuple[str, str]:
    node = cluster.wait_leader()
    with cluster.cut_off(node):
        new = cluster.wait_leader(besides=node.name).name
        _wait_going_on(load)
    return node.name, new


KINDS: dict[str, Callable[[Cluster, Load], tuple[str, str]]] = {
    "switch-over": switch_over, "crash": crash, "lagged crash": lagged_crash, "freeze": freeze, "cut": cut,
}  # fmt: skip


def inflict(kind: str, cluster: Cluster, load: Load) -> Fault:
    """One fault; returns when work goes on and the cluster is whole again."""
    began = time.time()
    old, new = KINDS[kind](cluster, load)
    _wait_going_on(load)
    cluster.wait_whole()
    over = time.time()
    eventually(lambda: load.goes_on_after(over) and time.time() > over + SETTLE_S, timeout=GOES_ON_S)
    return Fault(kind, began, old, new, over)


def _wait_going_on(load: Load) -> None:
    now = time.time()
    eventually(lambda: load.goes_on_after(now), timeout=GOES_ON_S, describe="a send and a start after the fault")


def pause_of(fault: Fault, until: float, starts: list[float]) -> float:
    """The longest time without the start of a task, from the fault to the next one."""
    before = [at for at in starts if at <= fault.began][-1:] or [fault.began]
    inside = [at for at in starts if fault.began < at <= until]
    moments = [max(before[0], fault.began), *inside]
    return max((later - earlier for earlier, later in pairwise(moments)), default=until - fault.began)
