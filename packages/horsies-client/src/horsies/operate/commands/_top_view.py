"""The picture of `horsies top`: lines of text for a terminal of any size. Pure: no clock, no terminal."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from horsies._colours import Colour, colour_of, painted
from horsies._text import one_line, plural, short, span
from horsies.operate.commands._print import text_width
from horsies.operate.commands._top_reading import TopFigures, waited
from horsies.operate.views import QueueStatus, TaskSummary, WorkerLiveness, WorkerStatus

_KEYS: Final = "q quit  p pause  s sort  r refresh"
_ESSENTIAL: Final = 3
"""A section with rows has at least so many lines, if the terminal has room: its head and two rows."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell of a table; `is_state` has a colour by its word."""

    text: str
    is_state: bool = False


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    is_right: bool = False
    least: int = 0
    """A column may be cut to this width; 0: it keeps its width."""


@dataclass(frozen=True, slots=True)
class Look:
    """How to show it."""

    width: int
    height: int | None
    """None: as many lines as there are."""
    sort: str = "age"
    is_coloured: bool = False
    notice: str = ""
    """A problem, such as a database that does not answer."""
    is_paused: bool = False
    is_live: bool = True


def picture(seen: TopFigures, look: Look) -> list[str]:
    """The lines, none wider than the terminal, and not more than it has."""
    head = [_title(seen, look), _totals(seen, look)]
    if look.notice:
        head.insert(0, _painted(fitted(look.notice, look.width), look, Colour.RED, Colour.BOLD))
    foot = [_painted(fitted(_footer(look), look.width), look, Colour.DIM)] if look.is_live else []
    sections = [
        section
        for section in (_workers(seen, look), _queues(seen, look), _stale(seen, look), _running(seen, look))
        if section
    ]
    if look.height is None:
        body = [line for section in sections for line in ["", *section]]
        return [*head, *body, *foot]
    room = max(look.height - len(head) - len(foot), 0)
    body = [line for section in _shared(sections, room) for line in ["", *section]][:room]
    body += [""] * (room - len(body))
    return [*head, *body, *foot][: look.height]


