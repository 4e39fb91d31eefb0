"""One task: its times, attempts, arguments, result, traceback and heartbeats."""

import json
from collections.abc import Iterable
from typing import Any, ClassVar, Final, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static, TabbedContent, TabPane

from horsies.operate.session import NEEDS_OPERATOR, NOT_STORED
from horsies.operate.views import TaskAttempt, TaskDetail
from horsies.status import TaskStatus
from horsies_tui.data.source import Target
from horsies_tui.screens.lines import outcome_text
from horsies_tui.screens.live import LiveScreen
from horsies_tui.text import as_json, block, inert, moment, pretty_json, short_id, span
from horsies_tui.themes import MUTED, badge, variable_of
from horsies_tui.widgets.live_table import Column, Columns, LiveTable
from horsies_tui.widgets.panel import Panel
from horsies_tui.widgets.task_card import TaskCard
from horsies_tui.widgets.texts import TextView, payload_text, traceback_of

_TABS: Final = ("life", "attempts", "arguments", "result", "traceback", "heartbeats")
_ATTEMPTS: Final[Columns[TaskAttempt]] = (
    Column("#", 3, lambda one: str(one.attempt), right=True),
    Column("outcome", 16, lambda one: outcome_text(one.outcome) + " ↻" * one.will_retry, lambda one: one.outcome),
    Column("took", 7, lambda one: span(one.finished_at - one.started_at), right=True),
    Column("error", 20, lambda one: one.error_code or "", "FAILED"),
    Column("reason", 0, lambda one: one.error_message or one.failed_reason or "", MUTED, least=16),
    Column("worker", 22, lambda one: short_id(one.worker_id or ""), MUTED, above=110),
    Column("finished (UTC)", 23, lambda one: moment(one.finished_at), MUTED, above=130),
)


class TaskScreen(LiveScreen[TaskDetail | None]):
    NAME = "task"
    PLACE = "tasks"
    ABOUT = (
        "One task: its times as bars, finished attempts, arguments, metadata and result (as far as this role may see "
        "them), the traceback of its error, and its last heartbeats. Left and right change the tab, y copies all of it "
        "as JSON, w goes to its workflow."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right", "tab(1)", "Next tab"),
        Binding("left", "tab(-1)", "Previous tab", show=False),
        Binding("w", "workflow", "Workflow", show=False),
        Binding("escape", "back", "Back"),
    ]

    def __init__(self, task_id: str) -> None:
        super().__init__()
        self._task_id = task_id

    def body(self) -> ComposeResult:
        with Panel("task", empty="There is no such task any more: pruned, or never sent.", id="task-panel"):
            yield Static("", id="task-head", markup=False)
            with TabbedContent(initial="life", id="tabs"):
                with TabPane("Life", id="life"):
                    yield TaskCard()
                with TabPane("Attempts", id="attempts"):
                    yield LiveTable(_ATTEMPTS, lambda one: str(one.attempt), markable=False)
                for name in _TABS[2:]:
                    with TabPane(name.capitalize(), id=name):
                        yield TextView(id=f"{name}-text")

    async def look(self) -> TaskDetail | None:
        return await self.dash.source.task(self._task_id)

    def show(self, data: TaskDetail | None) -> None:
        self.query_one(Panel).face_of(empty=data is None)
        if data is None:
            return
        task = data.task
        status = str(task["status"])
        self.query_one("#task-head", Static).update(
            Content.assemble(
                (badge(status, status), f"${variable_of(status)} bold"), f"  {inert(task['task_name'], 80)}  ",
                (inert(task["id"]), "$text-muted"),
            )
        )  # fmt: skip
        self.query_one(TaskCard).show(data)
        self.query_one(LiveTable).show(data.attempts)
        payload = cast("dict[str, Any] | None", data.payload)
        told = payload_text(payload, "args", "kwargs", "task_options")
        if data.metadata:
            told += f"\n\nmetadata\n{pretty_json(json.dumps(data.metadata), None)}"
        self._text("arguments", told)
        told = payload_text(payload, "result", "progress")
        if payload is not None and payload.get("result") is None and status == TaskStatus.COMPLETED:
            told = f"{NOT_STORED}\n\n{told}" if payload.get("progress") else NOT_STORED
        self._text("result", told)
        trace = traceback_of(payload.get("result")) if payload is not None else ""
        reason = task["failed_reason"]
        none = "no traceback: it has not raised" if payload is not None else NEEDS_OPERATOR
        self._text("traceback", trace or (block(reason, 20_000) if reason else none))
        beats = [
            f"{beat.role:<8} {span(beat.age):>6} ago   {inert(beat.sender_id, 60)}  {inert(beat.hostname or '')}"
            for beat in data.heartbeats
        ]
        self._text("heartbeats", "\n".join(beats) or "no heartbeat: it ended quickly, or none is due yet")

    def _text(self, name: str, text: str) -> None:
        self.query_one(f"#{name}-text", TextView).show(text)

    def targets(self) -> Iterable[Target]:
        if self.data is not None:
            yield Target(self._task_id, str(self.data.task["task_name"]), str(self.data.task["status"]))

    def copied(self) -> str | None:
        if self.data is None:
            return None
        return as_json({"task": dict(self.data.task), "payload": self.data.payload,
                        "attempts": [repr(one) for one in self.data.attempts]})  # fmt: skip

    def action_tab(self, step: int) -> None:
        tabs = self.query_one(TabbedContent)
        tabs.active = _TABS[(_TABS.index(tabs.active) + step) % len(_TABS)]

    def action_workflow(self) -> None:
        workflow_id = self.data.task["workflow_id"] if self.data is not None else None
        if workflow_id is None:
            self.dash.say("this task is not part of a workflow")
            return
        from horsies_tui.screens.workflow import WorkflowScreen

        self.dash.push_screen(WorkflowScreen(str(workflow_id)))
