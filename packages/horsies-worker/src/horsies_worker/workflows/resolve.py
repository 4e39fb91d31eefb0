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


@dataclass(frozen=True, slots=True)
class Join:
    """A node's join and the state of its dependencies. `left` have not ended, `ok` have completed. `context_open`: a
    source of its `WorkflowContext` has not ended."""

    join_type: str
    min_success: int | None
    allow_failed_deps: bool
    total: int
    left: int
    ok: int
    context_open: bool = False

    @property
    def failed(self) -> int:
        """Dependencies that ended without completing."""
        return self.total - self.left - self.ok


def readiness(join: Join) -> Readiness:
    """Decide as early as possible: the first failure skips an `all` node, and surplus successes are ignored.

    The join decides whether a node runs. The sources of its context only delay it until all of them have ended.
    """
    if join.allow_failed_deps:
        return Readiness.WAIT if join.left else Readiness.RUN
    needed = {"any": min(1, join.total), "quorum": join.min_success or 1}.get(join.join_type, join.total)
    if join.ok >= needed:
        return Readiness.WAIT if join.context_open else Readiness.RUN
    if join.ok + join.left < needed:
        return Readiness.SKIP
    return Readiness.WAIT


def join_of(row: Mapping[str, Any]) -> Join:
    return Join(
        row["join_type"], row["min_success"], row["allow_failed_deps"], row["total"], row["deps_left"], row["deps_ok"],
        bool(row.get("context_open")),
    )  # fmt: skip


def outcome(cases: Sequence[Sequence[int]] | None, statuses: Mapping[int, str]) -> WorkflowStatus:
    """The status of a run whose nodes have all ended. `statuses`: of nodes that failed or that a case names."""
    if cases is not None:
        met = any(all(statuses.get(index) == NodeStatus.COMPLETED for index in case) for case in cases)
        return WorkflowStatus.COMPLETED if met else WorkflowStatus.FAILED
    failed = any(status == NodeStatus.FAILED for status in statuses.values())
    return WorkflowStatus.FAILED if failed else WorkflowStatus.COMPLETED
