"""A graph by levels, with its edges. The layout is pure; the widget draws it.

Nodes of a level stand side by side. Between two levels lie rows of lines: nodes that lead to the same nodes share one
line, and every line has a row, or a part of one, for itself. Where two lines cross, the one that goes down is whole. An
edge that passes a level has a column there.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from rich.cells import cell_len
from textual.content import Content
from textual.widgets import Static

from horsies_tui.data.models import WorkflowNode
from horsies_tui.text import fit, inert
from horsies_tui.themes import GLYPHS, variable_of

_MAX_LEVELS: Final = 60
_INDENT: Final = 3
_GAP: Final = 3
_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES: Final = {
    _UP | _DOWN: "│", _LEFT | _RIGHT: "─", _DOWN | _RIGHT: "┌", _DOWN | _LEFT: "┐", _UP | _RIGHT: "└", _UP | _LEFT: "┘",
    _UP | _DOWN | _RIGHT: "├", _UP | _DOWN | _LEFT: "┤", _LEFT | _RIGHT | _DOWN: "┬", _LEFT | _RIGHT | _UP: "┴",
    _UP | _DOWN | _LEFT | _RIGHT: "┼", _UP: "│", _DOWN: "│",
}  # fmt: skip

Key = tuple[str, int]
"""("node", index); ("more", level) for nodes that do not fit; ("pass", number) for edges that pass a level together."""


def levels(nodes: Sequence[WorkflowNode]) -> list[list[WorkflowNode]]:
    """The nodes by their distance from the start. The nodes of a cycle, which no run has, share one level."""
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


@dataclass(slots=True)
class _Level:
    """The parts of one line from left to right, and the column of each."""

    columns: dict[Key, int] = field(default_factory=dict[Key, int])
    labels: dict[Key, str] = field(default_factory=dict[Key, str])


@dataclass(frozen=True, slots=True)
class _Net:
    """Sources that all lead to the same targets, by the columns at which their lines begin and end."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]

    @property
    def span(self) -> tuple[int, int]:
        return min((*self.sources, *self.targets)), max((*self.sources, *self.targets))


def _label(node: WorkflowNode) -> str:
    return f"{GLYPHS[node.status]} {fit(inert(node.node_id), 28)}{' ⊞' if node.is_subworkflow else ''}"


