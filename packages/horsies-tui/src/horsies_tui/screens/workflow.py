"""One run: its graph with the state of every node, what the selected node waits for, and the way to its task."""

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, VerticalScroll
from textual.content import Content
from textual.widgets import DataTable, Static

from horsies.status import NodeStatus
from horsies.workflow.diagram import INSIDE
from horsies_tui.actions import BY_ID, Action
from horsies_tui.data.acting import node_state
from horsies_tui.data.models import WorkflowDetail, WorkflowNode
from horsies_tui.data.source import Target
from horsies_tui.messages import ActionRequested
from horsies_tui.screens.live import LiveScreen
from horsies_tui.screens.signal import SignalScreen
from horsies_tui.screens.task import TaskScreen
from horsies_tui.text import as_json, bar, dotted, inert, span
from horsies_tui.themes import MUTED, badge, variable_of
from horsies_tui.widgets.dag import Dag
from horsies_tui.widgets.live_table import Column, Columns
from horsies_tui.widgets.node_card import node_fields, run_facts, waits_of
from horsies_tui.widgets.panel import Panel, TablePanel
from horsies_tui.widgets.texts import Fields

_NODES: Final[Columns[tuple[WorkflowNode, dict[int, str]]]] = (
    Column("status", 11, lambda row: badge(row[0].status), lambda row: row[0].status),
    Column("node", 0, lambda row: row[0].node_id + f" {INSIDE}" * row[0].is_subworkflow, least=14),
    Column("task", 22, lambda row: row[0].task_name, MUTED, above=96),
    Column("took", 6, lambda row: dotted(row[0].took, span), MUTED, right=True),
    Column("waits for", 26, lambda row: waits_of(*row), MUTED, above=76),
    Column("error", 18, lambda row: row[0].error_code or "", "FAILED", above=110),
)
"""Of a node, and the names of all nodes."""


