"""The nodes that undo what an inline run did: what `plan_compensations` in the worker's workflows.sql does."""

import json
from collections.abc import Mapping
from typing import Any

from horsies.status import NodeStatus
from horsies.testing.inline_run import InlineNode, InlineRun
from horsies.testing.node_values import bare, dumped


def undo_nodes(run: InlineRun) -> list[dict[str, Any]]:
    """The last end first: of the run's own nodes, of completed workflows inside that have no compensation of their own,
    and of what the run was before it continued. Each waits for the one before it."""
    undone = sorted(_completed(run, ()), key=lambda one: (one[0], one[1].index))
    first, last = len(run.nodes), len(run.nodes) + len(undone) - 1
    return [
        _undo(at, node, before=at - 1 if at > first else None, after=at + 1 if at < last else None, nth=at - first + 1)
        for at, (_, node) in enumerate(undone, first)
    ]


def _completed(run: InlineRun, key: tuple[int, ...]) -> list[tuple[tuple[int, ...], InlineNode]]:
    found: list[tuple[tuple[int, ...], InlineNode]] = []
    for generation, nodes in enumerate([run.nodes, *run.past]):
        for node in nodes:
            if node.status is not NodeStatus.COMPLETED:
                continue
            place = (*key, generation, -node.seq)
            if node.undo is not None and node.result is not None:
                found.append((place, node))
            elif node.undo is None and node.child is not None:
                found += _completed(node.child, place)
    return found


def _undo(at: int, node: InlineNode, *, before: int | None, after: int | None, nth: int) -> dict[str, Any]:
    how: Mapping[str, Any] = node.undo or {}
    given: dict[str, Any] = json.loads(node.task.kwargs or "{}") if node.task is not None else {}
    members = [f"{dumped(how['value'])}:{bare(node) or 'null'}"]
    known = {**how.get("defaults", {}), **given}
    members += [f"{dumped(name)}:{dumped(known[name])}" for name in sorted(how["arguments"]) if name in known]
    return {
        "node_id": f"undo-{nth}-{node.node_id[:200]}", "task_name": how["task_name"], "args": None,
        "kwargs": "{" + ",".join(members) + "}", "queue_name": how["queue_name"], "priority": how["priority"],
        "dependencies": [] if before is None else [before], "dependents": [] if after is None else [after],
        "args_from": None, "ctx_from": None, "join_type": "all", "min_success": None, "allow_failed": False,
        "task_options": how["task_options"], "max_retries": how["max_retries"], "metadata": how["metadata"],
        "kind": "task", "is_undo": True,
    }  # fmt: skip
