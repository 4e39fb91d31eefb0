"""A graph by levels: what can run at the same time stands side by side. The layout is pure; the widget draws it."""

from collections.abc import Sequence
from typing import Final

from textual.content import Content
from textual.widgets import Static

from horsies_tui.data.models import WorkflowNode
from horsies_tui.text import fit, inert
from horsies_tui.themes import GLYPHS, variable_of

_MAX_LEVELS: Final = 60


def levels(nodes: Sequence[WorkflowNode]) -> list[list[WorkflowNode]]:
    """Nodes by their distance from the start. A cycle, which no run of ours has, ends up in one level."""
    known = {node.task_index for node in nodes}
    waits = {node.task_index: {index for index in node.dependencies if index in known} for node in nodes}
    by_index = {node.task_index: node for node in nodes}
    found: list[list[WorkflowNode]] = []
    placed: set[int] = set()
    while len(placed) < len(by_index):
        ready = [index for index in by_index if index not in placed and waits[index] <= placed]
        ready = ready or [index for index in by_index if index not in placed]
        found.append([by_index[index] for index in ready])
        placed.update(ready)
    return found


def draw(nodes: Sequence[WorkflowNode], width: int, chosen: int | None = None) -> Content:
    """As many nodes of a level as fit; what the chosen one waits for, and what waits for it, is underlined."""
    by_index = {node.task_index: node for node in nodes}
    near = set(by_index[chosen].dependencies) if chosen in by_index else set[int]()
    near |= {node.task_index for node in nodes if chosen is not None and chosen in node.dependencies}
    lines: list[Content] = []
    for depth, level in enumerate(levels(nodes)[:_MAX_LEVELS]):
        if depth:
            lines.append(Content.styled("   │", "$text-disabled"))
        parts: list[Content] = [Content.styled("   ├─ " if depth else "   ", "$text-disabled")]
        room = width - 8
        for place, node in enumerate(level):
            name = fit(inert(node.node_id), 28)
            text = f"{GLYPHS[node.status]} {name}{' ⊞' if node.is_subworkflow else ''}"
            if len(text) + 3 > room and place:
                parts.append(Content.styled(f"… {len(level) - place} more", "$text-muted"))
                break
            room -= len(text) + 3
            style = f"${variable_of(node.status)}"
            style += " bold reverse" if node.task_index == chosen else ""
            style += " underline" if node.task_index in near else ""
            parts += [Content.styled(text, style), Content("   ")]
        lines.append(Content.assemble(*parts))
    return Content("\n").join(lines)


class Dag(Static):
    """The picture of one run."""

    def show(self, nodes: Sequence[WorkflowNode], chosen: int | None = None) -> None:
        self.update(draw(nodes, self.size.width or 78, chosen))
