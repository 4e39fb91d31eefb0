"""Nodes of graphs for tests of layouts and drawings, and the edges that one reads off a drawing."""

import re
from typing import Any

from horsies.status import NodeStatus
from horsies.workflow.info import WorkflowNodeInfo

LABELS = re.compile(r"○ n(\d+)")
_WAYS = {
    "│": "ud", "┆": "ud", "─": "lr", "┄": "lr", "┌": "dr", "┐": "dl", "└": "ur", "┘": "ul", "├": "udr", "┤": "udl",
    "┬": "lrd", "┴": "lru", "┼": "udlr",
}  # fmt: skip
_STEP = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}
_BACK = {"u": "d", "d": "u", "l": "r", "r": "l"}


def node(index: int, *waits: int, **columns: Any) -> WorkflowNodeInfo:
    """A pending node n<index> that waits for others."""
    plain: dict[str, Any] = {
        "task_index": index, "node_id": f"n{index}", "task_name": "t", "dependencies": list(waits), "join_type": "all",
        "is_subworkflow": False, "sub_workflow_id": None, "task_id": None, "status": NodeStatus.PENDING,
        "started_at": None, "completed_at": None,
    }  # fmt: skip
    return WorkflowNodeInfo(**{**plain, **columns})


def edges_of(picture: str) -> set[tuple[int, int]]:
    """Follow the lines of a drawing, whose nodes are ○ n0, ○ n1, …, from below each node downwards."""
    rows = picture.splitlines()
    labels = {
        (row, column): int(found[1])
        for row, line in enumerate(rows)
        for found in LABELS.finditer(line)
        for column in range(found.start(), found.end() + 4)  # more lines than a short name has characters
    }

    def sign(row: int, column: int) -> str:
        return rows[row][column] if row < len(rows) and column < len(rows[row]) else " "

    found: set[tuple[int, int]] = set()
    for (row, column), source in labels.items():
        if "u" not in _WAYS.get(sign(row + 1, column), "") or sign(row, column) in _WAYS:
            continue
        open_ends, seen = [(row + 1, column, "d")], set[tuple[int, int, str]]()
        while open_ends:
            end = open_ends.pop()
            if end in seen:
                continue
            seen.add(end)
            at, over, came = end
            mark = sign(at, over)
            if came == "d" and (at, over) in labels and mark not in _WAYS:
                found.add((source, labels[at, over]))
            elif mark in "│┆" and came in "lr":  # crossed: the line goes on behind it
                open_ends.append((at, over + _STEP[came][1], came))
            elif _BACK[came] in _WAYS.get(mark, ""):
                open_ends += [(at + _STEP[way][0], over + _STEP[way][1], way)
                              for way in _WAYS[mark] if way not in (_BACK[came], "u")]  # fmt: skip
    return found