class Layout:
    """The positions of the nodes and lines of a graph, independent of the selected node."""

    def __init__(self, nodes: Sequence[WorkflowNode], width: int) -> None:
        self.levels = levels(nodes)[:_MAX_LEVELS]
        self._width = width
        self._depth = {node.task_index: depth for depth, level in enumerate(self.levels) for node in level}
        self._hidden: dict[int, Key] = {}
        self.placed: list[_Level] = []
        self.nets: list[list[_Net]] = []
        """The rows of lines between a level and the next."""
        self._leads = self._edges(nodes)
        self._last = {index: max(self._depth[target] for target in to) for index, to in self._leads.items()}
        self._passes: dict[tuple[int, tuple[int, ...]], int] = {}
        for depth, level in enumerate(self.levels):
            passing: dict[Key, list[int]] = {}
            for index in self._leads:
                if self._depth[index] < depth and (key := self._pass(index, depth)) is not None:
                    passing.setdefault(key, []).append(index)
            self._place(depth, level, passing)

    def _edges(self, nodes: Iterable[WorkflowNode]) -> dict[int, list[int]]:
        """The edges from each node to the nodes that wait for it, downwards only."""
        found: dict[int, list[int]] = {}
        for node in nodes:
            for source in dict.fromkeys(node.dependencies):
                below = self._depth.get(node.task_index, -1)
                if source in self._depth and self._depth[source] < below:
                    found.setdefault(source, []).append(node.task_index)
        return found

    def _pass(self, index: int, depth: int) -> Key | None:
        """The column of a node's edges in a level that they pass; nodes of a level with the same edges share one."""
        if self._last[index] <= depth:
            return None
        group = (self._depth[index], tuple(sorted(self._leads[index])))
        return ("pass", self._passes.setdefault(group, len(self._passes)))

    # -- positions -------------------------------------------------------------------------------

    def _place(self, depth: int, level: Sequence[WorkflowNode], passing: Mapping[Key, Sequence[int]]) -> None:
        """Place each node below its dependencies where possible; nodes that do not fit are replaced by their number."""
        items: list[tuple[Key, str]] = [(("node", node.task_index), _label(node)) for node in level]
        items += [(key, "│") for key in passing]
        if depth:
            above = self.placed[-1].columns
            waits = {node.task_index: node.dependencies for node in level}

            def under(item: tuple[Key, str]) -> float:
                key, _ = item
                sources = (
                    [source for source in waits[key[1]] if source in self._depth] if key[0] == "node" else passing[key]
                )
                columns = [above[at] for source in sources if (at := self._source(source, depth - 1)) in above]
                return sum(columns) / len(columns) if columns else 0.0

            items.sort(key=under)
        placed = _Level()
        column = _INDENT
        nodes_left, passes_left = len(level), len(passing)
        more: Key = ("more", depth)
        for key, label in items:
            if key[0] == "node":
                rest = f"… {nodes_left} more"
                needed = cell_len(label) + passes_left * (1 + _GAP) + (len(rest) + _GAP if nodes_left > 1 else 0)
                nodes_left -= 1
                if more in placed.columns or (placed.columns and column + needed > self._width):
                    self._hidden[key[1]] = more
                    if more not in placed.columns:
                        placed.columns[more], placed.labels[more] = column, rest
                        column += len(rest) + _GAP
                    continue
            else:
                passes_left -= 1
            placed.columns[key], placed.labels[key] = column, label
            column += cell_len(label) + _GAP
        self.placed.append(placed)
        if depth:
            self.nets.append(self._nets(depth))

    def _source(self, index: int, depth: int) -> Key | None:
        """The part that has this node's edges in a level: the node, its passing line, or the nodes that do not fit."""
        if self._depth[index] == depth:
            return self._hidden.get(index, ("node", index))
        return self._pass(index, depth) if index in self._leads else None

    # -- lines -----------------------------------------------------------------------------------

    def _nets(self, depth: int) -> list[_Net]:
        above, below = self.placed[depth - 1].columns, self.placed[depth].columns
        leads: dict[Key, dict[Key, None]] = {}
        for index, targets in self._leads.items():
            if self._depth[index] >= depth:
                continue
            to = [self._hidden.get(target, ("node", target)) for target in targets if self._depth[target] == depth]
            if (passing := self._pass(index, depth)) is not None:
                to.append(passing)
            source = self._source(index, depth - 1)
            if to and source is not None:
                leads.setdefault(source, {}).update(dict.fromkeys(to))
        shared: dict[tuple[Key, ...], list[Key]] = {}
        for source, to in leads.items():
            shared.setdefault(tuple(sorted(to)), []).append(source)
        found: list[_Net] = []
        taken: set[int] = set()
        begins = {above[source] for sources in shared.values() for source in sources}
        for to, sources in sorted(shared.items(), key=lambda one: min(above[source] for source in one[1])):
            starts = {above[source] for source in sources}
            ends: list[int] = []
            for key in to:
                column = below[key]
                # beside the lines that begin above it or already end here; a passing line has one end
                while key[0] != "pass" and (column in taken or (column in begins and column not in starts)):
                    column += 1
                taken.add(column)
                ends.append(column)
            found.append(_Net(tuple(sorted(starts)), tuple(sorted(ends))))
        return found


