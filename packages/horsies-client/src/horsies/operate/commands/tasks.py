"""`horsies tasks list|count|show|retry|cancel|purge`."""

import argparse
import json
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from horsies._text import error_in
from horsies.ids import ID_LENGTH
from horsies.operate.commands._common import OK, PROBLEMS, Command, Desk, add_confirmation, add_decode, row_id
from horsies.operate.commands._print import (
    as_json,
    cell,
    complain,
    plural,
    say,
    say_json,
    say_pairs,
    say_table,
    short,
    span,
)
from horsies.operate.commands._task_actions import Act, Cancel, Purge, Retry, act
from horsies.operate.commands._task_filter import add_selection, chosen_filter, searched
from horsies.operate.filters import TaskCursor, TaskFilter
from horsies.operate.reading import COUNT_BOUND
from horsies.operate.session import NEEDS_OPERATOR, NOT_STORED
from horsies.operate.views import TaskDetail, TaskSummary
from horsies.status import TaskStatus

PAGE: Final = 50
SHORT: Final = 2_000
"""The length to which `show` cuts arguments, results and tracebacks without `--full`."""
WHOLE_ERROR: Final = 400_000
"""The length that `show` reads of each: no stored error is longer, and its last line is needed."""
BEATS: Final = 5
_MOMENTS: Final = (
    ("sent", "sent_at"), ("created", "created_at"), ("due", "enqueued_at"), ("claimed", "claimed_at"),
    ("claim ends", "claim_expires_at"), ("started", "started_at"), ("result in hand", "finalizing_at"),
    ("cancel asked", "cancel_requested_at"), ("completed", "completed_at"), ("failed", "failed_at"),
    ("ended", "terminal_at"), ("next retry", "next_retry_at"), ("good until", "good_until"), ("changed", "updated_at"),
)  # fmt: skip
_PAYLOAD: Final = ("args", "kwargs", "task_options", "progress", "result")


_ACTS: Final[dict[type[Act], str]] = {
    Retry: "run FAILED, CANCELLED or EXPIRED tasks again, under the same id",
    Cancel: "stop tasks: waiting ones for good, running ones by asking their worker",
    Purge: "delete ended tasks and their attempts; never a live one, nor one of a workflow that has not ended",
}


def build() -> Command:
    command = Command("tasks", "Look at tasks, and act on them by id or by filter.")
    listing = command.add("list", "list tasks: live ones first, then ended ones, the newest first", _list)
    add_selection(listing, ids=False)
    listing.add_argument("--after", type=cursor, metavar="CURSOR", help="go on where a page ended, as it was printed")
    add_selection(command.add("count", "count tasks; --limit stops counting", _count), ids=False)
    about = "show everything about some tasks: times, attempts, arguments, result, heartbeats"
    show = command.add("show", about, _show)
    show.add_argument("ids", nargs="+", metavar="ID", type=row_id, help="the task's id")
    show.add_argument("--full", action="store_true", help="do not cut arguments, results and tracebacks")
    add_decode(show)
    for how, about in _ACTS.items():
        verb = command.add(how.verb, about, lambda desk, how=how: act(desk, how()))
        add_selection(verb)
        add_confirmation(verb, "tasks match")
    return command


def cursor(text: str) -> TaskCursor:
    try:
        return TaskCursor.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{short(text)!r} is not what a page of `tasks list` ended with") from None


# -- list ----------------------------------------------------------------------------------------


async def _list(desk: Desk) -> int:
    options, filter = desk.options, await chosen_filter(desk)
    page = await desk.reader.list_tasks(filter, options.limit or PAGE, options.after)
    document = {"tasks": page.tasks, "next": str(page.next) if page.next else None, "ended_within": filter.window}
    if not desk.has_said(document, page.tasks, "no tasks"):
        say_tasks(page.tasks)
        if page.next:
            say(f"\nthere may be more: --after {page.next}")
    if not (options.json or page.next):
        _say_window(filter)
    return OK


async def _count(desk: Desk) -> int:
    filter, bound = await chosen_filter(desk), desk.options.limit or COUNT_BOUND
    count = await desk.reader.count_tasks(filter, bound)
    if desk.options.json:
        say_json({"count": count, "is_lower_bound": count >= bound, "ended_within": filter.window})
        return OK
    say(("at least " if count >= bound else "") + plural(count, "task"))
    _say_window(filter)
    return OK


def _say_window(filter: TaskFilter) -> None:
    if (told := searched(filter)) is not None:
        complain(told)  # on stderr: the answer itself may be read by a program


def say_tasks(tasks: Sequence[TaskSummary]) -> None:
    """Print one line for each task, with a column for groups if one of them has a group."""
    has_groups = any(task.group is not None for task in tasks)
    say_table(
        ["ID", "TASK", "QUEUE", *(["GROUP"] if has_groups else []), "PRI", "STATUS", "FOR", "TRIES", "WORKER", "ERROR"],
        [
            (
                task.id, short(task.task_name, 40), task.queue_name,
                *([short(task.group or "-", 40)] if has_groups else []), task.priority, task.status, _ago(task.age),
                f"{task.retry_count}/{task.max_retries}", short(task.claimed_by_worker_id or "-", 36),
                short(task.error_code or "-", 40),
            )
            for task in tasks
        ],
        right=("PRI", "FOR"),
    )  # fmt: skip


def _ago(age: timedelta, past: str = "") -> str:
    """An age, which is negative for a moment that is still to come."""
    return f"in {span(-age)}" if age < timedelta() else span(age) + past


# -- show ----------------------------------------------------------------------------------------


