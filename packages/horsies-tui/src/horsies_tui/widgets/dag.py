"""The graph of a run with its edges, drawn where it is looked at. It scrolls in both directions, and arrow keys move
the cursor from node to node. Layout and lines are the client's (`horsies.workflow.layout`, `picture`)."""

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding, BindingType
from textual.geometry import Region, Size, Spacing
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from horsies.status import NodeStatus
from horsies.workflow.diagram import INSIDE, UNDOES
from horsies.workflow.layout import lay_out
from horsies.workflow.picture import Picture
from horsies_tui.data.models import WorkflowNode
from horsies_tui.text import fit, inert
from horsies_tui.themes import GLYPHS, variable_of
from horsies_tui.widgets.typed import app_of

_NAME_WIDTH: Final = 28
_AROUND: Final = Spacing(2, 6, 2, 6)
"""How much of the graph around the cursor is scrolled into view with it."""


def label(node: WorkflowNode) -> str:
    """The text of a node in the graph."""
    name = fit(inert(node.node_id), _NAME_WIDTH)
    return " ".join(
        [GLYPHS[node.status], *[UNDOES] * node.is_compensation, name, *[INSIDE] * node.is_subworkflow]
    )  # fmt: skip


def picture_of(nodes: Sequence[WorkflowNode]) -> Picture:
    return Picture(lay_out(nodes), {node.task_index: label(node) for node in nodes}, indent=1, measure=cell_len)


def joined_to(picture: Picture, index: int) -> tuple[set[int], set[int]]:
    """The nodes that this one waits for, and those that wait for it."""
    before, after = set[int](), set[int]()
    for wire in picture.layout.wires:
        if index in wire.targets:
            before.update(wire.sources)
        if index in wire.sources:
            after.update(wire.targets)
    return before, after


def step(picture: Picture, index: int, way: str) -> int | None:
    """The node to which an arrow key moves: the neighbour in the layer; above and below, the nearest of those that the
    node is joined to, or else of the next layer."""
    depth = picture.layout.depth
    layers = picture.layout.nodes()
    layer = layers[depth[index]]
    if way in ("left", "right"):
        at = layer.index(index) + (1 if way == "right" else -1)
        return layer[at] if 0 <= at < len(layer) else None
    before, after = joined_to(picture, index)
    beside = depth[index] + (1 if way == "down" else -1)
    found = after if way == "down" else before
    found = found or set(layers[beside] if 0 <= beside < len(layers) else ())
    column = picture.places[index].column
    return min(
        found,
        key=lambda one: (abs(depth[one] - depth[index]), abs(picture.places[one].column - column), one),
        default=None,
    )


class Dag(ScrollView, can_focus=True):
    """The picture of one run. The cursor is on the node `chosen`."""

    COMPONENT_CLASSES: ClassVar[set[str]] = {"dag--line"}
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "Open"),
        *(
            Binding(f"{way},{key}", f"move('{way}')", way.capitalize(), show=False)
            for way, key in (("up", "k"), ("down", "j"), ("left", "h"), ("right", "l"))
        ),
        Binding("home,g", "end(0)", "First node", show=False),
        Binding("end,G", "end(-1)", "Last node", show=False),
    ]

    class Moved(Message):
        """The cursor is on another node."""

    class Opened(Message):
        """The node under the cursor is to be opened."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: int | None = None
        self._by_index: dict[int, WorkflowNode] = {}
        self._shape: object = None
        self._picture = picture_of(())
        self._near = set[int]()

    # -- showing ---------------------------------------------------------------------------------

    def show(self, nodes: Sequence[WorkflowNode]) -> None:
        self._by_index = {node.task_index: node for node in nodes}
        # the states of nodes change more often than the graph, and a state changes no width
        shape = [
            (one.task_index, one.node_id, one.dependencies, one.when_index, one.when_value, one.is_subworkflow)
            for one in nodes
        ]
        if shape != self._shape:
            self._shape, self._picture = shape, picture_of(nodes)
            self.virtual_size = Size(self._picture.width + 1, self._picture.height)
        if self.chosen not in self._by_index:
            self.choose(self._first())
        self.refresh()

    def _first(self) -> int | None:
        """Where the cursor begins: a node that waits for a signal, for a time, or the first one."""
        waiting = [one for one in self._by_index.values() if one.status is NodeStatus.WAITING]
        if waiting:
            return min(waiting, key=lambda one: (one.kind != "signal", one.task_index)).task_index
        return next((index for layer in self._picture.layout.nodes() for index in layer), None)

    def in_layers(self) -> list[WorkflowNode]:
        """The nodes layer by layer, each by index."""
        return [self._by_index[index] for layer in self._picture.layout.nodes() for index in sorted(layer)]

    def choose(self, index: int | None) -> None:
        """Move the cursor to a node, and scroll there."""
        self.chosen = index if index in self._by_index else None
        self._near = set[int]()
        if self.chosen is not None:
            before, after = joined_to(self._picture, self.chosen)
            self._near = before | after
            place = self._picture.places[self.chosen]
            region = Region(place.column, place.row, max(1, place.width), 1)
            self.scroll_to_region(region, spacing=_AROUND, animate=False, force=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        left, top = self.scroll_offset
        width = self.size.width
        base, line = self.rich_style, self.get_component_rich_style("dag--line")
        segments: list[Segment] = []
        at = 0
        for part in self._picture.row(top + y, left, left + width):
            style = base + line
            text = part.text
            if part.node is not None:
                text, style = label(self._by_index[part.node]), base + self._style(part.node)
            segments += [Segment(" " * (part.column - at), base), Segment(text, style)]
            at = part.column + cell_len(text)
        return Strip(segments, at).crop_extend(left, left + width, base)

    def _style(self, index: int) -> Style:
        colour = app_of(self).theme_variables.get(variable_of(self._by_index[index].status), "")
        style = Style.parse(colour) if colour else Style()
        if index == self.chosen:
            style += Style(bold=True, reverse=True)
        return style + Style(underline=True) if index in self._near else style

    def on_resize(self) -> None:
        self.choose(self.chosen)  # before the first layout there was no room to scroll in

    # -- keys and mouse --------------------------------------------------------------------------

    def _move(self, index: int | None) -> None:
        if index is not None and index != self.chosen:
            self.choose(index)
            self.post_message(self.Moved())

    def action_move(self, way: str) -> None:
        if self.chosen is not None:
            self._move(step(self._picture, self.chosen, way))

    def action_end(self, layer: int) -> None:
        layers = self._picture.layout.nodes()
        if layers:
            self._move(layers[layer][layer])

    def action_open(self) -> None:
        if self.chosen is not None:
            self.post_message(self.Opened())

    def on_click(self, event: events.Click) -> None:
        at = event.get_content_offset(self)
        if at is None:
            return
        left, top = self.scroll_offset
        for part in self._picture.row(top + at.y, left + at.x, left + at.x + 1):
            if part.node is not None and part.node == self.chosen:
                self.action_open()
            else:
                self._move(part.node)
