"""Table rows that more than one screen shows."""

from datetime import timedelta
from typing import Final

from horsies.operate.views import TaskSummary
from horsies_tui.text import short_id, span
from horsies_tui.themes import MUTED, badge
from horsies_tui.widgets.live_table import Column, Columns


def _status(row: TaskSummary) -> str:
    return badge(row.status, "withdrawn" if row.withdrawn else "delayed" if _is_delayed(row) else "")


def _age(row: TaskSummary) -> str:
    if row.withdrawn or not _is_delayed(row):
        return "·" if row.withdrawn else span(row.age)
    return f"in {span(-row.age)}" if -row.age < timedelta(days=1) else f"in {min((-row.age).days, 999)}d"


def _is_delayed(row: TaskSummary) -> bool:
    return row.status == "PENDING" and row.age < timedelta()


TASK_COLUMNS: Final[Columns[TaskSummary]] = (
    Column("status", 11, _status, lambda row: row.status),
    Column("task", 0, lambda row: row.task_name + " ⊞" * row.is_workflow_task, least=14),
    Column("queue", 10, lambda row: row.queue_name, MUTED, above=84),
    Column("age", 7, _age, right=True),
    Column("try", 5, lambda row: f"{row.retry_count + 1}/{row.max_retries + 1}" if row.max_retries else "·", MUTED,
           right=True),
    Column("error", 17, lambda row: row.error_code or "", "FAILED", above=60),
    Column("worker", 17, lambda row: short_id(row.claimed_by_worker_id or ""), MUTED, above=130),
    Column("id", 17, lambda row: short_id(row.id), MUTED, above=104),
)  # fmt: skip


def outcome_text(outcome: str) -> str:
    return badge(outcome, outcome.lower().replace("_", " "))
