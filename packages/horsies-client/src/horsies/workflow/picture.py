"""Draws a layout with characters: a line for each layer, and rows of lines between them. Pure: any part of a row on
demand, so that a terminal draws what it shows of a large graph.

Each wire has columns for itself where it leaves a layer and where it ends in the next. In between it turns in a row, or
in a part of one, that no other wire uses. Where two wires cross, the one that goes down is whole. The wire of a branch
is dashed and says with which value it is taken.
"""

import unicodedata
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Final, NamedTuple

from horsies.workflow.columns import by_slot, gap, leaving_offsets, planned_columns
from horsies.workflow.layout import Joint, Layout, Slot

_UP, _DOWN, _LEFT, _RIGHT = 1, 2, 4, 8
_LINES: Final = {
    _UP | _DOWN: "│", _LEFT | _RIGHT: "─", _DOWN | _RIGHT: "┌", _DOWN | _LEFT: "┐", _UP | _RIGHT: "└", _UP | _LEFT: "┘",
    _UP | _DOWN | _RIGHT: "├", _UP | _DOWN | _LEFT: "┤", _LEFT | _RIGHT | _DOWN: "┬", _LEFT | _RIGHT | _UP: "┴",
    _UP | _DOWN | _LEFT | _RIGHT: "┼",
}  # fmt: skip
_DASHED: Final = {"│": "┆", "─": "┄"}
WORDS: Final = {True: "if yes", False: "if no"}
"""What stands beside the end of a branch."""


