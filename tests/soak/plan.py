"""The faults of a run, drawn from a seed before anything starts: plain data, the same for the same seed and machine.

A run has a quiet beginning, for the rate to compare with; a mixed part, in which faults of all kinds fall every few
seconds and overlap; in long runs a solo part, in which each kind comes alone and is followed by a quiet window; and a
compound fault at the end.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.soak.settings import FREEZE_S, STALE_S, WORKERS

WEIGHTS: Final[Mapping[str, int]] = {
    "kill_child": 16, "freeze_child": 4, "kill_parent": 12, "kill_worker": 6, "freeze": 6, "restart": 6,
    "terminate": 14, "server_crash": 6, "cut_commit": 8, "delay": 4, "freeze_listen": 6, "blackhole": 5,
    "hold_connections": 4, "lock": 4, "disk_full": 3, "clock": 3, "deploy": 3, "pause_queue": 4, "pause_workflows": 4,
    "cancel_storm": 4, "kill_scheduler": 4, "freeze_server": 4, "drain_worker": 4,
}  # fmt: skip
NEEDS: Final[Mapping[str, str]] = {
    "blackhole": "namespace", "disk_full": "small_disk", "clock": "faketime", "deploy": "older_release",
}  # fmt: skip
"""Faults that not every machine can make, and what they need."""

_SECONDS: Final[Mapping[str, tuple[float, float]]] = {
    "freeze": (FREEZE_S, FREEZE_S), "blackhole": (FREEZE_S, FREEZE_S), "server_crash": (0.0, 4.0), "delay": (3.0, 3.0),
    "freeze_listen": (5.0, 5.0), "hold_connections": (3.0, 3.0), "lock": (2.0, 1.5 * STALE_S), "disk_full": (5.0, 5.0),
    "clock": (4.0, 4.0), "pause_queue": (3.0, 3.0), "pause_workflows": (2.0, 2.0), "terminate": (1.0, 1.0),
    "cut_commit": (2.0, 2.0), "drain_worker": (2.0, 2.0), "freeze_child": (FREEZE_S, FREEZE_S),
    "freeze_server": (1.5 * STALE_S, 1.5 * STALE_S),
}  # fmt: skip
_OF_WORKER: Final = {
    "kill_child", "kill_parent", "kill_worker", "freeze", "restart", "cut_commit", "delay", "freeze_listen", "deploy",
    "freeze_child", "drain_worker",
}  # fmt: skip
QUIET_S: Final = 6.0
"""The window after a solo fault in which the rate is measured; it begins when the fleet has caught up."""
SETTLE_S: Final = 2.0
_AFTERWARDS: Final[Mapping[str, float]] = {
    "restart": 7.0, "deploy": 7.0, "disk_full": 6.0, "kill_parent": 3.0, "kill_worker": 3.0, "server_crash": 1.0,
}  # fmt: skip
"""How long it takes until what a fault has stopped is up again, about."""


@dataclass(frozen=True)
class Fault:
    at: float
    """Seconds since the producers began."""
    kind: str
    seconds: float
    target: int
    """The worker, for faults of one; the fault is moved to another one that is not struck already."""
    solo: bool = False


@dataclass(frozen=True)
class Plan:
    seed: int
    minutes: float
    produce_s: float
    baseline_s: float
    drain_s: float
    skipped: Mapping[str, str]
    """Kinds that this machine cannot make, and what is missing."""
    faults: Sequence[Fault]

    def as_data(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        head = [
            f"seed {self.seed}, {self.minutes:g} minutes: {self.produce_s:.0f} s of sends, the first"
            f" {self.baseline_s:.0f} s without faults, {len(self.faults)} faults, then at most {self.drain_s:.0f} s"
        ]
        head += [f"  skipped: {kind}, because this machine has no {what}" for kind, what in self.skipped.items()]
        return head + [
            f"  {fault.at:6.1f} s  {fault.kind:16} {f'{fault.seconds:.1f} s' if fault.seconds else '':>7}"
            f"{f'  worker {fault.target}' if fault.kind in _OF_WORKER else ''}{'  (solo)' if fault.solo else ''}"
            for fault in self.faults
        ]


def make_plan(seed: int, minutes: float, abilities: Sequence[str]) -> Plan:
    """`abilities`: what the machine has of the values of `NEEDS`."""
    chance = random.Random(seed)
    skipped = {kind: what for kind, what in NEEDS.items() if what not in abilities}
    kinds = [kind for kind in WEIGHTS if kind not in skipped]
    produce_s = 54 * minutes
    baseline_s = min(60.0, 0.15 * produce_s)
    solo_s = _solo_seconds(kinds) if minutes >= 8 else 0.0
    compound_at = produce_s - 12.0
    faults = _mixed(chance, kinds, baseline_s, compound_at - 20.0 - solo_s)
    if solo_s:
        faults += _solo(chance, kinds, compound_at - solo_s)
    faults += [
        Fault(round(compound_at, 1), "freeze", FREEZE_S, 0),
        Fault(round(compound_at + 0.5, 1), "restart", 0.0, 1),
        Fault(round(compound_at + 1.5, 1), "server_crash", 2.0, 0),
    ]
    return Plan(seed, minutes, produce_s, baseline_s, max(60.0, 9.0 * minutes), skipped, faults)


def _mixed(chance: random.Random, kinds: Sequence[str], start: float, end: float) -> list[Fault]:
    """Every kind once before any comes a second time; then by weight."""
    first = sorted(kinds, key=lambda kind: chance.random() / WEIGHTS[kind])
    faults: list[Fault] = []
    at = start
    while at < end:
        kind = first.pop(0) if first else chance.choices(kinds, [WEIGHTS[kind] for kind in kinds])[0]
        faults.append(_fault(chance, at, kind))
        at += chance.uniform(3.0, 5.0)
    return faults


def _solo(chance: random.Random, kinds: Sequence[str], start: float) -> list[Fault]:
    faults: list[Fault] = []
    for kind in chance.sample(kinds, len(kinds)):
        fault = _fault(chance, start, kind, solo=True)
        faults.append(fault)
        start += _solo_seconds([kind])
    return faults


def _solo_seconds(kinds: Sequence[str]) -> float:
    return sum(max(_SECONDS.get(kind, (0.0, 0.0))) + _AFTERWARDS.get(kind, 0.0) + SETTLE_S + QUIET_S for kind in kinds)


def _fault(chance: random.Random, at: float, kind: str, *, solo: bool = False) -> Fault:
    seconds = round(chance.uniform(*_SECONDS.get(kind, (0.0, 0.0))), 1)
    return Fault(round(at, 1), kind, seconds, chance.randrange(WORKERS), solo)
