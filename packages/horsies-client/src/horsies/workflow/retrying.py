"""What a retry touches: which runs of a tree, and which nodes of a run. Pure: rows in, choices out."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from horsies.status import NodeStatus, WorkflowStatus

Row = Mapping[str, Any]

STOPPED: Final = frozenset({WorkflowStatus.FAILED, WorkflowStatus.CANCELLED})


@dataclass(frozen=True, slots=True)
class Tree:
    """A run and everything inside it, parents before their children: the rows of `lock_workflow_tree`."""

    rows: Sequence[Row]

    def find(self, workflow_id: str) -> Row | None:
        return next((row for row in self.rows if row["id"] == workflow_id), None)

    def below(self, tops: Collection[Any]) -> list[Row]:
        """These runs, and all that are inside them."""
        inside = set(tops)
        found: list[Row] = []
        for row in self.rows:
            if row["id"] in inside or row["parent_workflow_id"] in inside:
                inside.add(row["id"])
                found.append(row)
        return found

    def around(self, workflow_id: str) -> list[Row]:
        """The runs that this one is inside of, the nearest first."""
        by_id = {row["id"]: row for row in self.rows}
        found: list[Row] = []
        at = by_id.get(workflow_id)
        while at is not None and (at := by_id.get(at["parent_workflow_id"])) is not None:
            found.append(at)
        return found

    def failed_runs(self, top: str) -> list[str]:
        """The runs whose failed nodes a retry of this run means: itself if it has stopped or is paused, the paused ones
        inside it, and what has stopped inside of those. A run that goes on keeps what failed in it until it ends."""
        chosen: set[str] = set()
        for row in self.below([top]):
            status = WorkflowStatus(row["status"])
            if is_paused(row) or (status in STOPPED and (row["id"] == top or row["parent_workflow_id"] in chosen)):
                chosen.add(row["id"])
        return [row["id"] for row in self.rows if row["id"] in chosen]

    def stopped_below(self, tops: Collection[Any]) -> list[str]:
        """Runs that have stopped, among these and inside of them."""
        return [row["id"] for row in self.below(tops) if WorkflowStatus(row["status"]) in STOPPED]

    def to_resume(self, top: str, runs: Collection[str]) -> list[str]:
        """Paused runs that must go on so that these can, when the caller acts on `top`: they, what was paused along
        with them, and the runs around them. Outside of `top` only those that are paused for nothing else."""
        within = {row["id"] for row in self.below([top])}
        paused = [row["id"] for row in self.rows if row["id"] in runs and is_paused(row)]
        wanted = set(runs) | {row["id"] for row in self.below(paused)}
        for workflow_id in runs:
            wanted |= {row["id"] for row in self.around(workflow_id) if row["id"] in within or row["paused_inside"]}
        return self._paused(wanted)

    def to_resume_all(self, top: str) -> list[str]:
        """A run and everything inside it that is paused, and the runs around it that are paused for nothing else."""
        inside = self._paused({row["id"] for row in self.below([top])})
        around = {row["id"] for row in self.around(top) if row["paused_inside"]}
        return self._paused({*inside, *around}) if inside else []

    def _paused(self, ids: Collection[str]) -> list[str]:
        return [row["id"] for row in self.rows if row["id"] in ids and row["status"] == WorkflowStatus.PAUSED]


def is_paused(row: Row) -> bool:
    """Paused for itself, not for a workflow inside it."""
    return row["status"] == WorkflowStatus.PAUSED and not row["paused_inside"]


def with_skipped(nodes: Sequence[Row], start: Row) -> list[int]:
    """A failed node and everything that was skipped behind it, by index."""
    behind: dict[int, list[Row]] = {}
    for row in nodes:
        if row["status"] == NodeStatus.SKIPPED:
            for index in row["dependencies"]:
                behind.setdefault(index, []).append(row)
    chosen = {start["task_index"]}
    last = [start["task_index"]]
    while last:
        last = [row["task_index"] for index in last for row in behind.pop(index, ()) if row["task_index"] not in chosen]
        last = list(dict.fromkeys(last))
        chosen.update(last)
    return sorted(chosen)
