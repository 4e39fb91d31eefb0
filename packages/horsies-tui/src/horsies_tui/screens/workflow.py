"""One run: its graph by levels, with the state of every node and links to their tasks."""

from collections.abc import Iterable
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import DataTable, Static

from horsies_tui.data.models import WorkflowDetail, WorkflowNode
from horsies_tui.data.source import Target
from horsies_tui.screens.live import LiveScreen
from horsies_tui.screens.task import TaskScreen
from horsies_tui.text import as_json, bar, dotted, inert, span
from horsies_tui.themes import MUTED, badge, variable_of
from horsies_tui.widgets.dag import Dag, levels
from horsies_tui.widgets.live_table import Column, Columns, LiveTable
from horsies_tui.widgets.panel import Panel, TablePanel

_WAITS_SHOWN: Final = 4


def _waits(node: WorkflowNode, names: dict[int, str]) -> str:
    waits = ", ".join(names.get(index, "?") for index in node.dependencies[:_WAITS_SHOWN])
    more = len(node.dependencies) - _WAITS_SHOWN
    return waits + (f" +{more}" if more > 0 else "") + (f" ({node.join_type})" if node.join_type != "all" else "")


_NODES: Final[Columns[tuple[WorkflowNode, dict[int, str]]]] = (
    Column("status", 11, lambda row: badge(row[0].status), lambda row: row[0].status),
    Column("node", 0, lambda row: row[0].node_id + " ⊞" * row[0].is_subworkflow, least=14),
    Column("task", 22, lambda row: row[0].task_name, MUTED, above=96),
    Column("took", 6, lambda row: dotted(row[0].took, span), MUTED, right=True),
    Column("waits for", 26, lambda row: _waits(*row), MUTED, above=76),
    Column("error", 18, lambda row: row[0].error_code or "", "FAILED", above=110),
)
"""Of a node, and the names of all nodes."""


class WorkflowScreen(LiveScreen[WorkflowDetail | None]):
    NAME = "workflow"
    PLACE = "workflows"
    KINDS = frozenset({"tasks", "workflows"})
    ABOUT = (
        "One run: nodes by level, what can run at the same time side by side. What the node under the cursor waits "
        "for, and what waits for it, is underlined. Enter opens its task, or the workflow inside it (⊞)."
    )
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "back", "Back")]

    def __init__(self, workflow_id: str) -> None:
        super().__init__()
        self._workflow_id = workflow_id

    def body(self) -> ComposeResult:
        yield Static("", id="run-head", markup=False)
        yield Static("", id="run-error", markup=False)
        gone = "There is no such run any more: pruned, or never started."
        yield Panel("graph", VerticalScroll(Dag("")), empty=gone, id="graph-panel")
        yield TablePanel("nodes", _NODES, lambda row: str(row[0].task_index), markable=False, empty="It has no nodes.")

    async def look(self) -> WorkflowDetail | None:
        return await self.dash.source.workflow(self._workflow_id)

    def on_screen_resume(self) -> None:
        self.query_one(LiveTable).focus()

    def show(self, data: WorkflowDetail | None) -> None:
        self.query_one("#graph-panel", Panel).face_of(empty=data is None)
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
        names = {node.task_index: node.node_id for node in data.nodes}
        self.panel("nodes").show([(node, names) for level in levels(data.nodes) for node in level])
        self._draw()

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
        """Show the error of the node under the cursor, or of the run when that node has none."""
        told = data.error
        if current is not None and current.error_message:
            told = f"{current.node_id}: {current.error_code}: {current.error_message}"
        line = self.query_one("#run-error", Static)
        line.display = bool(told)
        line.update(Content.styled(inert(told or "", 1_000), f"${variable_of('FAILED')}"))

    def on_data_table_row_highlighted(self, event: DataTable.RowHighlighted) -> None:
        self._draw()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        node = self._current()
        if node is not None and node.sub_workflow_id is not None:
            self.dash.push_screen(WorkflowScreen(node.sub_workflow_id))
        elif node is not None and node.task_id is not None:
            self.dash.push_screen(TaskScreen(node.task_id))
        else:
            self.dash.say("this node has no task yet")

    def targets(self) -> Iterable[Target]:
        if self.data is not None:
            yield Target(self.data.run.id, self.data.run.name, str(self.data.run.status))

    def copied(self) -> str | None:
        return as_json({"workflow_id": self._workflow_id})
