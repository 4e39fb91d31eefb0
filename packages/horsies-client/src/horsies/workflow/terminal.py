"""`TerminalResults`: the value of a run of a workflow without an output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from horsies.result import TaskError, TaskResult

if TYPE_CHECKING:
    from horsies.workflow.graph import Graph


class TerminalResults(dict[str, TaskResult[Any, TaskError]]):
    """The results of the nodes for which no other node waits, by node id: the value of a run without an output."""


def terminal_ids(graph: Graph[Any]) -> frozenset[str] | None:
    """The nodes whose results are the value of a run; None for a workflow with an output, or one that returns None."""
    if graph.output is not None or graph.returns is not TerminalResults:
        return None
    used = {at for wired in graph.wired for at in (*wired.dependencies, wired.decider) if at is not None}
    return frozenset(wired.node_id for at, wired in enumerate(graph.wired) if at not in used)


def terminal_results(graph: Graph[Any], texts: Mapping[str, str | None]) -> TerminalResults:
    """The value of a run from the stored results of its nodes, in the order of the definition."""
    nodes = [(wired.node_id, wired.node.key) for wired in graph.wired]
    return TerminalResults({name: key.decode(text) for name, key in nodes if (text := texts.get(name)) is not None})
