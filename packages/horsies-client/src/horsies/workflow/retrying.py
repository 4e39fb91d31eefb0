"""What a retry touches: which runs of a tree, and which nodes of a run. Pure: rows in, choices out."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, Final

from horsies._text import short
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.info import WorkflowNodeInfo

Row = Mapping[str, Any]

STOPPED: Final = frozenset({WorkflowStatus.FAILED, WorkflowStatus.CANCELLED})
PAUSED_ALONG: Final = (
    '{"err":{"error_code":"WORKFLOW_PAUSED","message":"the workflow around it is paused","data":null}}'
)
"""The error of a run that is paused only because the run around it is; `lock_workflow_tree` knows it by that."""


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
        """The runs that this one is inside of, the nearest first. Rows that name each other as parents end it."""
        by_id = {row["id"]: row for row in self.rows}
        seen = {workflow_id}
        found: list[Row] = []
        at = by_id.get(workflow_id)
        while at is not None and (at := by_id.get(at["parent_workflow_id"])) is not None and at["id"] not in seen:
            seen.add(at["id"])
            found.append(at)
        return found

    def failed_runs(self, top: str) -> list[str]:
        """The runs whose failed nodes a retry of this run means: itself if it has stopped or is paused, for any
        reason, the paused ones inside it, and what has stopped inside of those. A run that goes on keeps what failed in
        it until it ends, also one that undoes what it did."""
        chosen: set[str] = set()
        for row in self.below([top]):
            status = WorkflowStatus(row["status"])
            if (status is WorkflowStatus.PAUSED and row["ends_as"] is None) or (
                status in STOPPED and (row["id"] == top or row["parent_workflow_id"] in chosen)
            ):
                chosen.add(row["id"])
        return [row["id"] for row in self.rows if row["id"] in chosen]

    def stopped_below(self, tops: Collection[Any]) -> list[str]:
        """Runs that have stopped, among these and inside of them."""
        return [row["id"] for row in self.below(tops) if WorkflowStatus(row["status"]) in STOPPED]

    def to_pause(self, top: str, error: str | None) -> list[tuple[list[str], str | None]]:
        """The runs that a pause of this run stops, with the errors that they get: itself, for `error`, and what runs
        inside it, along with it. A run inside that is paused for itself stays as it is."""
        live = [row for row in self.below([top]) if row["status"] == WorkflowStatus.RUNNING or row["paused_inside"]]
        live += [row for row in self.rows if row["id"] == top and (row["paused_along"] or _is_to_start(row))]
        chosen = [row["id"] for row in live if row["id"] == top]
        inside = [row["id"] for row in live if row["id"] != top]
        return [(ids, why) for ids, why in ((chosen, error), (inside, PAUSED_ALONG)) if ids]

    def to_resume(self, top: str, runs: Collection[str]) -> list[str]:
        """Paused runs that must go on so that these can, when the caller acts on `top`: they, what was paused along
        with them, and the runs around them: `top`, and those that are paused for nothing else."""
        paused = {row["id"] for row in self.rows if row["id"] in runs and is_paused(row)}
        within = {row["id"] for row in self.below([top])}
        for workflow_id in runs:
            for row in self.around(workflow_id):
                if row["id"] == top or row["paused_inside"] or (row["id"] in within and row["paused_along"]):
                    paused.add(row["id"])
        return self._paused({*runs, *self._along(paused)})

    def to_resume_all(self, top: str) -> list[str]:
        """A paused run, what was paused along with it, and the runs around it that are paused for nothing else. A run
        that is not paused for itself stands for the paused ones inside it."""
        inside = self._paused({row["id"] for row in self.below([top])})
        if any(row["id"] == top and is_paused(row) for row in self.rows):
            inside = self._paused(self._along([top]))
        around = {row["id"] for row in self.around(top) if row["paused_inside"]}
        return self._paused({*inside, *around}) if inside else []

    def _along(self, tops: Collection[str]) -> set[str]:
        """These runs, and what is inside them without a run in between that is paused for itself."""
        found = set(tops)
        for row in self.rows:
            if row["parent_workflow_id"] in found and (row["paused_along"] or not is_paused(row)):
                found.add(row["id"])
        return found

    def _paused(self, ids: Collection[str]) -> list[str]:
        return [row["id"] for row in self.rows if row["id"] in ids and row["status"] == WorkflowStatus.PAUSED]


def _is_to_start(row: Row) -> bool:
    """A run of its own that is to start later."""
    return row["status"] == WorkflowStatus.PENDING and row["parent_workflow_id"] is None


def is_paused(row: Row) -> bool:
    """Paused for itself or along with the run around it, not for a workflow inside it."""
    return row["status"] == WorkflowStatus.PAUSED and not row["paused_inside"]


def with_skipped(nodes: Sequence[Row], start: Row) -> list[int]:
    """A failed node and everything that was skipped behind it, by index; in a run that was stopped also what the stop
    took from the run: a run that goes on must not leave nodes behind that nothing kept from running."""
    behind: dict[int, list[Row]] = {}
    for row in nodes:
        if row["status"] == NodeStatus.SKIPPED:  # also branches: a retried condition may take them
            for index in row["dependencies"]:
                behind.setdefault(index, []).append(row)
    last = [start["task_index"], *(row["task_index"] for row in nodes if row["is_stopped"] and row is not start)]
    chosen = set(last)
    while last:
        last = [row["task_index"] for index in last for row in behind.pop(index, ()) if row["task_index"] not in chosen]
        last = list(dict.fromkeys(last))
        chosen.update(last)
    return sorted(chosen)


def missing_node(known: Sequence[str], node_id: str) -> str:
    """The name of a node that a run does not have, with a hint."""
    close = get_close_matches(node_id, known, 1)
    hint = f"did you mean {close[0]!r}?" if close else "`horsies workflows show` lists its nodes"
    return f"node {short(node_id)!r}; {hint}"


def why_not(nodes: Sequence[WorkflowNodeInfo], node_id: str) -> str | None:
    """Why this node cannot be retried; None when it has failed, or does not exist."""
    by_index = {node.task_index: node for node in nodes}
    found = next((node for node in nodes if node.node_id == node_id), None)
    if found is None:
        return None
    if found.status is NodeStatus.FAILED:
        return None
    if found.status is not NodeStatus.SKIPPED:
        return f"node {node_id!r} has not failed, it is {found.status}"
    seen, last = {found.task_index}, [found]
    while last:
        before = dict.fromkeys(index for node in last for index in node.dependencies if index not in seen)
        seen.update(before)
        last = [by_index[index] for index in before if index in by_index]
        for node in last:
            if node.status is NodeStatus.FAILED:
                return f"node {node_id!r} was skipped because {node.node_id!r} failed; retry {node.node_id!r} instead"
        last = [node for node in last if node.status is NodeStatus.SKIPPED]
    return f"node {node_id!r} was skipped because a value that it takes does not exist; retry the whole run instead"
