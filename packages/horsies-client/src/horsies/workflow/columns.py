"""Plans the column of every slot of a layout: as near as possible to those that it is joined to. Pure."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import floor
from typing import Final

from horsies.workflow.layout import Joint, Layout, Slot

_GAP: Final = 3
_WIRE_GAP: Final = 1
_PASSES: Final = 8
_PASSES_LARGE: Final = 4
_LARGE: Final = 3_000
"""The number of slots from which a layout is large."""
_STRAIGHT: Final = 8.0
"""How much more a wire that passes a layer pulls than an edge between two nodes: a long line should not bend."""


def gap(left: Slot, right: Slot) -> int:
    return _WIRE_GAP if left.is_wire and right.is_wire else _GAP


def by_slot(joints: Sequence[Joint], side: str) -> dict[Slot, list[Joint]]:
    found: dict[Slot, list[Joint]] = {}
    for joint in joints:
        for slot in joint.uppers if side == "uppers" else joint.lowers:
            found.setdefault(slot, []).append(joint)
    return found


def leaving_offsets(layout: Layout) -> dict[tuple[Slot, int], int]:
    """How far right of its node each wire leaves, where several leave: in the order of where they lead."""
    found: dict[tuple[Slot, int], int] = {}
    for layer, joints in zip(layout.layers[1:], layout.joints, strict=True):
        place = {slot: number for number, slot in enumerate(layer)}
        leads = {joint.wire: sum(place[slot] for slot in joint.lowers) / len(joint.lowers) for joint in joints}
        for slot, leaving in by_slot(joints, "uppers").items():
            for order, joint in enumerate(sorted(leaving, key=lambda joint: leads[joint.wire])):
                found[slot, joint.wire] = 2 * order
    return found


def planned_columns(
    layout: Layout, width: Callable[[Slot], int], leaves: Mapping[tuple[Slot, int], int]
) -> dict[tuple[int, Slot], int]:
    """The column of each slot by its layer: as near as possible to the mean of those that it is joined to."""
    layers, joints = layout.layers, layout.joints
    offsets: list[list[int]] = []
    for layer in layers:
        at = [0]
        for left, right in pairwise(layer):
            at.append(at[-1] + width(left) + gap(left, right))
        offsets.append(at)
    found: list[dict[Slot, float]] = [
        dict(zip(layer, at, strict=False)) for layer, at in zip(layers, offsets, strict=True)
    ]
    passes = _PASSES if sum(map(len, layers)) < _LARGE else _PASSES_LARGE
    for number in range(passes):
        is_down = number % 2 == 0
        for depth in range(1, len(layers)) if is_down else range(len(layers) - 2, -1, -1):
            near = found[depth - 1 if is_down else depth + 1]
            pulls: dict[Slot, tuple[float, float]] = {}
            for joint in joints[depth - 1 if is_down else depth]:
                fixed, moved = (joint.uppers, joint.lowers) if is_down else (joint.lowers, joint.uppers)
                middle = sum(near[slot] + (leaves[slot, joint.wire] if is_down else 0) for slot in fixed) / len(fixed)
                for slot in moved:
                    weight = _STRAIGHT if slot.is_wire and fixed[-1].is_wire else 1.0
                    total, weights = pulls.get(slot, (0.0, 0.0))
                    wanted_at = middle if is_down else middle - leaves[slot, joint.wire]
                    pulls[slot] = (total + wanted_at * weight, weights + weight)
            own = found[depth]
            wanted = [pulls.get(slot, (own[slot] * 0.01, 0.01)) for slot in layers[depth]]
            found[depth] = dict(zip(layers[depth], _fitted(wanted, offsets[depth]), strict=True))
    return {
        (depth, slot): floor(round(column, 6) + 0.5)
        for depth, level in enumerate(found)
        for slot, column in level.items()
    }


def _fitted(wanted: Sequence[tuple[float, float]], offsets: Sequence[int]) -> list[float]:
    """The columns nearest to those wanted (each a weighted sum and its weight) at which neighbours do not overlap: a
    regression that pools neighbours until their order holds."""
    blocks: list[tuple[float, float, int]] = []
    for (total, weight), offset in zip(wanted, offsets, strict=True):
        block = (total - offset * weight, weight, 1)
        while blocks and blocks[-1][0] * block[1] > block[0] * blocks[-1][1]:
            before = blocks.pop()
            block = (before[0] + block[0], before[1] + block[1], before[2] + block[2])
        blocks.append(block)
    means = [total / weight for total, weight, count in blocks for _ in range(count)]
    return [mean + offset for mean, offset in zip(means, offsets, strict=True)]
