"""Draws a run as text, with lines for the edges or as a list, or as a Mermaid flowchart for documents."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Final

from horsies._text import one_line, plural, short
from horsies.errors import UsageError
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.layout import Layout, lay_out
from horsies.workflow.picture import Picture

if TYPE_CHECKING:
    from horsies.workflow.info import WorkflowInfo, WorkflowNodeInfo

MARKS: Final = {
    NodeStatus.PENDING: "·",
    NodeStatus.READY: "○",
    NodeStatus.WAITING: "◷",
    NodeStatus.ENQUEUED: "◔",
    NodeStatus.RUNNING: "▶",
    NodeStatus.COMPLETED: "✓",
    NodeStatus.FAILED: "✗",
    NodeStatus.SKIPPED: "–",
}
INSIDE: Final = "⊞"
UNDOES: Final = "↩"
_SKIPPED: Final = {
    "upstream": "a node before it failed or was skipped",
    "not_taken": "this branch was not taken",
    "cancelled": "the run was cancelled",
    "deadline": "the run's deadline passed",
}
_MAX_LINES: Final = 200
_MAX_WIDTH: Final = 120
"""A wider picture is drawn as a list: a terminal would break its lines."""
_MAX_NAME: Final = 40
_SHAPES: Final = {
    "signal": ('{{"', '"}}'), "sleep": ('(["', '"])'), "workflow": ('[["', '"]]'), "map": ('[["', '"]]'),
}  # fmt: skip
_ESCAPED: Final = {ord(sign): f"#{ord(sign)};" for sign in "#&<>`"} | {ord('"'): "#quot;"}
"""In a label, Mermaid reads tags, entities and Markdown."""


def draw(info: "WorkflowInfo | None", nodes: "Sequence[WorkflowNodeInfo]", style: str = "text") -> str:
    """Draw the run; `style` is text or mermaid."""
    if style not in ("text", "mermaid"):
        raise UsageError(f"a diagram is drawn as text or mermaid, not {style!r}")
    if info is None:
        return "there is no such workflow"
    return _mermaid(info, nodes) if style == "mermaid" else _text(info, nodes)


# -- words ---------------------------------------------------------------------------------------


def clock(value: datetime, seen: datetime) -> str:
    """A time in UTC, with its date unless that is the date of `seen`, a time shortly before now."""
    return value.strftime("%H:%M UTC" if value.date() == seen.date() else "%Y-%m-%d %H:%M UTC")


def waits_for(node: "WorkflowNodeInfo") -> str | None:
    """What a WAITING node waits for, without the time: `signal approve`, `sleep`."""
    if node.status is not NodeStatus.WAITING:
        return None
    return f"signal {one_line(node.signal_name)}" if node.signal_name is not None else one_line(node.kind)


def why_skipped(node: "WorkflowNodeInfo") -> str | None:
    """Why a SKIPPED node was skipped; None for other nodes, and when the row does not say so."""
    if node.status is not NodeStatus.SKIPPED or node.skip_reason is None:
        return None
    return _SKIPPED.get(node.skip_reason, one_line(node.skip_reason))


def _until(info: "WorkflowInfo", node: "WorkflowNodeInfo") -> str | None:
    """`signal approve until 12:30 UTC`, `sleeps until 12:30 UTC`."""
    waits = waits_for(node)
    if waits is None:
        return None
    until = f" until {clock(node.wake_at, info.updated_at)}" if node.wake_at is not None else ""
    return f"sleeps{until}" if node.kind == "sleep" else f"{waits}{until}"


def _facts(info: "WorkflowInfo") -> Iterable[str]:
    """What is particular about the run, while it has not ended."""
    if info.status.is_terminal:
        return
    if info.ends_as is not None:
        yield f"undoing, will end {info.ends_as}"
    if info.start_at is not None and info.started_at is None:
        yield f"starts at {clock(info.start_at, info.updated_at)}"
    if info.deadline is not None:
        yield f"deadline {clock(info.deadline, info.updated_at)}"
    if info.continues:
        yield f"continued {plural(info.continues, 'time')}"


def _notes(info: "WorkflowInfo", node: "WorkflowNodeInfo") -> Iterable[str]:
    """What a line or a mark does not say about a node."""
    if (waits := _until(info, node)) is not None:
        yield waits
    if (why := why_skipped(node)) is not None:
        yield f"skipped: {why}"
    if node.is_compensation:
        yield "undoes a node"
    if node.sub_workflow_id:
        paused = ", which is PAUSED" if node.sub_workflow_status is WorkflowStatus.PAUSED else ""
        yield f"= workflow {node.sub_workflow_id}{paused}"


# -- text ----------------------------------------------------------------------------------------


def _text(info: "WorkflowInfo", nodes: "Sequence[WorkflowNodeInfo]") -> str:
    ended = sum(node.status.is_terminal for node in nodes)
    lines = [f"{one_line(info.name)} {info.id}: {info.status}, {ended} of {len(nodes)} nodes ended"]
    lines += [", ".join(facts)] if (facts := list(_facts(info))) else []
    layout = lay_out(nodes)
    drawn = _picture(info, nodes, layout) if len(nodes) > 1 else None
    lines += drawn if drawn is not None else _list(info, nodes, layout)
    if drawn is not None and layout.left_out:
        lines.append(f"not drawn: {plural(len(layout.left_out), 'edge')} that would not go downwards")
    return "\n".join(lines)


def _picture(info: "WorkflowInfo", nodes: "Sequence[WorkflowNodeInfo]", layout: Layout) -> list[str] | None:
    """The graph with its edges, its marks and what is to be said of its nodes; None when it is too large."""
    if len(nodes) > _MAX_LINES:
        return None
    picture = Picture(layout, {node.task_index: _label(node) for node in nodes})
    if picture.width > _MAX_WIDTH or picture.height > _MAX_LINES:
        return None
    states = {node.status for node in nodes}
    legend = [f"{mark} {status.lower()}" for status, mark in MARKS.items() if status in states]
    legend += [f"{INSIDE} workflow"] * any(node.is_subworkflow for node in nodes)
    legend += [f"{UNDOES} undoes a node"] * any(node.is_compensation for node in nodes)
    told = {_name(node): ", ".join(notes) for node in nodes if (notes := list(_notes(info, node)))}
    width = max(map(len, told), default=0)
    return [
        "", *picture.lines(), "", "  ".join(legend), *(f"{name:<{width}}  {notes}" for name, notes in told.items())
    ]  # fmt: skip


def _name(node: "WorkflowNodeInfo") -> str:
    return short(one_line(node.node_id), _MAX_NAME)


def _label(node: "WorkflowNodeInfo") -> str:
    parts = [MARKS[node.status], *[UNDOES] * node.is_compensation, _name(node), *[INSIDE] * node.is_subworkflow]
    return " ".join([*parts, *[f"({node.join_type})"] * (node.join_type != "all")])


def _list(info: "WorkflowInfo", nodes: "Sequence[WorkflowNodeInfo]", layout: Layout) -> list[str]:
    lines: list[str] = []
    depth = layout.depth
    names = {node.task_index: one_line(node.node_id) for node in nodes}
    width = min(_MAX_NAME, max((len(name) for name in names.values()), default=0))
    for node in sorted(nodes, key=lambda node: (depth[node.task_index], node.task_index))[:_MAX_LINES]:
        waits = ", ".join(names.get(index, "?") for index in node.dependencies[:5])
        if len(node.dependencies) > 5:
            waits += f" and {len(node.dependencies) - 5} more"
        join = f" ({node.join_type})" if node.join_type != "all" else ""
        if node.when_index is not None:
            taken = "yes" if node.when_value is not False else "no"
            join += f" if {names.get(node.when_index, '?')} is {taken}"
        name = f"{'  ' * min(depth[node.task_index], 10)}{MARKS[node.status]} {names[node.task_index]:<{width}}"
        told = "".join(f" {note}" if note.startswith("=") else f"  {note}" for note in _notes(info, node))
        lines.append(f"{name}  {node.status}{f'  <- {waits}{join}' if waits or join else ''}{told}".rstrip())
    if len(nodes) > _MAX_LINES:
        lines.append(f"... and {len(nodes) - _MAX_LINES} more nodes")
    return lines


# -- Mermaid -------------------------------------------------------------------------------------


def _mermaid(info: "WorkflowInfo", nodes: "Sequence[WorkflowNodeInfo]") -> str:
    lines = ["flowchart TD"]
    for node in nodes:
        mark = f"{UNDOES} " if node.is_compensation else ""
        words = [mark + one_line(node.node_id), str(node.status), _until(info, node), why_skipped(node)]
        label = "<br/>".join(word.translate(_ESCAPED) for word in words if word is not None)
        begin, end = _SHAPES.get(node.kind, ('["', '"]'))
        kind = "not_taken" if node.skip_reason == "not_taken" else node.status.lower()
        lines.append(f"    n{node.task_index}{begin}{label}{end}:::{kind}")
        sources = dict.fromkeys(index for index in node.dependencies if index != node.when_index)
        lines += [f"    n{index} --> n{node.task_index}" for index in sources]
        if node.when_index is not None:
            taken = "yes" if node.when_value is not False else "no"
            lines.append(f"    n{node.when_index} -. {taken} .-> n{node.task_index}")
    lines += [
        "    classDef completed fill:#d3f9d8,stroke:#2b8a3e",
        "    classDef failed fill:#ffe3e3,stroke:#c92a2a",
        "    classDef skipped fill:#f1f3f5,stroke:#868e96",
        "    classDef not_taken fill:#f8f9fa,stroke:#adb5bd,stroke-dasharray:4,color:#868e96",
        "    classDef running fill:#d0ebff,stroke:#1971c2",
        "    classDef waiting fill:#fff3bf,stroke:#e67700",
    ]
    return "\n".join(lines)
