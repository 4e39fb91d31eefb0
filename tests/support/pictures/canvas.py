"""Boxes, lines with corners, and texts, written as SVG."""

from collections.abc import Sequence
from html import escape

Point = tuple[float, float]
# Fill and border of a box, by its kind: on a light page, on a dark one.
_BOXES = {
    "card": (("#ffffff", "#d5dae2"), ("#151a21", "#343d4a")),
    "box": (("#eef2f8", "#5b6b84"), ("#222a36", "#8fa0ba")),
    "inner": (("#ffffff", "#8a97ab"), ("#151a21", "#66758c")),
    "good": (("#e2f3e6", "#2e7d46"), ("#173322", "#6fc48a")),
    "bad": (("#fbe6e6", "#b3393f"), ("#3b1d20", "#ec8b90")),
    "late": (("#fbf0d9", "#96690f"), ("#372a10", "#e0b256")),
    "quiet": (("#ececf0", "#6a6a78"), ("#2a2a33", "#a9a9b8")),
    "busy": (("#dfeafc", "#2a62b8"), ("#1a2b48", "#7fb0f5")),
}
_LINES = {
    "": ("#45505f", "#b4bfcd"), "red": ("#b3393f", "#ec8b90"), "amber": ("#96690f", "#e0b256"),
    "grey": ("#6a6a78", "#a9a9b8"), "green": ("#2e7d46", "#6fc48a"), "blue": ("#2a62b8", "#7fb0f5"),
}  # fmt: skip
_TEXTS = {"text": ("#1c2430", "#e4e9f0"), ".small": ("#45505f", "#b4bfcd")}
_SHAPES = """
text { font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif; font-size: 14px }
.small { font-size: 12.5px }
.name { font-weight: 600 }
rect { stroke-width: 1.5 }
.line { fill: none; stroke-width: 1.6 }
.dashed { stroke-dasharray: 6 4 }
.bold { stroke-width: 3 }
"""


def _style() -> str:
    schemes: list[str] = []
    for scheme in (0, 1):
        rules = [f".{kind} {{ fill: {of[scheme][0]}; stroke: {of[scheme][1]} }}" for kind, of in _BOXES.items()]
        rules += [f"{kind} {{ fill: {of[scheme]} }}" for kind, of in _TEXTS.items()]
        for colour, of in _LINES.items():
            name = f".{colour}" if colour else ""
            rules += [f".line{name} {{ stroke: {of[scheme]} }}", f".head{name} {{ fill: {of[scheme]} }}"]
        schemes.append("\n".join(rules))
    light, dark = schemes
    return f"{_SHAPES}{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


class Canvas:
    """A picture of this size. `title` is what a screen reader says of it."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self._size = (width, height)
        self._title = title
        self._parts: list[str] = []

    def svg(self) -> str:
        width, height = self._size
        return "\n".join([
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
            f'     width="{width}" height="{height}" role="img">',
            f"  <title>{escape(self._title)}</title>",
            f"  <style>{_style()}</style>",
            f'  <rect class="card" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>',
            *(f"  {part}" for part in self._parts),
            "</svg>",
            "",
        ])  # fmt: skip

    def box(
        self, left: float, top: float, width: float, height: float, *, kind: str = "box", corner: float = 8
    ) -> None:
        self._parts.append(
            f'<rect class="{kind}" x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}" rx="{corner:g}"/>'
        )

    def text(self, x: float, y: float, text: str, *, kind: str = "", anchor: str = "middle") -> None:
        marked = f' class="{kind}"' if kind else ""
        self._parts.append(f'<text{marked} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>')

    def named_box(
        self, left: float, top: float, width: float, height: float, name: str, *lines: str, kind: str = "box"
    ) -> None:
        """A box with its name, and lines below it, in the middle."""
        self.box(left, top, width, height, kind=kind)
        first = top + height / 2 + 5 - 9 * len(lines)
        self.text(left + width / 2, first, name, kind="name")
        for number, line in enumerate(lines, 1):
            self.text(left + width / 2, first + 18 * number, line, kind="small")

    def dot(self, x: float, y: float, *, colour: str = "", radius: float = 5) -> None:
        self._parts.append(f'<circle class="{_of("head", colour)}" cx="{x:g}" cy="{y:g}" r="{radius:g}"/>')

    def cross(self, x: float, y: float, *, colour: str = "red", radius: float = 6) -> None:
        size = 2 * radius
        lines = f"M {x - radius:g} {y - radius:g} l {size:g} {size:g} m 0 {-size:g} l {-size:g} {size:g}"
        self._parts.append(f'<path class="{_of("line", colour)} bold" d="{lines}"/>')

    def line(
        self, *points: Point, colour: str = "", is_dashed: bool = False, has_head: bool = True, edge: str | None = None
    ) -> None:
        """A line through these points with round corners and, at its end, the head of an arrow."""
        classes = _of("line", colour) + (" dashed" if is_dashed else "")
        named = f' data-edge="{escape(edge)}"' if edge else ""
        shown = [*points[:-1], _back(points[-2], points[-1], 8)] if has_head else points
        self._parts.append(f'<path class="{classes}"{named} d="{_path(shown)}"/>')
        if has_head:
            self._parts.append(f'<path class="{_of("head", colour)}" d="{_head(points[-2], points[-1])}"/>')


def _of(kind: str, colour: str) -> str:
    return f"{kind} {colour}" if colour else kind


def _back(start: Point, end: Point, by: float) -> Point:
    """The point that lies `by` before the end of this line."""
    length = ((end[0] - start[0]) ** 2 + (end[1] - start[1]) ** 2) ** 0.5
    return end[0] - (end[0] - start[0]) / length * by, end[1] - (end[1] - start[1]) / length * by


def _path(points: Sequence[Point], radius: float = 9) -> str:
    parts = [f"M {points[0][0]:g} {points[0][1]:g}"]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        to, away = _back(before, corner, radius), _back(after, corner, radius)
        parts.append(f"L {to[0]:g} {to[1]:g} Q {corner[0]:g} {corner[1]:g} {away[0]:g} {away[1]:g}")
    parts.append(f"L {points[-1][0]:g} {points[-1][1]:g}")
    return " ".join(parts)


def _head(start: Point, end: Point) -> str:
    base = _back(start, end, 10)
    across = ((end[1] - base[1]) * 0.45, (base[0] - end[0]) * 0.45)
    left, right = (base[0] + across[0], base[1] + across[1]), (base[0] - across[0], base[1] - across[1])
    return f"M {end[0]:g} {end[1]:g} L {left[0]:g} {left[1]:g} L {right[0]:g} {right[1]:g} Z"
