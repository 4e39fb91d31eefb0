"""`horsies workers`: the workers, their load, and the tasks that they hold."""

from collections.abc import Sequence

from horsies.operate.commands._common import OK, Command, Desk
from horsies.operate.commands._print import plural, say, say_table, span
from horsies.operate.reading import is_recent
from horsies.operate.views import WorkerStatus


def main(argv: Sequence[str]) -> int:
    command = Command("workers", "Which workers there are, how they fare, and what they hold.", _list)
    command.parser.add_argument(
        "--all", action="store_true", help="also those that are long gone, as far back as is kept"
    )
    return command.run(argv)


async def _list(desk: Desk) -> int:
    workers, wants_all = await desk.broker.get_workers(None), desk.options.all
    if not wants_all:
        workers = [one for one in workers if is_recent(one)]
    empty = "no worker was ever seen" if wants_all else "no worker was seen lately"
    if desk.has_said({"workers": workers}, workers, empty):
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
