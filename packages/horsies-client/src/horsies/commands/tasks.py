"""`horsies tasks list|show|retry|cancel|purge`."""

import argparse
from collections.abc import Mapping, Sequence
from typing import Any, Final

from horsies._operations import NEEDS_OPERATOR
from horsies._text import error_in
from horsies.commands._act import Cancel, Purge, Retry, act
from horsies.commands._common import OK, PROBLEMS, Desk, Verbs, parser, run
from horsies.commands._print import as_json, complain, say, say_json, say_pairs, say_table, span
from horsies.commands._select import add_selection, filter_of
from horsies.filters import TaskCursor
from horsies.info import TaskDetail, TaskSummary

PAGE: Final = 50
SHORT: Final = 2_000
"""Characters of arguments, results and tracebacks that `show` prints without `--full`."""
WHOLE_ERROR: Final = 400_000
"""Characters that `show` reads of each: no stored error is longer, and its last line is wanted."""
BEATS: Final = 5
_MOMENTS: Final = (
    ("sent", "sent_at"), ("created", "created_at"), ("due", "enqueued_at"), ("claimed", "claimed_at"),
    ("claim ends", "claim_expires_at"), ("started", "started_at"), ("result in hand", "finalizing_at"),
    ("cancel asked", "cancel_requested_at"), ("completed", "completed_at"), ("failed", "failed_at"),
    ("ended", "terminal_at"), ("next retry", "next_retry_at"), ("good until", "good_until"), ("changed", "updated_at"),
)  # fmt: skip
_PAYLOAD: Final = ("args", "kwargs", "task_options", "progress", "result")


def main(argv: Sequence[str]) -> int:
    options = _parser().parse_args(argv)
    match options.verb:
        case "list":
            return run(options, lambda desk: _list(desk, options))
        case "show":
            return run(options, lambda desk: _show(desk, options))
        case "retry":
            return run(options, lambda desk: act(desk, options, Retry()))
        case "cancel":
            return run(options, lambda desk: act(desk, options, Cancel()))
        case _:
            return run(options, lambda desk: act(desk, options, Purge()))


def _parser() -> argparse.ArgumentParser:
    found = parser("tasks", "Look at tasks, and act on them by id or by filter.")
    verbs = Verbs(found, "list|show|retry|cancel|purge")
    listing = verbs.add("list", "list tasks: live ones first, then ended ones, the newest first")
    add_selection(listing, ids=False)
    listing.add_argument("--after", type=_cursor, metavar="CURSOR", help="go on where a page ended, as it was printed")
    show = verbs.add("show", "show everything about some tasks: times, attempts, arguments, result, heartbeats")
    show.add_argument("ids", nargs="+", metavar="ID")
    show.add_argument("--full", action="store_true", help="do not cut arguments, results and tracebacks")
    for name, text in (
        ("retry", "run FAILED, CANCELLED or EXPIRED tasks again, under the same id"),
        ("cancel", "stop tasks: waiting ones for good, running ones by asking their worker"),
        ("purge", "delete ended tasks and their attempts; never a live one, nor one of a workflow that has not ended"),
    ):
        verb = verbs.add(name, text)
        add_selection(verb)
        verb.add_argument("--dry-run", action="store_true", help="only say what would be done")
        verb.add_argument("--yes", action="store_true", help="do not ask, however many tasks match")
    return found


def _cursor(text: str) -> TaskCursor:
    try:
        return TaskCursor.parse(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not what a page of `tasks list` ended with") from None


# -- list ----------------------------------------------------------------------------------------


async def _list(desk: Desk, options: argparse.Namespace) -> int:
    page = await desk.broker.list_tasks(filter_of(options), options.limit or PAGE, options.after)
    if options.json:
        say_json({"tasks": page.tasks, "next": str(page.next) if page.next else None})
        return OK
    if not page.tasks:
        say("no tasks")
        return OK
    say_tasks(page.tasks)
    if page.next:
        say(f"\nthere may be more: --after {page.next}")
    return OK


def say_tasks(tasks: Sequence[TaskSummary]) -> None:
    """One line each."""
    say_table(
        ["ID", "TASK", "QUEUE", "PRI", "STATUS", "FOR", "TRIES", "WORKER", "ERROR"],
        [
            (
                task.id, _cut(task.task_name, 40), task.queue_name, task.priority, task.status, _age(task),
                f"{task.retry_count}/{task.max_retries}", _cut(task.claimed_by_worker_id, 36),
                _cut(task.error_code, 40),
            )
            for task in tasks
        ],
        right=("PRI", "FOR"),
    )  # fmt: skip


def _age(task: TaskSummary) -> str:
    return f"in {span(-task.age)}" if task.age.total_seconds() < 0 else span(task.age)


def _cut(text: str | None, width: int) -> str | None:
    return text if text is None or len(text) <= width else text[: width - 3] + "..."


# -- show ----------------------------------------------------------------------------------------


async def _show(desk: Desk, options: argparse.Namespace) -> int:
    found: list[TaskDetail] = []
    missing: list[str] = []
    for task_id in dict.fromkeys(options.ids):
        length = None if options.full else SHORT if options.json else WHOLE_ERROR
        detail = await desk.broker.get_task_detail(task_id, length, BEATS)
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
        complain(f"there is no task {task_id}: never sent, or pruned since")
    return PROBLEMS if missing else OK


def _detail_json(detail: TaskDetail) -> dict[str, Any]:
    payload = None if detail.payload is None else {name: detail.payload[name] for name in _PAYLOAD}
    cut = [] if detail.payload is None else [name for name in _PAYLOAD if _is_cut(detail.payload, name)]
    return {
        **as_json(detail.task), "payload": payload, "payload_cut": cut, "attempts": as_json(detail.attempts),
        "heartbeats": as_json(detail.heartbeats),
    }  # fmt: skip


def _say_detail(detail: TaskDetail, *, limit: int | None) -> None:
    task = detail.task
    error = error_in(detail.payload["result"]) if detail.payload is not None else None
    say_pairs(
        [
            ("id", task["id"]),
            ("task", task["task_name"]),
            ("status", task["status"]),
            ("queue", f"{task['queue_name']}, priority {task['priority']}"),
            ("retries", f"{task['retry_count']} of {task['max_retries']}" + _by_hand(task["manual_retries"])),
            ("unique key", task["unique_key"]),
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
    _say_payload(detail.payload, limit)
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


def _by_hand(count: int) -> str:
    return f", {count} by hand" if count else ""


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
    ago = task["seen_at"] - value
    when = f"in {span(-ago)}" if ago.total_seconds() < 0 else f"{span(ago)} ago"
    return f"{value.isoformat(sep=' ', timespec='milliseconds')}  {when}"


def _say_payload(payload: Mapping[str, Any] | None, limit: int | None) -> None:
    say()
    if payload is None:
        say(f"arguments, progress and result: {NEEDS_OPERATOR}")
        return
    for name in _PAYLOAD:
        _say_text(name, payload[name], limit, payload[name + "_chars"])
    error = error_in(payload["result"])
    _say_text("traceback", error and error.traceback, limit)


def _is_cut(payload: Mapping[str, Any], name: str) -> bool:
    return payload[name] is not None and len(payload[name]) < payload[name + "_chars"]


def _say_text(name: str, text: str | None, limit: int | None, length: int | None = None) -> None:
    """A text that may have lines of its own; each is set in, so that none can pass for ours. `length`: of the whole
    text, of which the database may have returned the beginning."""
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
