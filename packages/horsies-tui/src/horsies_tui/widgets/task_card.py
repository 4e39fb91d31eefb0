"""One task in short: facts, its life, why it failed."""

from typing import Any

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from horsies._text import error_in
from horsies.info import TaskDetail
from horsies_tui.text import block, inert, short_id, span
from horsies_tui.widgets.fields import Fields, status_content
from horsies_tui.widgets.timeline import Timeline


def facts(detail: TaskDetail) -> list[tuple[str, object]]:
    """What is known of a task, what is not left out."""
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
        ("attempt", tries),
        ("worker", short_id(worker) if worker else None),
        ("process", f"{task['worker_hostname']} pid {task['worker_pid']}" if task["worker_pid"] else None),
        ("workflow", task["workflow_id"]),
        ("unique key", task["unique_key"]),
        ("good until", f"in {span(task['good_until'] - now)}"
         if task["good_until"] and not task["terminal_at"] else None),
        ("next retry", f"in {span(task['next_retry_at'] - now)}"
         if task["next_retry_at"] and str(task["status"]) == "PENDING" else None),
        ("cancel", f"asked for {span(now - task['cancel_requested_at'])} ago" if task["cancel_requested_at"] else None),
        ("clock", f"the sender's clock differs by {skew:.0f} s" if abs(skew) > 5 else None),
        ("error", Content.styled(inert(task["error_code"], 200), "$error") if task["error_code"] else None),
    ]  # fmt: skip


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
    """Why it failed: the message of its error, what was raised, and what its worker saw of the child's death."""
    error = error_in(detail.payload["result"]) if detail.payload is not None else None
    told = [error.message, error.raised] if error is not None else []
    return "\n".join(dict.fromkeys(text for text in (*told, detail.task["failed_reason"]) if text))
