"""Decides when a node runs, when it is skipped, and how a run ends. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from horsies.status import NodeStatus, WorkflowStatus


class Readiness(Enum):
    WAIT = auto()
    RUN = auto()
    SKIP = auto()
    """A node that it needs failed or was skipped."""
    NOT_TAKEN = auto()
    """It is in a branch that was not taken."""
    FAIL = auto()
    """Its condition is no bool."""


@dataclass(frozen=True, slots=True)
class Join:
    """A node's join and the state of its dependencies. `left` have not ended, `ok` have completed, `void` were not
    taken: their edges leave the join. `context_open`: a source of its `WorkflowContext` has not ended. `when`: what its
    condition says (`open`, `taken`, `not taken`, `upstream`, `no bool`); None without one."""

    join_type: str
    min_success: int | None
    allow_failed_deps: bool
    total: int
    left: int
    ok: int
    context_open: bool = False
    void: int = 0
    when: str | None = None

    @property
    def failed(self) -> int:
        """Dependencies that ended without completing, and were not in a branch that was not taken."""
        return self.total - self.left - self.ok - self.void


def readiness(join: Join) -> Readiness:
    """Decide as early as possible, but never so that the order of the ends matters: the first failure skips an `all`
    node, and surplus successes are ignored.

    A condition decides first. Then the join decides whether a node runs. The sources of its context only delay it until
    all of them have ended.
    """
    match join.when:
        case "open":
            return Readiness.WAIT
        case "not taken":
            return Readiness.NOT_TAKEN
        case "upstream":
            return Readiness.SKIP
        case "no bool":
            return Readiness.FAIL
        case _:
            pass
    if join.allow_failed_deps:
        if join.left:
            return Readiness.WAIT
        return Readiness.NOT_TAKEN if join.void and join.void == join.total else Readiness.RUN
    met = _join_met(join)
    return Readiness.WAIT if met is Readiness.RUN and join.context_open else met


def _join_met(join: Join) -> Readiness:
    if join.join_type == "all":
        if join.failed:
            return Readiness.SKIP
        if join.left:
            return Readiness.WAIT
        return Readiness.NOT_TAKEN if join.void and join.void == join.total else Readiness.RUN
    needed = min(1, join.total) if join.join_type == "any" else join.min_success or 1
    if join.ok >= needed:
        return Readiness.RUN
    if join.ok + join.left >= needed:
        return Readiness.WAIT
    # it cannot be met any more; whether failures or branches are the reason may depend on what has not ended
    if join.total - join.void < needed:
        return Readiness.NOT_TAKEN
    return Readiness.SKIP if join.total - join.void - join.left >= needed else Readiness.WAIT


def join_of(row: Mapping[str, Any]) -> Join:
    return Join(
        row["join_type"], row["min_success"], row["allow_failed_deps"], row["total"], row["deps_left"], row["deps_ok"],
        bool(row.get("context_open")), row["deps_void"], row["when_state"],
    )  # fmt: skip


def outcome(cases: Sequence[Sequence[int]] | None, statuses: Mapping[int, str]) -> WorkflowStatus:
    """The status of a run whose nodes have all ended. `statuses`: of nodes that failed or that a case names."""
    if cases is not None:
        met = any(all(statuses.get(index) == NodeStatus.COMPLETED for index in case) for case in cases)
        return WorkflowStatus.COMPLETED if met else WorkflowStatus.FAILED
    failed = any(status == NodeStatus.FAILED for status in statuses.values())
    return WorkflowStatus.FAILED if failed else WorkflowStatus.COMPLETED
