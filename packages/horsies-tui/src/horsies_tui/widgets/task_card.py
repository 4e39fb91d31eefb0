"""The summary of one task: facts, its phases as bars on one axis, and why it failed."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from horsies._text import error_in
from horsies.metadata import RESERVED
from horsies.operate.views import TaskAttempt, TaskDetail
from horsies_tui.text import block, inert, moment, short_id, span
from horsies_tui.themes import variable_of
from horsies_tui.widgets.texts import NAME_WIDTH, Fields, status_content

METADATA_SHOWN: Final = 6


def facts(detail: TaskDetail) -> list[tuple[str, object]]:
    """The facts of a task; a fact with the value None is not shown."""
    task = detail.task
    now = task["seen_at"]
    worker = task["claimed_by_worker_id"]
    tries = f"{task['retry_count'] + 1} of {task['max_retries'] + 1}"
    if task["manual_retries"]:
        tries += f", retried by hand {task['manual_retries']}x"
    skew = (task["sent_at"] - task["created_at"]).total_seconds()
    return [
        ("status", status_content(str(task["status"]))),
        ("queue", f"{task['queue_name']}, priority {task['priority']}"),
        ("group", detail.group),
        ("attempt", tries),
        ("crashes", task["crash_count"] or None),
        ("snoozes", task["snoozes"] or None),
        ("worker", short_id(worker) if worker else None),
        ("process", f"{task['worker_hostname']} pid {task['worker_pid']}" if task["worker_pid"] else None),
        ("workflow", task["workflow_id"]),
        ("unique key", task["unique_key"]),
        ("taken for", span(task["unique_until"] - now) if task["unique_until"] else None),
        *_metadata(detail.metadata or {}),
        ("good until", f"in {span(task['good_until'] - now)}"
         if task["good_until"] and not task["terminal_at"] else None),
        ("next retry", f"in {span(task['next_retry_at'] - now)}"
         if task["next_retry_at"] and str(task["status"]) == "PENDING" else None),
        ("cancel", f"asked for {span(now - task['cancel_requested_at'])} ago" if task["cancel_requested_at"] else None),
        ("clock", f"the sender's clock differs by {skew:.0f} s" if abs(skew) > 5 else None),
        ("error", Content.styled(inert(task["error_code"], 200), "$error") if task["error_code"] else None),
    ]  # fmt: skip


def _metadata(found: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    """A line for each key, under one name: the user's keys first, then those that horsies wrote."""
    keys = sorted(found, key=lambda key: (key.startswith(RESERVED), key))
    lines = [f"{key}={found[key] if isinstance(found[key], str) else json.dumps(found[key])}" for key in keys]
    cut = [inert(line, 200) for line in lines[:METADATA_SHOWN]]
    if len(lines) > len(cut):
        cut.append(f"and {len(lines) - len(cut)} more, under arguments")
    if cut:
        yield "metadata", Content(f"\n{'':<{NAME_WIDTH}}".join(cut))


@dataclass(frozen=True, slots=True)
class Stretch:
    """A phase with its start and its end."""

    label: str
    state: str
    start: datetime
    end: datetime
    is_open: bool = False


def stretches(task: Mapping[str, Any], attempts: Sequence[TaskAttempt]) -> list[Stretch]:
    """The phases of the task, after those of its earlier attempts, without those that clock skew makes negative."""
    now: datetime = task["seen_at"]
    enqueued, claimed, started, ended = (task[f"{name}_at"] for name in ("enqueued", "claimed", "started", "terminal"))
    current = int(started is not None and ended is not None)
    found = [
        Stretch(f"attempt {one.attempt}", str(one.outcome), one.started_at, one.finished_at)
        for one in attempts[: len(attempts) - current]
    ]
    until = claimed or started or ended
    found.append(Stretch("waited", "PENDING", enqueued, until or max(now, enqueued), until is None))
    if claimed is not None and (started is None or started > claimed):
        until = started or ended
        found.append(Stretch("held", "CLAIMED", claimed, until or now, until is None))
    if started is not None:
        state = "RUNNING" if ended is None else str(task["status"])
        found.append(Stretch("ran" if ended else "runs", state, started, ended or now, ended is None))
    return [one for one in found if one.end >= one.start]


class Timeline(Static):
    """Draws the phases over its width."""

    _found: Sequence[Stretch] = ()

    def show(self, task: Mapping[str, Any], attempts: Sequence[TaskAttempt]) -> None:
        self._found = stretches(task, attempts)[-8:]
        self._draw()

    def on_resize(self) -> None:
        self._draw()

    def _draw(self) -> None:
        found = self._found
        if not found:
            self.update("")
            return
        first, last = min(one.start for one in found), max(one.end for one in found)
        whole = max((last - first) / timedelta(milliseconds=1), 1.0)
        width = max(10, (self.size.width or 60) - 21)
        lines = [Content(f"{moment(first)} UTC")]
        for one in found:
            start = round((one.start - first) / timedelta(milliseconds=1) / whole * width)
            length = max(1, round((one.end - one.start) / timedelta(milliseconds=1) / whole * width))
            start = min(start, width - 1)
            length = min(length, width - start)
            bar = "━" * (length - 1) + ("▶" if one.is_open else "━")
            lines.append(
                Content.assemble(
                    f"{one.label:<11}", (f"{span(one.end - one.start):>7}  ", "bold"), " " * start,
                    (bar, f"${variable_of(one.state)}"),
                )
            )  # fmt: skip
        self.update(Content("\n").join(lines))


class TaskCard(VerticalScroll):
    def compose(self) -> ComposeResult:
        yield Static("", id="card-name", markup=False)
        yield Static("", id="card-id", markup=False)
        yield Fields("", id="card-facts")
        yield Timeline("", id="card-life")
        yield Static("", id="card-reason", markup=False)

    def show(self, detail: TaskDetail) -> None:
        task: Any = detail.task
        self.query_one("#card-name", Static).update(Content(inert(task["task_name"], 100)))
        self.query_one("#card-id", Static).update(Content(inert(task["id"], 40)))
        self.query_one(Fields).show(facts(detail))
        self.query_one(Timeline).show(task, detail.attempts)
        self.query_one("#card-reason", Static).update(Content(block(_why(detail), 1_000)))


def _why(detail: TaskDetail) -> str:
    """Why it failed: the message of its error, the exception, and the worker's report on the child process."""
    error = error_in(detail.payload["result"]) if detail.payload is not None else None
    told = [error.message, error.raised] if error is not None else []
    return "\n".join(dict.fromkeys(text for text in (*told, detail.task["failed_reason"]) if text))
