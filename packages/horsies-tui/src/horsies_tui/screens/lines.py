"""Lines that more than one screen shows."""

from collections.abc import Callable
from datetime import timedelta

from horsies_tui.data.models import TaskRow
from horsies_tui.text import short_id, span
from horsies_tui.themes import GLYPHS
from horsies_tui.widgets.live_table import Cell, Column, Line

Colour = Callable[[str], str]
_CENTURY = timedelta(days=36_500)
_DAY = timedelta(days=1)

TASK_COLUMNS = (
    Column("status", "status", 11),
    Column("name", "task", least=14),
    Column("queue", "queue", 10, above=84),
    Column("age", "age", 7, right=True),
    Column("tries", "try", 5, right=True),
    Column("error", "error", 17, above=60),
    Column("worker", "worker", 17, above=130),
    Column("id", "id", 17, above=104),
)


def task_line(row: TaskRow, colour: Colour, muted: str) -> Line:
    later = row.status == "PENDING" and row.age.total_seconds() < 0
    withdrawn = later and row.age < -_CENTURY  # a paused workflow's: out of every claim's range until it is resumed
    word = "withdrawn" if withdrawn else "delayed" if later else row.status.lower()
    age = "·" if withdrawn else _due(-row.age) if later else span(row.age)
    return Line(
        row.id,
        {
            "status": Cell(f"{GLYPHS[row.status]} {word}", colour(row.status)),
            "name": Cell(row.task_name + (" ⊞" if row.is_workflow_task else "")),
            "queue": Cell(row.queue_name, muted),
            "age": Cell(age),
            "tries": Cell(f"{row.retry_count + 1}/{row.max_retries + 1}" if row.max_retries else "·", muted),
            "error": Cell(row.error_code or "", colour("FAILED") if row.error_code else ""),
            "worker": Cell(short_id(row.claimed_by_worker_id or ""), muted),
            "id": Cell(short_id(row.id), muted),
        },
    )


def _due(value: timedelta) -> str:
    return f"in {span(value)}" if value < _DAY else f"in {min(value.days, 999)}d"