def cells(text: str) -> int:
    """How many columns a terminal needs for a text without control characters."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1 for one in text
    )


class Place(NamedTuple):
    """Where the label of a node stands."""

    row: int
    column: int
    width: int


class Part(NamedTuple):
    """A piece of a row: the label of a node, or lines and the words beside them."""

    column: int
    text: str
    node: int | None = None


@dataclass(slots=True)
class _Net:
    """A joint, by the columns at which its lines begin and end."""

    starts: list[int]
    ends: list[int]
    is_dashed: bool

    @property
    def low(self) -> int:
        return min(*self.starts, *self.ends)

    @property
    def high(self) -> int:
        return max(*self.starts, *self.ends)

    @property
    def is_straight(self) -> bool:
        return self.low == self.high

    def line(self, left: int, right: int) -> Iterable[tuple[int, str]]:
        """The characters of the row in which it turns, between two columns."""
        starts, ends, low, high = set(self.starts), set(self.ends), self.low, self.high
        for column in range(max(low, left), min(high + 1, right)):
            mask = (_LEFT if column > low else 0) | (_RIGHT if column < high else 0)
            mask |= (_UP if column in starts else 0) | (_DOWN if column in ends else 0)
            sign = _LINES[mask]
            yield column, _DASHED.get(sign, sign) if self.is_dashed else sign


@dataclass(slots=True)
class _Band:
    """The rows of lines between two layers."""

    top: int
    height: int
    tracks: list[list[_Net]]
    uprights: list[tuple[int, int, int, bool]]
    """Column, first row, last row and whether it is dashed, by column."""
    words: list[tuple[int, str]]
    """What stands in the last row, by column."""

    def row(self, number: int, left: int, right: int) -> dict[int, str]:
        found: dict[int, str] = {}
        for net in self.tracks[number] if number < len(self.tracks) else ():
            found.update(net.line(left, right))
        for at in range(bisect_left(self.uprights, (left,)), len(self.uprights)):
            column, first, last, is_dashed = self.uprights[at]
            if column >= right:
                break
            if first <= number <= last:
                found[column] = "┆" if is_dashed else "│"
        if number == self.height - 1:
            for column, text in self.words:
                found.update({at: sign for at, sign in enumerate(text, column) if left <= at < right})
        return found


@dataclass(slots=True)
class _Level:
    """The columns of a layer."""

    columns: dict[Slot, int] = field(default_factory=dict[Slot, int])
    begins: dict[tuple[Slot, int], int] = field(default_factory=dict[tuple[Slot, int], int])
    """By slot and wire, where the wire leaves it; `ends` for where the wire comes from above."""
    ends: dict[tuple[Slot, int], int] = field(default_factory=dict[tuple[Slot, int], int])


class Picture:
    """A layout with the labels of its nodes, each one line. `indent` columns on the left stay empty."""

    def __init__(
        self,
        layout: Layout,
        labels: Mapping[int, str],
        *,
        indent: int = 3,
        measure: Callable[[str], int] = cells,
    ) -> None:
        self.layout = layout
        self.labels = labels
        self._widths = {index: measure(text) for index, text in labels.items()}
        self._room = _room(layout, self._widths)
        self.places: dict[int, Place] = {}
        self._bands: list[_Band] = []
        self._level_of: dict[int, _Level] = {}
        self._offsets = leaving_offsets(layout)
        levels = self._placed(planned_columns(layout, self._width, self._offsets), indent)
        row = 0
        for depth, level in enumerate(levels):
            if depth:
                self._bands.append(self._band(layout.joints[depth - 1], levels[depth - 1], level, row))
                row += self._bands[-1].height
            self._level_of[row] = level
            for slot, column in level.columns.items():
                if not slot.is_wire:
                    self.places[slot.number] = Place(row, column, self._widths[slot.number])
            row += 1
        self.height = row
        self._band_of = {row: band for band in self._bands for row in range(band.top, band.top + band.height)}
        ends = [place.column + place.width for place in self.places.values()]
        ends += [band.uprights[-1][0] + 1 for band in self._bands if band.uprights]
        ends += [column + len(text) for band in self._bands for column, text in band.words]
        self.width = max(ends, default=0)

    # -- reading ---------------------------------------------------------------------------------

    def row(self, number: int, left: int = 0, right: int | None = None) -> list[Part]:
        """The parts of a row that begin or end between two columns, from left to right. A label is never cut."""
        right = self.width if right is None else right
        if (band := self._band_of.get(number)) is not None:
            return _joined(band.row(number - band.top, left, right))
        parts: list[Part] = []
        level = self._level_of.get(number)
        for slot, column in level.columns.items() if level is not None else ():
            if slot.is_wire and left <= column < right:
                parts.append(Part(column, "│" if self.layout.wires[slot.number].when is None else "┆"))
            elif not slot.is_wire and column < right and column + self._widths[slot.number] > left:
                parts.append(Part(column, self.labels[slot.number], slot.number))
        return parts

    def lines(self) -> list[str]:
        """The whole picture as text."""
        found: list[str] = []
        for number in range(self.height):
            text, at = "", 0
            for part in self.row(number):
                text += " " * (part.column - at) + part.text
                at = part.column + (self._widths[part.node] if part.node is not None else len(part.text))
            found.append(text.rstrip())
        return found

    # -- columns ---------------------------------------------------------------------------------

    def _width(self, slot: Slot) -> int:
        return 1 if slot.is_wire else self._room[slot.number]

    def _placed(self, planned: Mapping[tuple[int, Slot], int], indent: int) -> list[_Level]:
        """The final columns: as planned, or further right where another wire begins above."""
        layers, joints = self.layout.layers, self.layout.joints
        levels: list[_Level] = []
        shift = indent - min(planned.values(), default=0)
        shifts: dict[tuple[int, Slot], int] = {}
        for depth, layer in enumerate(layers):
            level = _Level()
            above = levels[-1] if levels else level
            comes = by_slot(joints[depth - 1], "lowers") if depth else {}
            goes = by_slot(joints[depth], "uppers") if depth < len(joints) else {}
            begins = {column: wire for (_, wire), column in above.begins.items()}
            edge, last = indent, None
            for slot in layer:
                at = planned[depth, slot]
                straight = [
                    shifts[depth - 1, upper]
                    for joint in comes.get(slot, ()) for upper in joint.uppers
                    if planned[depth - 1, upper] + self._offsets[upper, joint.wire] == at
                ]  # fmt: skip
                column = max(at + (straight[0] if straight else shift), edge + gap(last, slot) if last else indent)
                column, width = self._enter(slot, column, comes.get(slot, ()), above, begins, level)
                for joint in goes.get(slot, ()):
                    offset = self._offsets[slot, joint.wire]
                    level.begins[slot, joint.wire] = column + offset
                    width = max(width, offset + 1)
                level.columns[slot] = column
                shifts[depth, slot] = column - at
                edge, last = column + width, slot
            levels.append(level)
        return levels

    def _enter(
        self,
        slot: Slot,
        column: int,
        comes: Sequence[Joint],
        above: _Level,
        begins: Mapping[int, int],
        level: _Level,
    ) -> tuple[int, int]:
        """Give each wire that ends in the slot a column in which no other wire begins above. Returns the column of the
        slot and the width that the ends need."""
        width = self._width(slot)
        if slot.is_wire:
            while begins.get(column, slot.number) != slot.number:
                column += 1
            for joint in comes:
                level.ends[slot, joint.wire] = column
            return column, width

        def order(joint: Joint) -> tuple[object, ...]:
            starts = [above.begins[upper, joint.wire] for upper in joint.uppers]
            is_branch = self.layout.wires[joint.wire].when is not None  # the last one, with its words beside it
            return is_branch, column not in starts, sum(starts) / len(starts)

        free = column
        for joint in sorted(comes, key=order):
            while begins.get(free, joint.wire) != joint.wire:
                free += 1
            level.ends[slot, joint.wire] = free
            free += 1
            when = self.layout.wires[joint.wire].when
            width = max(width, free - column + (0 if when is None else 1 + len(WORDS[when])))
        return column, width

    # -- lines -----------------------------------------------------------------------------------

    def _band(self, joints: Sequence[Joint], above: _Level, below: _Level, top: int) -> _Band:
        nets: list[_Net] = []
        words: list[tuple[int, str]] = []
        for joint in joints:
            when = self.layout.wires[joint.wire].when
            starts = sorted(above.begins[slot, joint.wire] for slot in joint.uppers)
            ends = sorted(below.ends[slot, joint.wire] for slot in joint.lowers)
            nets.append(_Net(starts, ends, when is not None))
            if when is not None:
                words += [(below.ends[slot, joint.wire] + 2, WORDS[when]) for slot in joint.lowers if not slot.is_wire]
        tracks = _tracks([net for net in nets if not net.is_straight])
        height = max(1, len(tracks)) + (1 if words and tracks else 0)
        uprights = [(net.low, 0, height - 1, net.is_dashed) for net in nets if net.is_straight]
        for number, track in enumerate(tracks):
            for net in track:
                uprights += [(column, 0, number - 1, net.is_dashed) for column in net.starts]
                uprights += [(column, number + 1, height - 1, net.is_dashed) for column in net.ends]
        return _Band(top, height, tracks, sorted(uprights), sorted(words))


def _room(layout: Layout, widths: Mapping[int, int]) -> dict[int, int]:
    """The columns that each node needs: for its label, and for the wires that end above it and the words beside one."""
    ends = dict.fromkeys(layout.depth, 0)
    words = dict.fromkeys(layout.depth, 0)
    for wire in layout.wires:
        for target in wire.targets:
            ends[target] += 1
            if wire.when is not None:
                words[target] = 1 + len(WORDS[wire.when])
    return {index: max(widths[index], ends[index] + words[index]) for index in layout.depth}


def _tracks(nets: Sequence[_Net]) -> list[list[_Net]]:
    """Distribute the nets over as few rows as possible, without overlap, the upper ones first."""
    tracks: list[list[_Net]] = []
    busy: list[tuple[int, int]] = []
    free: list[int] = []
    for net in sorted(nets, key=lambda net: (net.low, net.high)):
        while busy and busy[0][0] < net.low:
            heappush(free, heappop(busy)[1])
        if free:
            number = heappop(free)
        else:
            number = len(tracks)
            tracks.append([])
        tracks[number].append(net)
        heappush(busy, (net.high, number))
    return tracks


def _joined(signs: Mapping[int, str]) -> list[Part]:
    """Characters by column, as pieces without gaps."""
    parts: list[Part] = []
    text, begin = "", 0
    for column in sorted(signs):
        if text and column != begin + len(text):
            parts.append(Part(begin, text))
            text = ""
        if not text:
            begin = column
        text += signs[column]
    return [*parts, Part(begin, text)] if text else parts
