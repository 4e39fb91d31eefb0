"""`horsies queues [list]`, `horsies queues pause|resume NAME...`."""

import argparse
from collections.abc import Sequence

from horsies.commands._common import OK, PROBLEMS, Desk, Verbs, parser, run
from horsies.commands._print import complain, one_line, say, say_json, say_table
from horsies.config.queues import DEFAULT_QUEUE, queue_name_problem
from horsies.errors import BrokerError, ConfigurationError
from horsies.info import QueueStatus


def main(argv: Sequence[str]) -> int:
    arguments = list(argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments.insert(0, "list")
    options = _parser().parse_args(arguments)
    return run(options, lambda desk: _list(desk, options) if options.verb == "list" else _mark(desk, options))


def _parser() -> argparse.ArgumentParser:
    found = parser("queues", "What waits and runs in which queue; pause and resume queues.")
    verbs = Verbs(found, "list|pause|resume")
    verbs.add("list", "list queues with what waits, what runs, and who serves them (this is what `queues` alone does)")
    for name, text in (
        ("pause", "let no worker claim from these queues; what runs goes on"),
        ("resume", "let workers claim from these queues again"),
    ):
        verb = verbs.add(name, text)
        verb.add_argument("names", nargs="+", metavar="NAME")
        if name == "pause":
            verb.add_argument("--force", action="store_true", help="also queues that no task and no worker has so far")
    return found


async def _list(desk: Desk, options: argparse.Namespace) -> int:
    queues = await desk.broker.get_queues()
    if options.json:
        say_json({"queues": queues})
        return OK
    if not queues:
        say("no queue has a task, a worker or a mark")
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


async def _mark(desk: Desk, options: argparse.Namespace) -> int:
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
    if options.json:
        say_json({"verb": options.verb, "done": done, "problems": problems})
    else:
        past = "paused" if options.verb == "pause" else "resumed"
        for name in done:
            say(f"{past} {one_line(name)}")
        for text in problems:
            complain(text)
    return PROBLEMS if problems else OK


async def _known(desk: Desk) -> set[str] | None:
    """To tell a typing error; None when that cannot be said quickly: an emergency brake does not wait for it."""
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
