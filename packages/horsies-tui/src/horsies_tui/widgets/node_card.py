"""What is to be said about a run and about one of its nodes. Pure: values in, texts out."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from horsies._text import plural
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.diagram import waits_for, why_skipped
from horsies_tui.data.models import WorkflowNode, WorkflowRow
from horsies_tui.text import inert, span
from horsies_tui.widgets.texts import status_content

_NAMES_SHOWN: Final = 4


def at_and_in(value: datetime, now: datetime) -> str:
    """A time, absolute and relative: `2026-03-04 12:30:00 UTC (in 25m)`."""
    left = value - now
    relative = f"in {span(left)}" if left.total_seconds() >= 0 else f"{span(-left)} ago"
    return f"{value:%Y-%m-%d %H:%M:%S} UTC ({relative})"


def run_facts(run: WorkflowRow) -> list[str]:
    """What is particular about a run: how it will end, when it starts, its deadline, and how often it was continued."""
    now = run.now
    facts: list[str] = []
    if run.ends_as is not None and not run.status.is_terminal:
        facts.append(f"undoing, will end {run.ends_as}")
    if run.start_at is not None and run.started_at is None and not run.status.is_terminal:
        facts.append(f"starts {at_and_in(run.start_at, now)}")
    if run.deadline is not None:
        facts.append(f"deadline {at_and_in(run.deadline, now)}")
    if run.continues:
        facts.append(f"continued {plural(run.continues, 'time')}")
    return facts


def names_of(indexes: Sequence[int], names: Mapping[int, str]) -> str:
    """The names of nodes, the first few of them."""
    more = len(indexes) - _NAMES_SHOWN
    return ", ".join(names.get(index, "?") for index in indexes[:_NAMES_SHOWN]) + (f" +{more}" if more > 0 else "")


def waits_of(node: WorkflowNode, names: Mapping[int, str]) -> str:
    """The nodes that a node waits for."""
    return names_of(node.dependencies, names) + (f" ({node.join_type})" if node.join_type != "all" else "")


def node_fields(node: WorkflowNode, names: Mapping[int, str], now: datetime) -> Iterable[tuple[str, object]]:
    """The card of a node: names and values, the most important first; None for what does not apply."""
    took = f"for {span(node.took)}" if node.took is not None and not node.status.is_terminal else None
    yield "node", node.node_id
    yield "status", status_content(node.status)
    yield "waits for", waits_for(node)
    if node.status is NodeStatus.WAITING:
        yield "until", at_and_in(node.wake_at, now) if node.wake_at is not None else "it is sent; without a time limit"
    if node.status is NodeStatus.SKIPPED:
        yield "skipped", why_skipped(node)
    yield "error", None if node.error_code is None else f"{node.error_code}: {node.error_message or ''}".rstrip(": ")
    if node.when_index is not None:
        taken = "yes" if node.when_value is not False else "no"
        yield "only if", f"{inert(names.get(node.when_index, '?'))} is {taken}"
    yield "runs", took
    yield "took", span(node.took) if node.took is not None and node.status.is_terminal else None
    yield "after", waits_of(node, names) or None
    yield "undoes", "what another node did" if node.is_compensation else None
    if node.sub_workflow_id is not None:
        yield "workflow", node.sub_workflow_id
        yield "", "which is PAUSED" if node.sub_workflow_status is WorkflowStatus.PAUSED else None
    yield "task", node.task_name if node.kind in ("task", "workflow", "map") else None
    yield "task id", node.task_id