def _shared(sections: Sequence[list[str]], room: int) -> list[list[str]]:
    """Cut sections to the room, each with its blank line: short ones stay whole, the rest is shared."""
    sizes = {number: len(section) + 1 for number, section in enumerate(sections)}
    granted: dict[int, int] = {}
    left, open_ = room, sorted(sizes, key=lambda number: sizes[number])
    while open_:
        number = open_.pop(0)
        granted[number] = min(sizes[number], max(left // (len(open_) + 1), 0))
        left -= granted[number]
    kept: list[list[str]] = []
    for number, section in enumerate(sections):
        lines = granted[number] - 1
        if lines >= len(section):
            kept.append(section)
        elif lines >= _ESSENTIAL:
            kept.append([*section[: lines - 1], f"  and {len(section) - lines + 1:,} more"])
        elif lines > 0:
            kept.append(section[:lines])
    return kept


def _title(seen: TopFigures, look: Look) -> str:
    live = [one for one in seen.figures.workers if one.liveness.is_there]
    slots = sum(one.processes for one in live)
    running = sum(one.running for one in seen.figures.queues)
    text = (
        f"horsies top  {seen.at:%H:%M:%S}  {plural(len(live), 'worker')}, {plural(slots, 'process', 'processes')}, "
        f"{running:,} running"
    )
    if look.is_paused:
        text += "  PAUSED"
    return _painted(fitted(text, look.width), look, Colour.BOLD)


def _totals(seen: TopFigures, look: Look) -> str:
    queues = seen.figures.queues
    ready, delayed = sum(one.ready for one in queues), sum(one.delayed for one in queues)
    more = "≥ " if any(one.is_bounded for one in queues) else ""
    runs = sum(seen.figures.workflows.values())
    stale = sum(seen.figures.stale.values())
    parts = [f"ready {more}{ready:,}", f"delayed {more}{delayed:,}", f"stale {stale:,}", f"workflows {runs:,}"]
    within = span(seen.figures.ended.span)
    parts.append(f"in the last {within}: ended {seen.rate:,.1f}/s, failed {seen.failed:,.2f}/s")
    return fitted("  ".join(parts), look.width)


def _footer(look: Look) -> str:
    return f"{_KEYS}  (sorted by {look.sort})"


# -- sections ------------------------------------------------------------------------------------


def _workers(seen: TopFigures, look: Look) -> list[str]:
    # what is lost comes first, and what has shut down last: a short terminal shows only the first rows
    order = [WorkerLiveness.DEAD, WorkerLiveness.LATE, WorkerLiveness.ALIVE, WorkerLiveness.STOPPED]
    workers = sorted(
        seen.figures.workers, key=lambda one: (order.index(one.liveness), -one.holds_running, one.hostname)
    )
    if not workers:
        return [_painted("no worker was seen lately: nothing is claimed", look, Colour.YELLOW)]
    columns = [
        Column("WORKER", least=8), Column("STATE"), Column("SEEN", True), Column("SLOTS", True), Column("RUN", True),
        Column("CLAIMED", True), Column("MEMORY", True), Column("CPU", True), Column("QUEUES", least=6),
    ]  # fmt: skip
    return _table(columns, [_worker(one) for one in workers], look)


def _worker(one: WorkerStatus) -> list[Cell]:
    memory = (one.memory_usage_mb or 0) + (one.children_memory_mb or 0)
    texts = [
        f"{one.processes:,}", f"{one.holds_running:,}", f"{one.holds_claimed:,}",
        f"{memory:,.0f} MB" if memory else "-", f"{one.cpu_percent:.0f} %" if one.cpu_percent is not None else "-",
        ", ".join(one.queues),
    ]  # fmt: skip
    first = [Cell(f"{one.hostname}:{one.pid}"), Cell(one.standing, True), Cell(span(one.age))]
    return [*first, *map(Cell, texts)]


def _queues(seen: TopFigures, look: Look) -> list[str]:
    queues = sorted(seen.figures.queues, key=lambda one: (-waited(one.oldest_ready), -one.running, one.name))
    if not queues:
        return []
    columns = [
        Column("QUEUE", least=8), Column("READY", True), Column("DELAYED", True), Column("CLAIMED", True),
        Column("RUNNING", True), Column("OLDEST", True), Column("WORKERS", True), Column("STATE"),
    ]  # fmt: skip
    return _table(columns, [_queue(one) for one in queues], look)


def _queue(one: QueueStatus) -> list[Cell]:
    more = "≥ " if one.is_bounded else ""
    texts = [
        one.name, f"{more if one.ready else ''}{one.ready:,}", f"{more if one.delayed else ''}{one.delayed:,}",
        f"{one.claimed:,}", f"{one.running:,}", span(one.oldest_ready) if one.oldest_ready is not None else "-",
        f"{one.served_by:,}" if one.served_by else "none",
    ]  # fmt: skip
    return [*map(Cell, texts), Cell(f"paused {span(one.paused_for)}" if one.paused_for is not None else "-", True)]


def _stale(seen: TopFigures, look: Look) -> list[str]:
    if not seen.stale:
        return []
    columns = [
        Column("STALE TASK"), Column("NAME", least=8), Column("QUEUE", least=6), Column("STATUS"),
        Column("SILENT", True), Column("WORKER", least=8),
    ]  # fmt: skip
    rows = [
        [
            Cell(task.id), Cell(task.task_name), Cell(task.queue_name), Cell(task.status, True),
            Cell(span(task.silence)), Cell(task.worker_hostname or task.claimed_by_worker_id or "-"),
        ]
        for task, _ in seen.stale
    ]  # fmt: skip
    return _table(columns, rows, look)


def _running(seen: TopFigures, look: Look) -> list[str]:
    if not seen.running:
        return []
    columns = [
        Column("RUNNING TASK"), Column("NAME", least=8), Column("QUEUE", least=6), Column("FOR", True),
        Column("TRIES", True), Column("WORKER", least=8),
    ]  # fmt: skip
    lines = _table(columns, [_task(one) for one in seen.sorted(look.sort)], look)
    if seen.running_is_cut:
        lines.append(fitted(f"  there are more: {len(seen.running):,} of them were read", look.width))
    return lines


def _task(one: TaskSummary) -> list[Cell]:
    worker = one.worker_hostname or one.claimed_by_worker_id or "-"
    tries = f"{one.retry_count}/{one.max_retries}"
    return [*map(Cell, (one.id, one.task_name, one.queue_name, span(one.age), tries, worker))]


# -- text ----------------------------------------------------------------------------------------


def _table(columns: Sequence[Column], rows: Sequence[Sequence[Cell]], look: Look) -> list[str]:
    """Aligned columns. When they are too wide, those that may be cut share what is left."""
    lines = [
        [Cell(column.name) for column in columns],
        *([Cell(one_line(c.text), c.is_state) for c in r] for r in rows),
    ]
    widths = [max(text_width(line[at].text) for line in lines) for at in range(len(columns))]
    excess = sum(widths) + 2 * (len(columns) - 1) - look.width
    while excess > 0:
        cuttable = [at for at, column in enumerate(columns) if column.least and widths[at] > column.least]
        if not cuttable:
            break
        widest = max(cuttable, key=lambda at: widths[at])
        widths[widest] -= 1
        excess -= 1
    out: list[str] = []
    for number, line in enumerate(lines):
        parts: list[str] = []
        room = look.width
        for column, one, wanted in zip(columns, line, widths, strict=True):
            width = min(wanted, room)
            if width <= 0:
                break
            text = fitted(one.text, width)
            space = " " * (width - text_width(text))
            shown = _cell(text, one, look, is_head=number == 0)
            parts.append(space + shown if column.is_right else shown + space)
            room -= width + 2
        out.append("  ".join(parts).rstrip())
    return out


def _cell(text: str, one: Cell, look: Look, *, is_head: bool) -> str:
    if is_head:
        return _painted(text, look, Colour.BOLD)
    colour = colour_of(one.text) if one.is_state else None
    return text if colour is None else _painted(text, look, colour)


def _painted(text: str, look: Look, *colours: Colour) -> str:
    return painted(text, *colours) if look.is_coloured else text


def fitted(text: str, width: int) -> str:
    """The text on one line, cut to a width in cells of the terminal, with an ellipsis."""
    text = one_line(short(text, 4 * width + 4))
    if text_width(text) <= width:
        return text
    kept = ""
    for character in text:
        if text_width(kept + character) > width - 1:
            break
        kept += character
    return f"{kept}…" if width > 0 else ""
