"""`horsies stale list|fail|requeue`: tasks whose worker is gone, or has given no sign of life for too long.

The reaper of any live worker does this by itself. By hand it is needed when no worker is left, or when the reaper is
switched off.
"""

import argparse
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Final

from horsies.operate.broker import PostgresBroker
from horsies.operate.commands._common import (
    OK,
    PROBLEMS,
    Command,
    Desk,
    add_confirmation,
    confirm,
    duration,
    row_id,
)
from horsies.operate.commands._print import complain, plural, say, say_json, say_table, span
from horsies.operate.stale import StaleKind
from horsies.operate.views import StaleTask
from horsies.status import TaskStatus

BATCH: Final = 500
_PAST: Final = {"fail": "failed", "requeue": "requeued"}


def build() -> Command:
    command = Command("stale", "Tasks whose worker has given no sign of life for too long.")
    for name, work, about in (
        ("list", _list, "list them, the longest silent first"),
        ("fail", _act, "end RUNNING ones as FAILED, WORKER_CRASHED; their user code may have run"),
        ("requeue", _act, "send CLAIMED ones back to their queue; always safe, their user code has not run"),
    ):
        verb = command.add(name, about, work)
        verb.add_argument(
            "--older-than", type=duration, metavar="SPAN",
            help="silence that counts as stale (default: everything that a dead worker holds, else the worker's own "
            "thresholds, which are 2m for CLAIMED and 5m for RUNNING tasks unless set otherwise)",
        )  # fmt: skip
        if work is _act:
            verb.add_argument("ids", nargs="*", metavar="ID", type=row_id, help="only these of them (default: all)")
            add_confirmation(verb, "there are")
    return command


async def _list(desk: Desk) -> int:
    found = [task for task, _ in await _stale(desk, desk.reader)]
    if not desk.has_said({"tasks": found}, found, "no stale tasks"):
        _say_stale(found)
    return OK


async def _act(desk: Desk) -> int:
    options = desk.options
    status = TaskStatus.RUNNING if options.verb == "fail" else TaskStatus.CLAIMED
    stale = {task.id: (task, guard) for task, guard in await _stale(desk, desk.broker) if task.status is status}
    wanted = list(dict.fromkeys(options.ids)) or list(stale)
    meant = [stale[task_id] for task_id in wanted if task_id in stale]
    threshold = options.older_than or (await desk.broker.stale_rules()).threshold(StaleKind(status.lower()), None)
    why = f"it is not {status}, or its worker gave a sign of life within {span(threshold)}"
    left = {task_id: why for task_id in wanted if task_id not in stale}
    done, is_stopped = 0, False
    if not options.dry_run and meant:
        if not options.ids:
            confirm(options.verb, len(meant), "task", yes=options.yes)
        is_fail, broker = options.verb == "fail", desk.broker
        verb = broker.mark_stale_tasks_as_failed if is_fail else broker.requeue_stale_claimed
        with desk.progress(_PAST[options.verb], "task", len(meant)) as progress:
            for guard, ids in _batches(meant):
                if progress.is_stopped:
                    break
                progress.add(await verb(int(guard.total_seconds() * 1000), ids))
        done = progress.done
        is_stopped = progress.is_stopped
    _tell(options, [task for task, _ in meant], done, left, is_stopped=is_stopped)
    return OK if meant and not left and (options.dry_run or done) else PROBLEMS


def _batches(meant: Sequence[tuple[StaleTask, timedelta]]) -> Iterator[tuple[timedelta, list[str]]]:
    """The ids in batches of tasks with the same guard."""
    for guard in sorted({guard for _, guard in meant}):
        ids = [task.id for task, demanded in meant if demanded == guard]
        for at in range(0, len(ids), BATCH):
            yield guard, ids[at : at + BATCH]


def _tell(
    options: argparse.Namespace, meant: Sequence[StaleTask], done: int, left: dict[str, str], *, is_stopped: bool
) -> None:
    past = _PAST[options.verb]
    if options.json:
        say_json(
            {
                "verb": options.verb, "dry_run": options.dry_run, "matched": len(meant), "done": done,
                "ids": [task.id for task in meant], "not_done": [{"id": key, "why": why} for key, why in left.items()],
                "interrupted": is_stopped,
            }
        )  # fmt: skip
        return
    if not meant:
        say(f"no stale task to {options.verb}")
    elif options.dry_run:
        say(f"would {options.verb} {plural(len(meant), 'task')}")
        _say_stale(meant)
    else:
        say(f"{past} {plural(done, 'task')}")
        if done < len(meant) and not is_stopped:
            say(f"{plural(len(meant) - done, 'task')} gave a sign of life, or moved, in the meantime")
    for task_id, why in left.items():
        complain(f"task {task_id} {'would not be' if options.dry_run else 'was not'} {past}: {why}")


def _say_stale(tasks: Sequence[StaleTask]) -> None:
    say_table(
        ["ID", "TASK", "QUEUE", "STATUS", "SILENT", "TRIES", "WORKER", "HOST", "PID"],
        [
            (
                task.id, task.task_name, task.queue_name, task.status, task.silence,
                f"{task.retry_count}/{task.max_retries}", task.claimed_by_worker_id, task.worker_hostname,
                task.worker_pid,
            )
            for task in tasks
        ],
        right=("SILENT",),
    )  # fmt: skip


async def _stale(desk: Desk, broker: PostgresBroker) -> list[tuple[StaleTask, timedelta]]:
    """The stale tasks, the longest silent first, each with the silence that an action requires."""
    if (least := desk.options.older_than) is not None:
        return [(task, least) for task in await broker.get_stale_tasks(least.total_seconds() / 60)]
    return [(task, _rounded(verdict.guard)) for task, verdict in await broker.find_stale()]


def _rounded(guard: timedelta) -> timedelta:
    """Round down to seconds, so that the tasks of one dead worker need few statements."""
    return timedelta(seconds=max(1, int(guard.total_seconds())))