class WorkflowScreen(LiveScreen[WorkflowDetail | None]):
    NAME = "workflow"
    PLACE = "workflows"
    KINDS = frozenset({"tasks", "workflows"})
    ABOUT = (
        "One run. A node stands below all that it waits for; the dashed line of a branch says with which value it is "
        "taken. Arrow keys move from node to node, tab goes to the list where there is room. What the node waits for, "
        "and what waits for it, is underlined. Its card says what it waits for and until when, or why it was skipped. "
        f"Enter opens its task, or the workflow inside it ({INSIDE}). s sends a signal, N retries the node."
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back")]

    def __init__(self, workflow_id: str) -> None:
        super().__init__()
        self._workflow_id = workflow_id

    def body(self) -> ComposeResult:
        yield Static("", id="run-head", markup=False)
        yield Static("", id="run-facts", markup=False)
        yield Static("", id="run-error", markup=False)
        gone = "There is no such run any more: pruned, or never started."
        with Container(id="upper"):
            yield Panel("graph", Dag(), empty=gone, id="graph-panel")
            card = VerticalScroll(Fields(""), id="node-card", can_focus=False)
            yield Panel("node", card, empty="No node.", id="node-panel")
        yield TablePanel("nodes", _NODES, lambda row: str(row[0].task_index), markable=False, empty="It has no nodes.")

    async def look(self) -> WorkflowDetail | None:
        return await self.dash.source.workflow(self._workflow_id)

    def on_screen_resume(self) -> None:
        self.query_one(Dag).focus()

    def show(self, data: WorkflowDetail | None) -> None:
        nodes = data.nodes if data is not None else ()
        self.query_one("#graph-panel", Panel).face_of(empty=data is None)
        self.query_one("#node-panel", Panel).face_of(empty=not nodes)
        if data is None:
            self.panel("nodes").face("empty")
            return
        run = data.run
        took = f"took {span(run.took)}" if run.took is not None else f"for {span(run.age)}"
        colour = f"${variable_of(run.status)}"
        self.query_one("#run-head", Static).update(
            Content.assemble(
                (badge(run.status, run.status), f"{colour} bold"), f"  {inert(run.name, 60)}  {took}  ",
                (bar(run.ended, run.nodes, 20), colour), f" {run.progress}  ", (inert(run.id), "$text-muted"),
            )
        )  # fmt: skip
        facts = self.query_one("#run-facts", Static)
        told = run_facts(run)
        facts.display = bool(told)
        facts.update(Content("  ·  ".join(told)))
        dag = self.query_one(Dag)
        dag.show(nodes)
        self.panel("nodes").show([(node, data.names) for node in dag.in_layers()])
        self._follow()
        self._tell()

    # -- the selected node -----------------------------------------------------------------------

    def _current(self) -> WorkflowNode | None:
        chosen = self.query_one(Dag).chosen
        nodes = self.data.nodes if self.data is not None else ()
        return next((node for node in nodes if node.task_index == chosen), None)

    def _tell(self) -> None:
        """Show the card of the selected node; and its error, or that of the run when it has none."""
        if self.data is None:
            return
        current = self._current()
        if current is not None:
            self.query_one(Fields).show(node_fields(current, self.data.names, self.data.run.now))
        told = self.data.error
        if current is not None and current.error_message:
            told = f"{current.node_id}: {current.error_code}: {current.error_message}"
        line = self.query_one("#run-error", Static)
        line.display = bool(told)
        line.update(Content.styled(inert(told or "", 1_000), f"${variable_of('FAILED')}"))

    def on_dag_moved(self) -> None:
        self._follow()
        self._tell()

    def _follow(self) -> None:
        """Put the cursor of the list on the selected node."""
        self.panel("nodes").table.put_cursor(str(self.query_one(Dag).chosen))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        table, dag = self.panel("nodes").table, self.query_one(Dag)
        if table.has_focus and (key := table.cursor_key) is not None and key != str(dag.chosen):
            dag.choose(int(key))
            self._tell()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        self._open()

    def on_dag_opened(self) -> None:
        self._open()

    def _open(self) -> None:
        node = self._current()
        if node is not None and node.sub_workflow_id is not None:
            self.dash.push_screen(WorkflowScreen(node.sub_workflow_id))
        elif node is not None and node.task_id is not None:
            self.dash.push_screen(TaskScreen(node.task_id))
        else:
            self.dash.say("this node has no task yet")

    # -- acting ----------------------------------------------------------------------------------

    def targets(self) -> Iterable[Target]:
        if self.data is not None:
            yield Target(self.data.run.id, self.data.run.name, str(self.data.run.status))

    def targets_of(self, action: Action) -> Iterable[Target]:
        if action.id != "retry_node":
            yield from self.targets()
        elif self.data is not None and (node := self._current()) is not None:
            yield Target(self.data.run.id, node.node_id, node_state(node), part=node.node_id)

    async def action_act(self, name: str) -> None:
        action = BY_ID[name]
        target = next((one for one in self.targets() if one.expected in action.states), None)
        if name != "signal" or target is None or not self.dash.may(action):
            await super().action_act(name)
            return

        def answered(typed: tuple[str, str] | None) -> None:
            if typed is not None:
                self.post_message(ActionRequested(name, (replace(target, part=typed[0], change=typed[1]),)))

        waiting = self._waiting()
        node = self._current()
        known = node.signal_name if node is not None and node.kind == "signal" else None
        if known is None or (node is not None and node.status.is_terminal):
            known = waiting[0] if len(waiting) == 1 else ""
        self.dash.push_screen(SignalScreen(action, replace(target, part=known), waiting), answered)

    def _waiting(self) -> list[str]:
        """The names of the signals that nodes of this run wait for."""
        nodes = self.data.nodes if self.data is not None else ()
        names = (node.signal_name for node in nodes if node.status is NodeStatus.WAITING)
        return list(dict.fromkeys(name for name in names if name is not None))

    def copied(self) -> str | None:
        return as_json({"workflow_id": self._workflow_id})
