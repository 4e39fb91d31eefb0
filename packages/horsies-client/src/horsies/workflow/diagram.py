"""Draws a run: as indented text for a terminal, or as a Mermaid flowchart for documents."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from horsies._text import one_line
from horsies.errors import UsageError
from horsies.status import NodeStatus, WorkflowStatus

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
_MAX_LINES: Final = 200


def draw(info: "WorkflowInfo | None", nodes: "Sequence[WorkflowNodeInfo]", style: str = "text") -> str:
    """Draw the run; `style` is text or mermaid."""
    if style not in ("text", "mermaid"):
        raise UsageError(f"a diagram is drawn as text or mermaid, not {style!r}")
    if info is None:
        return "there is no such workflow"
    return _mermaid(nodes) if style == "mermaid" else _text(info, nodes)


def levels(nodes: "Sequence[WorkflowNodeInfo]") -> dict[int, int]:
    """The distance of each node from the start, by index."""
    found: dict[int, int] = {}
    left = {node.task_index: set(node.dependencies) for node in nodes}
    level = 0
    while left:
        ready = [index for index, waits in left.items() if not waits & left.keys()] or list(left)
        for index in ready:
            found[index] = level
            del left[index]
        level += 1
    return found


def _text(info: "WorkflowInfo", nodes: "Sequence[WorkflowNodeInfo]") -> str:
    depth = levels(nodes)
    names = {node.task_index: one_line(node.node_id) for node in nodes}
    ended = sum(node.status.is_terminal for node in nodes)
    lines = [f"{one_line(info.name)} {info.id}: {info.status}, {ended} of {len(nodes)} nodes ended"]
    width = min(40, max((len(name) for name in names.values()), default=0))
    for node in sorted(nodes, key=lambda node: (depth[node.task_index], node.task_index))[:_MAX_LINES]:
        waits = ", ".join(names[index] for index in node.dependencies[:5])
        if len(node.dependencies) > 5:
            waits += f" and {len(node.dependencies) - 5} more"
        join = f" ({node.join_type})" if node.join_type != "all" else ""
        inside = f" = workflow {node.sub_workflow_id}" if node.sub_workflow_id else ""
        if node.sub_workflow_status is WorkflowStatus.PAUSED:
            inside += ", which is PAUSED"
        name = f"{'  ' * min(depth[node.task_index], 10)}{MARKS[node.status]} {names[node.task_index]:<{width}}"
        lines.append(f"{name}  {node.status}{f'  <- {waits}{join}' if waits else ''}{inside}".rstrip())
    if len(nodes) > _MAX_LINES:
        lines.append(f"... and {len(nodes) - _MAX_LINES} more nodes")
    return "\n".join(lines)


def _mermaid(nodes: "Sequence[WorkflowNodeInfo]") -> str:
    lines = ["flowchart TD"]
    for node in nodes:
        label = one_line(node.node_id).replace('"', "#quot;")
        lines.append(f'    n{node.task_index}["{label}<br/>{node.status}"]:::{node.status.lower()}')
        lines += [f"    n{index} --> n{node.task_index}" for index in node.dependencies]
    lines += [
        "    classDef completed fill:#d3f9d8,stroke:#2b8a3e",
        "    classDef failed fill:#ffe3e3,stroke:#c92a2a",
        "    classDef skipped fill:#f1f3f5,stroke:#868e96",
        "    classDef running fill:#d0ebff,stroke:#1971c2",
    ]
    return "\n".join(lines)
