"""One run: its graph by levels with the state of every node, and the way to their tasks."""

from collections.abc import Awaitable, Callable, Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import DataTable, Static

from horsies_tui.actions import Action
from horsies_tui.data.feed import Kinds
from horsies_tui.data.models import WorkflowDetail, WorkflowNode
from horsies_tui.data.source import Target
from horsies_tui.screens.live import LiveScreen, action_bindings
from horsies_tui.screens.task import TaskScreen
from horsies_tui.text import as_json, bar, inert, span
from horsies_tui.themes import GLYPHS
from horsies_tui.widgets.dag import Dag, levels
from horsies_tui.widgets.live_table import Cell, Column, Line, LiveTable
from horsies_tui.widgets.panel import Panel


class WorkflowScreen(LiveScreen[WorkflowDetail | None]):
    NAME = "workflow"
    PLACE = "workflows"
    KINDS: ClassVar[Kinds] = frozenset({"tasks", "workflows"})
    ABOUT = (
        "One run: nodes by level, what can run at the same time side by side. What the node under the cursor waits "
        "for, and what waits for it, is underlined. Enter opens its task, or the workflow inside it (⊞)."
    )
    BINDINGS: ClassVar[list[BindingType]] = [*action_bindings("workflow"), Binding("escape", "back", "Back")]

    def __init__(self, workflow_id: str) -> None:
        super().__init__()
        self._workflow_id = workflow_id

    def body(self) -> ComposeResult:
        yield Static("", id="run-head", markup=False)
        yield Static("", id="run-error", markup=False)
        gone = "There is no such run any more: pruned, or never started."
        yield Panel("graph", VerticalScroll(Dag("")), empty=gone, id="graph-panel")
        yield Panel(
            "nodes",
            LiveTable(
                Column("status", "status", 11), Column("node", "node", least=14), Column("task", "task", 22, above=96),
                Column("took", "took", 6, right=True), Column("waits", "waits for", 26, above=76),
                Column("error", "error", 18, above=110), markable=False, id="nodes",
            ),
            empty="It has no nodes.", id="nodes-panel",
        )  # fmt: skip

    def look(self) -> Callable[[], Awaitable[WorkflowDetail | None]]:
        return lambda: self.dash.source.workflow(self._workflow_id)

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        self.query_one(LiveTable).focus()

    def show(self, data: WorkflowDetail | None) -> None:
        self.query_one("#graph-panel", Panel).face_of(empty=data is None)
        if data is None:
            self.query_one("#nodes-panel", Panel).face("empty")
            return
        run = data.run
        took = f"took {span(run.took)}" if run.took is not None else f"for {span(run.age)}"
        colour = self.colour(run.status)
        self.query_one("#run-head", Static).update(
            Content.assemble(
                (f"{GLYPHS[run.status]} {run.status}", f"{colour} bold"), f"  {inert(run.name, 60)}  {took}  ",
                (bar(run.ended, run.nodes, 20), colour), f" {run.progress}  ", (inert(run.id), "$text-muted"),
            )
        )  # fmt: skip
        names = {node.task_index: node.node_id for node in data.nodes}
        ordered = [node for level in levels(data.nodes) for node in level]
        self.query_one(LiveTable).show([self._line(node, names) for node in ordered])
        self.query_one("#nodes-panel", Panel).face_of(empty=not data.nodes)
        self._draw()

    def _line(self, node: WorkflowNode, names: dict[int, str]) -> Line:
        waits = ", ".join(names.get(index, "?") for index in node.dependencies[:4])
        if len(node.dependencies) > 4:
            waits += f" +{len(node.dependencies) - 4}"
        join = f" ({node.join_type})" if node.join_type != "all" else ""
        return Line(
            str(node.task_index),
            {
                "status": Cell(f"{GLYPHS[node.status]} {node.status.lower()}", self.colour(node.status)),
                "node": Cell(node.node_id + (" ⊞" if node.is_subworkflow else "")),
                "task": Cell(node.task_name, self.muted),
                "took": Cell(span(node.took) if node.took is not None else "·", self.muted),
                "waits": Cell(waits + join, self.muted),
                "error": Cell(node.error_code or "", self.colour("FAILED")),
            },
        )

    def _current(self) -> WorkflowNode | None:
        key = self.query_one(LiveTable).cursor_key
        nodes = self.data.nodes if self.data is not None else ()
        return next((node for node in nodes if str(node.task_index) == key), None)

    def _draw(self) -> None:
        if self.data is not None:
            current = self._current()
            self.query_one(Dag).show(self.data.nodes, current.task_index if current is not None else None)
            self._tell(self.data, current)

    def _tell(self, data: WorkflowDetail, current: WorkflowNode | None) -> None:
        """The error of the node under the cursor; of the run, when that one has none."""
        told = data.error
        if current is not None and current.error_message:
            told = f"{current.node_id}: {current.error_code}: {current.error_message}"
        line = self.query_one("#run-error", Static)
        line.display = bool(told)
        line.update(Content.styled(inert(told or "", 1_000), self.colour("FAILED")))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        event.stop()
        self._draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        event.stop()
        node = self._current()
        if node is not None and node.sub_workflow_id is not None:
            self.dash.push_screen(WorkflowScreen(node.sub_workflow_id))
        elif node is not None and node.task_id is not None:
            self.dash.push_screen(TaskScreen(node.task_id))
        else:
            self.dash.say("this node has no task yet")

    def targets(self, action: Action) -> Sequence[Target]:
        if self.data is None:
            return ()
        run = self.data.run
        if action.noun == "workflow":
            return [Target(run.id, run.name, str(run.status))] if run.status in action.states else ()
        return ()

    def copied(self) -> str | None:
        return as_json({"workflow_id": self._workflow_id})
