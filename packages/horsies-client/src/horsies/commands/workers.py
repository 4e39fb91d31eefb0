"""`horsies workers`: who is there, how they fare, and what they hold."""

import argparse
from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from horsies.commands._common import OK, Desk, add_database, add_json, parser, run
from horsies.commands._print import plural, say, say_json, say_table, span
from horsies.info import WorkerStatus

RECENT: Final = timedelta(minutes=10)
"""A dead worker is listed so long, and longer while it holds a task."""


def main(argv: Sequence[str]) -> int:
    found = parser("workers", "Which workers there are, how they fare, and what they hold.")
    add_database(found)
    add_json(found)
    found.add_argument("--all", action="store_true", help="also those that are long gone, as far back as is kept")
    options = found.parse_args(argv)
    return run(options, lambda desk: _list(desk, options))


async def _list(desk: Desk, options: argparse.Namespace) -> int:
    workers = await desk.broker.get_workers(None)
    if not options.all:
        workers = [one for one in workers if one.age <= RECENT or one.holds_claimed or one.holds_running]
    if options.json:
        say_json({"workers": workers})
        return OK
    if not workers:
        say("no worker was seen lately" if not options.all else "no worker was ever seen")
        return OK
    say_table(
        ["WORKER", "STATE", "SEEN", "HOST", "PID", "UP", "SLOTS", "RUNNING", "CLAIMED", "MEMORY", "CPU", "QUEUES"],
        [_line(one) for one in workers],
        right=("SEEN", "PID", "UP", "SLOTS", "RUNNING", "CLAIMED", "MEMORY", "CPU"),
    )
    for one in workers:
        if not one.liveness.is_there and (one.holds_running or one.holds_claimed):
            held = plural(one.holds_running + one.holds_claimed, "task")
            say(
                f"\n{one.worker_id} is {one.liveness} and still holds {held}: a live worker's reaper takes them "
                "back, `horsies stale` does it by hand"
            )
    return OK


def _line(one: WorkerStatus) -> tuple[object, ...]:
    memory = (one.memory_usage_mb or 0) + (one.children_memory_mb or 0)
    return (
        one.worker_id, one.liveness, f"{span(one.age)} ago", one.hostname, one.pid, span(one.up_for), one.processes,
        one.holds_running, one.holds_claimed, f"{memory:,.0f} MB" if memory else None,
        f"{one.cpu_percent:.0f} %" if one.cpu_percent is not None else None, one.queues,
    )  # fmt: skip
