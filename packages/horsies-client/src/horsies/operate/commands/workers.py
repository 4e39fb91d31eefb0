"""`horsies workers [list]`, and `horsies workers drain|resume|resize ID...`: the workers, and control of them."""

import argparse
import asyncio
import getpass
import socket
import time
from datetime import timedelta
from typing import Final

from horsies._text import short
from horsies.operate.commands._common import OK, Command, CommandError, Desk, Refused, confirm, duration
from horsies.operate.commands._print import complain, plural, say, say_table, span
from horsies.operate.commands._progress import Progress
from horsies.operate.reading import is_recent
from horsies.operate.views import WorkerStatus
from horsies.operate.worker_control import MAX_PROCESSES

_WAIT: Final = timedelta(minutes=5)
_DONE: Final = {"drain": "drained", "resume": "resumed", "resize": "resized"}


def build() -> Command:
    command = Command(
        "workers", "Which workers there are, how they fare, and what they hold; drain and resize them.", default="list"
    )
    about = "list workers, their load and what they hold (this is what `workers` alone does)"
    listing = command.add("list", about, _list)
    listing.add_argument("--all", action="store_true", help="also those that are long gone, as far back as is kept")
    drain = command.add("drain", "let workers claim nothing more; what runs goes on, and they stay alive", _control)
    resume = command.add("resume", "let drained workers claim again", _control)
    resize = command.add("resize", "change the number of child processes of workers", _control)
    for verb in (drain, resume, resize):
        verb.add_argument("workers", nargs="*", metavar="WORKER", help="an id, its beginning, host:pid, or a host")
        verb.add_argument("--all", action="store_true", help="all live workers")
        _add_waiting(verb)
    resize.add_argument("processes", type=_processes, metavar="N", help=f"1 to {MAX_PROCESSES:,} child processes, last")
    return command


def _add_waiting(to: argparse.ArgumentParser) -> None:
    to.add_argument(
        "--timeout", type=duration, default=_WAIT, metavar="TIME",
        help="wait so long until it holds, such as 90s or 2h (default: 5m); the request stays afterwards",
    )  # fmt: skip
    to.add_argument("--no-wait", action="store_true", help="only ask, and do not wait until it holds")
    to.add_argument("--yes", action="store_true", help="do not ask for a confirmation, however many workers")


def _processes(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= MAX_PROCESSES:
        raise argparse.ArgumentTypeError(
            f"{short(text)!r} is not a whole number from 1 to {MAX_PROCESSES:,}: write it behind the workers, as in "
            "`horsies workers resize web-1:4711 4`"
        )
    return int(text)


async def _control(desk: Desk) -> int:
    options, control = desk.options, desk.broker.workers
    if bool(options.workers) is options.all:
        raise Refused("name workers, or give --all for all live ones: `horsies workers` lists them")
    chosen = await control.find(None if options.all else options.workers)
    if not chosen:
        raise CommandError("there is no live worker")
    confirm(options.verb, len(chosen), "worker", yes=options.yes, look="look first with `horsies workers`")
    ids, by = [one.worker_id for one in chosen], _asked_by()
    if options.verb == "resize":
        asked = await control.resize(ids, options.processes, requested_by=by)
    else:
        asked = await (control.drain if options.verb == "drain" else control.resume)(ids, requested_by=by)
    if options.no_wait:
        done = [f"worker {one.worker_id} was asked to {options.verb}" for one in asked]
        return desk.report(done, [], asked=[one.worker_id for one in asked], reached=[], problems=[])
    if not options.json:
        say(f"asked {plural(len(asked), 'worker')} to {options.verb}; waiting up to {span(options.timeout)}")
    began = time.monotonic()
    with Progress(_DONE[options.verb], "worker", len(asked), is_quiet=options.json, has_batches=False) as progress:

        def on_look(reached: int) -> None:
            progress.show(
                f"{_DONE[options.verb]} {reached:,} of {plural(len(asked), 'worker')}, "
                f"{span(timedelta(seconds=int(time.monotonic() - began)))}; Ctrl-C ends the wait, the request stays"
            )

        try:
            problems = await control.wait(asked, options.timeout.total_seconds(), on_look)
        except asyncio.CancelledError:  # Ctrl-C
            undo = "`horsies workers resume`" if options.verb == "drain" else "another request"
            complain(f"the request to {options.verb} {plural(len(asked), 'worker')} stays: {undo} takes it back")
            raise
    now = {one.worker_id: one for one in await control.progress(asked)}
    reached = [one.worker_id for one in asked if one.worker_id in now and now[one.worker_id].has_reached(one)]
    size = f" to {options.processes}" if options.verb == "resize" else ""
    done = [f"worker {one} is {_DONE[options.verb]}{size}" for one in reached]
    return desk.report(done, problems, asked=[one.worker_id for one in asked], reached=reached, problems=problems)


def _asked_by() -> str:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


async def _list(desk: Desk) -> int:
    workers, wants_all = await desk.reader.get_workers(None), desk.options.all
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
        one.worker_id, one.standing, f"{span(one.age)} ago", one.hostname, one.pid, span(one.up_for), one.processes,
        one.holds_running, one.holds_claimed, f"{memory:,.0f} MB" if memory else None,
        f"{one.cpu_percent:.0f} %" if one.cpu_percent is not None else None, one.queues,
    )  # fmt: skip
