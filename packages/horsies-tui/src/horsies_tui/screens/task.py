"""One task in full: its life, attempts, arguments, result, traceback, heartbeats."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, ClassVar, cast

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widgets import Static, TabbedContent, TabPane

from horsies._operations import NEEDS_OPERATOR
from horsies.info import TaskDetail
from horsies_tui.actions import Action
from horsies_tui.data.source import Target
from horsies_tui.screens.live import LiveScreen, action_bindings
from horsies_tui.text import as_json, block, inert, moment, short_id, span
from horsies_tui.themes import GLYPHS
from horsies_tui.widgets.live_table import Cell, Column, Line, LiveTable
from horsies_tui.widgets.panel import Panel
from horsies_tui.widgets.task_card import TaskCard
from horsies_tui.widgets.text_view import TextView, payload_text, traceback_of

_TABS = ("life", "attempts", "arguments", "result", "traceback", "heartbeats")


class TaskScreen(LiveScreen[TaskDetail | None]):
    NAME = "task"
    PLACE = "tasks"
    ABOUT = (
        "One task: its life as bars, finished attempts, what it was told and what it answered (as far as this role may "
        "see that), the traceback of its error, and who vouched for it last. Left and right change the tab, y copies "
        "all of it as JSON, w goes to its workflow."
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        *action_bindings("task"),
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
                    yield LiveTable(
                        Column("number", "#", 3, right=True),
                        Column("outcome", "outcome", 16),
                        Column("took", "took", 7, right=True),
                        Column("error", "error", 20),
                        Column("reason", "reason", least=16),
                        Column("worker", "worker", 22, above=110),
                        Column("finished", "finished (UTC)", 23, above=130),
                        markable=False,
                    )
                for name in ("arguments", "result", "traceback"):
                    with TabPane(name.capitalize(), id=name):
                        yield TextView(id=f"{name}-text")
                with TabPane("Heartbeats", id="heartbeats"):
                    yield TextView(id="heartbeats-text")

    def look(self) -> Callable[[], Awaitable[TaskDetail | None]]:
        return lambda: self.dash.source.task(self._task_id)

    def show(self, data: TaskDetail | None) -> None:
        self.query_one(Panel).face_of(empty=data is None)
        if data is None:
            return
        task = data.task
        status = str(task["status"])
        self.query_one("#task-head", Static).update(
            Content.assemble(
                (f"{GLYPHS[status]} {status}", f"{self.colour(status)} bold"), f"  {inert(task['task_name'], 80)}  ",
                (inert(task["id"]), "$text-muted"),
            )
        )  # fmt: skip
        self.query_one(TaskCard).show(data)
        self.query_one(LiveTable).show([self._attempt(one) for one in data.attempts])
        payload = cast("dict[str, Any] | None", data.payload)
        self._text("arguments", payload_text(payload, "args", "kwargs", "task_options"))
        self._text("result", payload_text(payload, "result", "progress"))
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

    def _attempt(self, one: Any) -> Line:
        outcome = str(one.outcome)
        retry = " ↻" if one.will_retry else ""
        return Line(
            str(one.attempt),
            {
                "number": Cell(str(one.attempt)),
                "outcome": Cell(f"{GLYPHS[outcome]} {outcome.lower().replace('_', ' ')}{retry}", self.colour(outcome)),
                "took": Cell(span(one.finished_at - one.started_at)),
                "error": Cell(one.error_code or "", self.colour("FAILED")),
                "reason": Cell(one.error_message or one.failed_reason or "", self.muted),
                "worker": Cell(short_id(one.worker_id or ""), self.muted),
                "finished": Cell(moment(one.finished_at), self.muted),
            },
        )

    def targets(self, action: Action) -> Sequence[Target]:
        if self.data is None or str(self.data.task["status"]) not in action.states:
            return ()
        return [Target(self._task_id, str(self.data.task["task_name"]), str(self.data.task["status"]))]

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