async def _show(desk: Desk) -> int:
    options = desk.options
    found: list[TaskDetail] = []
    missing: list[str] = []
    for task_id in dict.fromkeys(options.ids):
        length = None if options.full else SHORT if options.json else WHOLE_ERROR
        detail = await desk.broker.get_task_detail(task_id, length, BEATS, decode=desk.decodes())
        if detail is None:
            missing.append(task_id)
        else:
            found.append(detail)
    if options.json:
        say_json({"tasks": [_detail_json(one) for one in found], "not_found": missing})
    for number, detail in enumerate(found if not options.json else ()):
        if number:
            say()
        _say_detail(detail, limit=None if options.full else SHORT)
    for task_id in missing:
        is_part = len(task_id) < ID_LENGTH
        part = f"; an id has {ID_LENGTH} characters, `horsies tasks list` shows it whole" if is_part else ""
        complain(f"there is no task {task_id}: never sent, not committed yet, or pruned since{part}")
    return PROBLEMS if missing else OK


def _detail_json(detail: TaskDetail) -> dict[str, Any]:
    read = detail.payload
    payload = None if read is None else {name: read[name] for name in _PAYLOAD}
    cut = [name for name, text in (payload or {}).items() if text and len(text) < (read or {})[name + "_chars"]]
    more = {"payload": payload, "payload_cut": cut, "attempts": detail.attempts, "heartbeats": detail.heartbeats}
    return as_json({**detail.task, **more})


def _say_detail(detail: TaskDetail, *, limit: int | None) -> None:
    task = detail.task
    error = error_in(detail.payload["result"]) if detail.payload is not None else None
    by_hand = f", {task['manual_retries']} by hand" if task["manual_retries"] else ""
    say_pairs(
        [
            ("id", task["id"]),
            ("task", task["task_name"]),
            ("status", task["status"]),
            ("queue", f"{task['queue_name']}, priority {task['priority']}"),
            ("retries", f"{task['retry_count']} of {task['max_retries']}{by_hand}"),
            ("crashes", task["crash_count"] or None),
            ("snoozes", task["snoozes"] or None),
            ("group", detail.group),
            ("unique key", task["unique_key"]),
            ("taken until", task["unique_until"]),
            ("kept for", None if task["keep_for"] is None else f"{span(task['keep_for'])} after its end"),
            ("workflow", _workflow(task)),
            ("worker", task["claimed_by_worker_id"]),
            ("process", _process(task)),
            ("error", task["error_code"]),
        ]
    )
    if error is not None:
        _say_text("message", error.message or None, limit)
        _say_text("raised", error.raised, limit)
    _say_text("reason", task["failed_reason"], limit)
    say("\ntimes (of the database; `sent` is the sender's)")
    say_pairs([(name, _moment(task, column)) for name, column in _MOMENTS], indent="  ")
    _say_payload(detail, limit)
    if detail.attempts:
        say("\nattempts")
        say_table(
            ["  #", "OUTCOME", "STARTED", "TOOK", "AGAIN", "ERROR", "WORKER", "PID"],
            [
                (
                    f"  {one.attempt}", one.outcome, one.started_at, one.finished_at - one.started_at, one.will_retry,
                    one.error_code, one.worker_id, one.worker_pid,
                )
                for one in detail.attempts
            ],
        )  # fmt: skip
        for one in detail.attempts:
            _say_text(f"  message of attempt {one.attempt}", one.error_message, limit)
    if detail.heartbeats:
        say("\nheartbeats, the newest first")
        say_table(
            ["  ROLE", "AGO", "SENDER", "HOST", "PID"],
            [(f"  {one.role}", one.age, one.sender_id, one.hostname, one.pid) for one in detail.heartbeats],
        )


def _workflow(task: Mapping[str, Any]) -> str | None:
    if task["former_workflow_id"] is not None:
        return f"{task['former_workflow_id']}, as a former task of node {task['former_node']!r}"
    return task["workflow_id"] or ("unknown" if task["is_workflow_task"] else None)


def _process(task: Mapping[str, Any]) -> str | None:
    if task["worker_pid"] is None and task["worker_hostname"] is None:
        return None
    if task["worker_pid"] is None:
        return f"on {task['worker_hostname']}; its child is not known yet"
    return f"pid {task['worker_pid']} on {task['worker_hostname']} ({task['worker_process_name']})"


def _moment(task: Mapping[str, Any], column: str) -> str | None:
    value = task[column]
    if value is None:
        return None
    return f"{cell(value)}  {_ago(task['seen_at'] - value, ' ago')}"


def _say_payload(detail: TaskDetail, limit: int | None) -> None:
    payload = detail.payload
    say()
    if payload is None:
        say(f"arguments, metadata, progress and result: {NEEDS_OPERATOR}")
        return
    if detail.metadata:
        _say_text("metadata", json.dumps(detail.metadata, ensure_ascii=False), limit)
    for name in _PAYLOAD:
        _say_text(name, payload[name], limit, payload[name + "_chars"])
    if detail.task["status"] == TaskStatus.COMPLETED and payload["result"] is None:
        say(f"result  {NOT_STORED}")
    error = error_in(payload["result"])
    _say_text("traceback", error and error.traceback, limit)


def _say_text(name: str, text: str | None, limit: int | None, length: int | None = None) -> None:
    """Print a text with each of its lines indented, so that none looks like a line of this command. `length` is that of
    the whole text; the database may have returned only the beginning."""
    if text is None:
        return
    whole = len(text) if length is None else length
    text = text[:limit]
    rest = f"  [{whole:,} characters, --full shows all]" if len(text) < whole else ""
    indent = " " * (len(name) - len(name.lstrip()) + 4)
    if "\n" in text or "\r" in text:
        say(f"{name}{rest}")
        for line in text.splitlines():
            say(indent + line)
    else:
        say(f"{name}  {text}{rest}")
