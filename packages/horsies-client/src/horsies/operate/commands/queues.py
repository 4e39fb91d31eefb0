"""`horsies queues [list]`, `horsies queues pause|resume NAME...`."""

from collections.abc import Sequence

from horsies._checks import queue_name_problem
from horsies.config.queues import DEFAULT_QUEUE
from horsies.errors import BrokerError, ConfigurationError
from horsies.operate.commands._common import OK, Command, Desk
from horsies.operate.commands._print import one_line, say_table
from horsies.operate.views import QueueStatus


def main(argv: Sequence[str]) -> int:
    command = Command("queues", "What waits and runs in which queue; pause and resume queues.")
    about = "list queues with what waits, what runs, and who serves them (this is what `queues` alone does)"
    command.add("list", about, _list)
    pause = command.add("pause", "let no worker claim from these queues; what runs goes on", _mark)
    pause.add_argument("--force", action="store_true", help="also queues that no task and no worker has so far")
    for verb in (pause, command.add("resume", "let workers claim from these queues again", _mark)):
        verb.add_argument("names", nargs="+", metavar="NAME")
    return command.run(argv, default="list")


async def _list(desk: Desk) -> int:
    queues = await desk.broker.get_queues()
    if desk.has_said({"queues": queues}, queues, "no queue has a task, a worker or a mark"):
        return OK
    say_table(
        ["QUEUE", "READY", "DELAYED", "CLAIMED", "RUNNING", "OLDEST READY", "PAUSED", "WORKERS"],
        [_line(one) for one in queues],
        right=("READY", "DELAYED", "CLAIMED", "RUNNING", "OLDEST READY", "WORKERS"),
    )
    return OK


def _line(one: QueueStatus) -> tuple[object, ...]:
    more = "≥ " if one.is_bounded else ""
    return (
        one.name, f"{more if one.ready else ''}{one.ready:,}", f"{more if one.delayed else ''}{one.delayed:,}",
        one.claimed, one.running, one.oldest_ready, one.paused_for or "no", one.served_by or "none",
    )  # fmt: skip


async def _mark(desk: Desk) -> int:
    options = desk.options
    done: list[str] = []
    problems: list[str] = []
    known = None if options.verb == "resume" or options.force else await _known(desk)
    for name in dict.fromkeys(options.names):
        try:
            if known is not None and name not in known and queue_name_problem(name, "queue") is None:
                problems.append(_unknown(name, known))
            elif options.verb == "pause":
                await desk.broker.pause_queue(name)
                done.append(name)
            elif await desk.broker.resume_queue(name):
                done.append(name)
            else:
                problems.append(f"queue {name!r} is not paused: there is nothing to resume")
        except ConfigurationError as error:
            problems.append("; ".join(f"{one.why}: {one.fix}" for one in error.problems))
    past = "paused" if options.verb == "pause" else "resumed"
    return desk.report([f"{past} {one_line(name)}" for name in done], problems, done=done, problems=problems)


async def _known(desk: Desk) -> set[str] | None:
    """The known queues, to detect a misspelt name; None when they cannot be read: a pause must not wait for that."""
    try:
        return {DEFAULT_QUEUE, *(queue.name for queue in await desk.broker.get_queues(bound=1))}
    except BrokerError:
        return None


def _unknown(name: str, known: set[str]) -> str:
    listed = ", ".join(map(one_line, sorted(known)))
    return (
        f"queue {name!r} is not paused: no task and no worker has it so far (known are {listed}); "
        "--force pauses it all the same"
    )
