"""How long the fleet took to recover from each fault, and how it worked afterwards. Pure."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from tests.soak.ledger import Line
from tests.soak.nemesis import Struck
from tests.soak.plan import QUIET_S
from tests.soak.settings import BOUND_S, STALE_S
from tests.soak.workload import STEADY

OUTAGES: Final = {
    "server_crash",
    "freeze_server",
    "disk_full",
    "lock",
    "hold_connections",
    "terminate",
    "clock",
    "stall",
}
"""While one of these goes on no process can recover a task, and afterwards the reaper waits for one threshold."""
LATE_S: Final = 1.0
FEW: Final = 2
SHORTEST_S: Final = 3.0
"""The length of the shortest window in which a rate is measured."""


class Task(NamedTuple):
    sent: float
    ended: float | None


class Rate(NamedTuple):
    """Steady tasks in a window: how many were sent, and how many of these ended within a second after the window."""

    sent: int
    ended: int
    seconds: float

    @property
    def share(self) -> float:
        return self.ended / self.sent if self.sent else 1.0


def steady_tasks(sends: Sequence[Mapping[str, Any]], lines: Sequence[Line]) -> list[Task]:
    ends: dict[int, float] = {}
    for line in lines:
        if line.phase == "end":
            ends.setdefault(line.k, line.at)
    return sorted(
        Task(entry["at"], ends.get(entry["k"]))
        for entry in sends
        if entry["kind"] in STEADY and entry["phase"] == "ok"
    )  # fmt: skip


def rate_in(tasks: Sequence[Task], start: float, end: float) -> Rate:
    """Those of which the first second has passed by `end` count."""
    inside = [task for task in tasks if start <= task.sent < end - LATE_S]
    ended = sum(task.ended is not None and task.ended <= end for task in inside)
    return Rate(len(inside), ended, end - start - LATE_S)


def caught_up_at(tasks: Sequence[Task], after: float, before: float) -> float | None:
    """The first moment at which the tasks that were sent a second ago or earlier have ended, but for a few."""
    at = after
    while at < before:
        if sum(task.sent < at - LATE_S and (task.ended is None or task.ended > at) for task in tasks) <= FEW:
            return at
        at += 0.1
    return None


def rates_after(tasks: Sequence[Task], struck: Sequence[Struck]) -> dict[str, Rate]:
    """Of each kind that came alone: the window after it, up to the next fault. It begins when the fleet has caught up;
    where that takes too long, the end of the window says how far it got. A fault that itself took so long that no
    window remains is left out."""
    found: dict[str, Rate] = {}
    begins = sorted(fault.began for fault in struck)
    for fault in struck:
        if not fault.solo or fault.error:
            continue
        at = bisect_left(begins, fault.began + 0.01)
        limit = min(begins[at] if at < len(begins) else fault.ended + QUIET_S, fault.ended + 2 * QUIET_S)
        latest = limit - SHORTEST_S - LATE_S
        if latest >= fault.ended:
            found[fault.kind] = rate_in(tasks, min(caught_up_at(tasks, fault.ended, limit) or limit, latest), limit)
    return found


def flow_seconds(tasks: Sequence[Task], fault: Struck) -> float | None:
    """From the end of a fault to the end of the first task that was sent after it."""
    ends = [task.ended for task in tasks if task.sent >= fault.ended and task.ended is not None]
    return min(ends) - fault.ended if ends else None


def takeover_seconds(fault: Struck, crashes: Mapping[str, Sequence[float]]) -> float | None:
    """From a death, freeze or partition of a worker to the moment at which the last of its tasks was recovered.
    `crashes`: the times of recovery by worker."""
    if fault.kind not in ("kill_parent", "kill_worker", "freeze", "blackhole") or fault.worker_id is None:
        return None
    # one that was frozen lives on under its id: what crashes there later is another matter
    until = fault.ended + 1.0 if fault.kind in ("freeze", "blackhole") else float("inf")
    after = [at - fault.began for at in crashes.get(fault.worker_id, ()) if fault.began <= at <= until]
    return max(after) if after else None


def bound(fault: Struck, took: float, struck: Sequence[Struck]) -> float:
    """The bound of this recovery: outages meanwhile, each with the threshold that follows it, are not counted."""
    start, end = fault.began, fault.began + took
    extra = 0.0
    for other in struck:
        if other.kind in OUTAGES and other is not fault and other.began < end and other.ended > start - STALE_S:
            extra += other.ended - other.began + STALE_S + 1.0
    return BOUND_S + extra + (fault.ended - fault.began if fault.kind == "freeze" else 0.0)


def longest(struck: Sequence[Struck], tasks: Sequence[Task], crashes: Mapping[str, Sequence[float]]) -> dict[str, Any]:
    """By kind: the longest flow and takeover, and what was over its bound."""
    flows: dict[str, float] = defaultdict(float)
    takeovers: dict[str, float] = defaultdict(float)
    late: list[str] = []
    for fault in struck:
        if fault.error or fault.kind == "stall":
            continue
        flow, takeover = flow_seconds(tasks, fault), takeover_seconds(fault, crashes)
        if flow is not None:
            flows[fault.kind] = max(flows[fault.kind], flow)
            if flow > (allowed := bound(fault, fault.ended - fault.began + flow, struck)):
                late.append(
                    f"{fault.kind} of {fault.target}: work went on {flow:.1f} s after it, bound {allowed:.1f} s"
                )
        if takeover is not None:
            takeovers[fault.kind] = max(takeovers[fault.kind], takeover)
            if takeover > (allowed := bound(fault, takeover, struck)):
                late.append(f"{fault.kind} of {fault.target}: recovered after {takeover:.1f} s, bound {allowed:.1f} s")
    return {"flow": dict(flows), "takeover": dict(takeovers), "late": late}