def _rows(nets: Sequence[_Net]) -> list[list[_Net]]:
    """Distribute the lines over as few rows as possible without overlap. A line that begins in a column turns off above
    the line that ends there."""
    rows: list[list[_Net]] = []
    placed: dict[_Net, int] = {}
    waiting = sorted(nets, key=lambda one: one.span)
    begins = {column: net for net in nets for column in net.sources}
    above = {net: [one for at in net.targets if (one := begins.get(at, net)) is not net] for net in nets}
    while waiting:
        net = next((one for one in waiting if all(other in placed for other in above[one])), waiting[0])
        waiting.remove(net)
        low, high = net.span
        number = 1 + max((placed[other] for other in above[net] if other in placed), default=-1)
        while number < len(rows) and any(low <= one.span[1] and one.span[0] <= high for one in rows[number]):
            number += 1
        if number == len(rows):
            rows.append([])
        rows[number].append(net)
        placed[net] = number
    return rows


def _drawn(nets: Sequence[_Net]) -> list[str]:
    """The rows between two levels, as text."""
    rows = _rows(nets)
    grid: list[dict[int, int]] = [{} for _ in rows]
    upright: list[dict[int, int]] = [{} for _ in rows]
    for number, row in enumerate(rows):
        for net in row:
            low, high = net.span
            for column in range(low, high + 1):
                mask = (_LEFT if column > low else 0) | (_RIGHT if column < high else 0)
                mask |= (_UP if column in net.sources else 0) | (_DOWN if column in net.targets else 0)
                grid[number][column] = mask
            for above in range(number):
                upright[above].update(dict.fromkeys(net.sources, _UP | _DOWN))
            for below in range(number + 1, len(rows)):
                upright[below].update(dict.fromkeys(net.targets, _UP | _DOWN))
    lines: list[str] = []
    for number in range(len(rows)):
        cells = dict(grid[number])
        for column, mask in upright[number].items():
            # two lines that end in one column meet; any others cross
            cells[column] = cells[column] | _UP if cells.get(column, 0) & _DOWN else mask
        lines.append("".join(_LINES.get(cells.get(column, 0), " ") for column in range(max(cells, default=-1) + 1)))
    return lines


def draw(nodes: Sequence[WorkflowNode], width: int, chosen: int | None = None, layout: Layout | None = None) -> Content:
    """The nodes of a level that fit; the dependencies and dependents of the selected node are underlined."""
    layout = layout or Layout(nodes, width)
    by_index = {node.task_index: node for node in nodes}
    near = set(by_index[chosen].dependencies) if chosen in by_index else set[int]()
    near |= {node.task_index for node in nodes if chosen is not None and chosen in node.dependencies}
    lines: list[Content] = []
    for depth, level in enumerate(layout.placed):
        if depth:
            lines += [Content.styled(line[:width], "$text-disabled") for line in _drawn(layout.nets[depth - 1])]
        lines.append(_line(level, by_index, near, chosen, width))
    return Content("\n").join(lines)


def _line(
    level: _Level, by_index: Mapping[int, WorkflowNode], near: set[int], chosen: int | None, width: int
) -> Content:
    parts: list[Content] = []
    at = 0
    for key, column in level.columns.items():
        if at and column >= width:  # more lines pass than fit
            break
        label = level.labels[key]
        style = "$text-disabled" if key[0] == "pass" else "$text-muted"
        if key[0] == "node":
            style = f"${variable_of(by_index[key[1]].status)}"
            style += " bold reverse" if key[1] == chosen else ""
            style += " underline" if key[1] in near else ""
        parts += [Content(" " * (column - at)), Content.styled(label, style)]
        at = column + cell_len(label)
    return Content.assemble(*parts)


class Dag(Static):
    """The picture of one run."""

    _laid_out: tuple[Sequence[WorkflowNode], int, Layout] | None = None

    def show(self, nodes: Sequence[WorkflowNode], chosen: int | None = None) -> None:
        width = self.size.width or 78
        kept = self._laid_out
        if kept is None or kept[0] is not nodes or kept[1] != width:  # the cursor moves more often than the graph
            self._laid_out = kept = (nodes, width, Layout(nodes, width))
        self.update(draw(nodes, width, chosen, kept[2]))
