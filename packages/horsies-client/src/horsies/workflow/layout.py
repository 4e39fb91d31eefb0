"""Places the nodes of a run in layers, in an order in which few of their edges cross. Pure: no text, no terminal.

A node's layer is the length of the longest path that leads to it, so every edge goes downwards. An edge that passes
layers has a slot in each of them. Sources of one layer with the same targets share a wire and its slots: a join of a
thousand nodes is one wire. Rows are hostile input: an edge of a cycle, or to a node that does not exist, is left out.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from horsies.workflow.info import WorkflowNodeInfo

_SWEEPS: Final = 16
_SWEEPS_LARGE: Final = 4
_LARGE: Final = 3_000
"""The number of slots from which a layout is large."""
_PATIENCE: Final = 4
"""Stop after this many sweeps without fewer crossings."""
_MAX_PASSES: Final = 20_000
"""The most slots of edges that pass layers: 2,000 nodes that each wait for all before them would need two million."""
_MAX_PAIRS: Final = 200_000
"""Above this number of pairs of slots, crossings are not counted, and the last order is taken."""

Edges = Mapping[tuple[int, int], bool | None]
"""From source and target to the value with which the target is taken; None for a dependency."""


class Slot(NamedTuple):
    """A place in a layer: of a node, or of a wire that passes the layer."""

    number: int
    """The index of the node, or the number of the wire."""
    is_wire: bool = False


@dataclass(frozen=True, slots=True)
class Wire:
    """A line from all its sources, which share a layer, to all its targets."""

    sources: tuple[int, ...]
    targets: tuple[int, ...]
    when: bool | None = None
    """The value of the source with which the targets are taken; None for dependencies."""


@dataclass(frozen=True, slots=True)
class Joint:
    """The part of a wire between a layer and the next: every upper slot leads to every lower one."""

    wire: int
    uppers: tuple[Slot, ...]
    lowers: tuple[Slot, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    layers: tuple[tuple[Slot, ...], ...]
    """The slots of each layer from left to right."""
    joints: tuple[tuple[Joint, ...], ...]
    """The joints below each layer but the last."""
    wires: tuple[Wire, ...]
    depth: Mapping[int, int]
    """The layer of each node."""
    left_out: tuple[tuple[int, int], ...]
    """Edges that are not drawn: they close a cycle, or pass too many layers."""

    def nodes(self) -> list[list[int]]:
        """The nodes of each layer from left to right."""
        return [[slot.number for slot in layer if not slot.is_wire] for layer in self.layers]

    def edges(self) -> Iterator[tuple[int, int, bool | None]]:
        """Source, target and value of every edge that is drawn."""
        for wire in self.wires:
            yield from ((source, target, wire.when) for source in wire.sources for target in wire.targets)

    def crossings(self) -> int:
        """How often two edges cross."""
        return _crossings(self.layers, self.joints)


def lay_out(nodes: "Iterable[WorkflowNodeInfo]", *, sweeps: int | None = None) -> Layout:
    """The layout of these nodes; the same for the same nodes in any order. Without sweeps, by index in each layer."""
    by_index = {node.task_index: node for node in sorted(nodes, key=lambda node: node.task_index)}
    edges = _edges(by_index)
    depth = _depths(list(by_index), edges)
    drawn = {edge: when for edge, when in edges.items() if depth[edge[0]] < depth[edge[1]]}
    wires = _wires(drawn, depth)
    longest = max((depth[target] - depth[source] for source, target in drawn), default=0)
    while sum(_length(wire, depth) for wire in wires) > _MAX_PASSES:
        longest //= 2
        drawn = {edge: when for edge, when in drawn.items() if depth[edge[1]] - depth[edge[0]] <= longest}
        wires = _wires(drawn, depth)
    layers: list[list[Slot]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for index in by_index:
        layers[depth[index]].append(Slot(index))
    joints = _joints(wires, depth, layers)
    if sweeps is None:
        sweeps = _SWEEPS if sum(map(len, layers)) < _LARGE else _SWEEPS_LARGE
    best = _ordered(layers, joints, sweeps)
    left_out = tuple(edge for edge in edges if edge not in drawn)
    return Layout(tuple(map(tuple, best)), tuple(map(tuple, joints)), tuple(wires), depth, left_out)


# -- layers --------------------------------------------------------------------------------------


def _edges(by_index: "Mapping[int, WorkflowNodeInfo]") -> dict[tuple[int, int], bool | None]:
    found: dict[tuple[int, int], bool | None] = {}
    for index, node in by_index.items():
        found.update({(source, index): None for source in node.dependencies})
        if node.when_index is not None:  # one line for both when it is a dependency too
            found[node.when_index, index] = node.when_value is not False
    return {edge: found[edge] for edge in sorted(found) if edge[0] in by_index and edge[0] != edge[1]}


def _depths(indexes: Sequence[int], edges: Edges) -> dict[int, int]:
    """The longest path to each node. A cycle is entered at its lowest index."""
    followers: dict[int, list[int]] = {index: [] for index in indexes}
    waits = dict.fromkeys(indexes, 0)
    for source, target in edges:
        followers[source].append(target)
        waits[target] += 1
    depth = dict.fromkeys(indexes, 0)
    ready = deque(index for index in indexes if not waits[index])
    rest = iter(indexes)
    done: set[int] = set()
    while len(done) < len(indexes):
        index = ready.popleft() if ready else next(index for index in rest if index not in done)
        done.add(index)
        for follower in followers[index]:
            if follower in done:
                continue
            depth[follower] = max(depth[follower], depth[index] + 1)
            waits[follower] -= 1
            if not waits[follower]:
                ready.append(follower)
    return depth


def _wires(edges: Edges, depth: Mapping[int, int]) -> list[Wire]:
    leads: dict[tuple[int, bool | None], list[int]] = {}
    for (source, target), when in edges.items():
        leads.setdefault((source, when), []).append(target)
    shared: dict[tuple[int, bool | None, tuple[int, ...]], list[int]] = {}
    for (source, when), targets in leads.items():
        shared.setdefault((depth[source], when, tuple(targets)), []).append(source)
    return [Wire(tuple(sources), targets, when) for (_, when, targets), sources in shared.items()]


def _length(wire: Wire, depth: Mapping[int, int]) -> int:
    """How many layers it passes."""
    return max(depth[target] for target in wire.targets) - depth[wire.sources[0]] - 1


def _joints(wires: Sequence[Wire], depth: Mapping[int, int], layers: list[list[Slot]]) -> list[list[Joint]]:
    """The parts of the wires between the layers; adds the slots of those that pass a layer."""
    found: list[list[Joint]] = [[] for _ in layers[1:]]
    for number, wire in enumerate(wires):
        ends: dict[int, list[Slot]] = {}
        for target in wire.targets:
            ends.setdefault(depth[target], []).append(Slot(target))
        first, last = depth[wire.sources[0]], max(ends)
        uppers = tuple(map(Slot, wire.sources))
        for at in range(first + 1, last + 1):
            lowers = ends.get(at, [])
            if at < last:
                passing = Slot(number, is_wire=True)
                layers[at].append(passing)
                lowers = [*lowers, passing]
            found[at - 1].append(Joint(number, uppers, tuple(lowers)))
            uppers = tuple(lowers[-1:])
    return found


# -- order ---------------------------------------------------------------------------------------


def _ordered(layers: list[list[Slot]], joints: Sequence[Sequence[Joint]], sweeps: int) -> list[list[Slot]]:
    """The order with the fewest crossings among those that the sweeps find, which begin with the order by index."""
    pairs = sum(len(joint.uppers) * len(joint.lowers) for part in joints for joint in part)
    is_counted = pairs <= _MAX_PAIRS
    best = [list(layer) for layer in layers]
    fewest = _crossings(best, joints) if is_counted else 0
    in_vain = 0
    for sweep in range(sweeps):
        if is_counted and (not fewest or in_vain >= _PATIENCE):
            break
        _sweep(layers, joints, down=sweep % 2 == 0)
        crossings = _crossings(layers, joints) if is_counted else -1
        in_vain += 1
        if crossings < fewest:
            best, fewest, in_vain = [list(layer) for layer in layers], crossings if is_counted else 0, 0
    return best


def _sweep(layers: list[list[Slot]], joints: Sequence[Sequence[Joint]], *, down: bool) -> None:
    """Sort each layer by the mean place of the slots that its own are joined to, in the layer before or after it. Slots
    that are joined to none keep their place."""
    for at in range(1, len(layers)) if down else range(len(layers) - 2, -1, -1):
        fixed = layers[at - 1 if down else at + 1]
        place = {slot: number for number, slot in enumerate(fixed)}
        pulls: dict[Slot, tuple[int, int]] = {}
        for joint in joints[at - 1 if down else at]:
            near, far = (joint.uppers, joint.lowers) if down else (joint.lowers, joint.uppers)
            total = sum(place[slot] for slot in near)
            for slot in far:
                seen, count = pulls.get(slot, (0, 0))
                pulls[slot] = (seen + total, count + len(near))
        own = {slot: (number + 0.5) / len(layers[at]) for number, slot in enumerate(layers[at])}
        for slot, (total, count) in pulls.items():
            own[slot] = (total / count + 0.5) / len(fixed)
        layers[at].sort(key=own.__getitem__)


def _crossings(layers: Sequence[Sequence[Slot]], joints: Sequence[Sequence[Joint]]) -> int:
    found = 0
    for upper, lower, part in zip(layers, layers[1:], joints, strict=False):
        above = {slot: place for place, slot in enumerate(upper)}
        below = {slot: place for place, slot in enumerate(lower)}
        ends = sorted((above[one], below[other]) for joint in part for one in joint.uppers for other in joint.lowers)
        found += _inversions([end for _, end in ends], len(lower))
    return found


def _inversions(values: Sequence[int], bound: int) -> int:
    """How many pairs are in the wrong order, with a Fenwick tree over the values that were seen."""
    tree = [0] * (bound + 1)
    found = 0
    for seen, value in enumerate(values):
        at, not_above = value + 1, 0
        while at:
            not_above += tree[at]
            at &= at - 1
        found += seen - not_above
        at = value + 1
        while at <= bound:
            tree[at] += 1
            at += at & -at
    return found
