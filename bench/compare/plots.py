"""Plots as plain SVG: a few bars or lines need no library, and the files stay small enough to review."""

from collections.abc import Sequence
from html import escape
from pathlib import Path

from bench.compare.bars import figure
from bench.compare.results import METRICS, Results, order
from bench.compare.table import HORSIES

WIDTH, LEFT, RIGHT, ROW, TOP = 680, 130, 110, 24, 44
OURS, THEIRS, INK, FAINT = "#2f6f4f", "#9aa5b1", "#1f2933", "#7b8794"
CHARTS = {
    "drain": ("drain_noop", "drain_async"),
    "round-trip": ("trip_p50", "trip_p99"),
    "enqueue": ("enqueue_one", "enqueue_many"),
    "memory": ("memory",),
}


def draw(results: Results, directory: Path) -> list[Path]:
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for name, metrics in CHARTS.items():
        present = [metric for metric in metrics if metric in results.samples]
        if present:
            written.append(_write(directory / f"{name}.svg", _stack([_bars(results, metric) for metric in present])))
    points = [
        (processes, value) for processes in range(1, 9) if (value := results.median(f"scale_1x{processes}")) is not None
    ]
    if len(points) > 1:
        written.append(_write(directory / "processes.svg", _stack([_line(points)])))
    return written


def _bars(results: Results, key: str) -> tuple[str, int]:
    """One metric: a bar per system, a whisker from its smallest to its largest sample."""
    metric, systems = METRICS[key], results.samples[key]
    names = sorted(
        order(systems), key=lambda name: -(results.median(key, name) or 0) * (1 if metric.more_is_better else -1)
    )
    most = max(max(values) for values in systems.values()) or 1.0
    scale = (WIDTH - LEFT - RIGHT) / most
    hint = "more is better" if metric.more_is_better else "less is better"
    parts = [
        _text(0, 18, f"{metric.title}, {metric.unit}", size=14, weight="600"),
        _text(0, 34, hint, fill=FAINT, size=11),
    ]
    for row, name in enumerate(names):
        y = TOP + row * ROW
        middle = results.median(key, name) or 0.0
        low, high = min(systems[name]), max(systems[name])
        colour = OURS if name == HORSIES.name else THEIRS
        parts.append(_text(LEFT - 8, y + 14, name, anchor="end", weight="600" if name == HORSIES.name else "400"))
        parts.append(
            f'<rect x="{LEFT}" y="{y + 3}" width="{max(1.0, middle * scale):.1f}" height="14" fill="{colour}"/>'
        )
        parts.append(f'<path d="M{LEFT + low * scale:.1f} {y + 10}H{LEFT + high * scale:.1f}" stroke="{INK}"/>')
        parts.append(_text(LEFT + high * scale + 8, y + 14, figure(middle)))
    return "".join(parts), TOP + len(names) * ROW + 14


def _line(points: Sequence[tuple[int, float]]) -> tuple[str, int]:
    """Throughput by child processes."""
    height, most = 200, max(value for _, value in points)
    across = (WIDTH - LEFT - RIGHT) / max(1, points[-1][0] - points[0][0])

    def place(point: tuple[int, float]) -> tuple[float, float]:
        return LEFT + (point[0] - points[0][0]) * across, TOP + height * (1 - point[1] / most)

    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in map(place, points))
    parts = [_text(0, 18, "horsies: drain of no-ops by child processes, tasks/s", size=14, weight="600")]
    parts.append(f'<path d="M{path}" fill="none" stroke="{OURS}" stroke-width="2"/>')
    for point in points:
        x, y = place(point)
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{OURS}"/>')
        parts.append(_text(x, y - 8, figure(point[1]), anchor="middle", size=11))
        parts.append(_text(x, TOP + height + 18, str(point[0]), anchor="middle", fill=FAINT))
    return "".join(parts), TOP + height + 34


def _text(
    x: float, y: float, words: str, *, anchor: str = "start", size: int = 12, weight: str = "400", fill: str = INK
) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{fill}">{escape(words)}</text>'


def _stack(charts: Sequence[tuple[str, int]]) -> str:
    height = sum(tall for _, tall in charts)
    body, at = "", 0
    for chart, tall in charts:
        body += f'<g transform="translate(0 {at})">{chart}</g>'
        at += tall
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'font-family="system-ui, sans-serif"><rect width="{WIDTH}" height="{height}" fill="#ffffff"/>{body}</svg>\n'
    )


def _write(path: Path, content: str) -> Path:
    path.write_text(content)
    return path
