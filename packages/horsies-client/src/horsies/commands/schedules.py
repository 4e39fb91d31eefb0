"""`horsies schedules [list]`, `horsies schedules run-now|pause|resume NAME...`.

Works on the rows alone: the app's code is not needed, and a schedule is known once a scheduler has served it.
"""

import argparse
from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from typing import Final

from horsies.broker import PostgresBroker
from horsies.commands._common import OK, PROBLEMS, CommandError, Desk, Verbs, parser, run
from horsies.commands._print import complain, one_line, say, say_json, say_table
from horsies.info import ScheduleInfo

Act = Callable[[PostgresBroker, str], Awaitable[bool]]

_ACTS: Final[dict[str, tuple[Act, str, str]]] = {
    "run-now": (
        PostgresBroker.run_schedule_now, "ask the schedulers for one run beside the slots",
        "a scheduler is asked to run it; `horsies schedules list` shows when it has",
    ),
    "pause": (
        PostgresBroker.pause_schedule, "let slots pass without a run until it is resumed",
        "paused: its slots pass without a run",
    ),
    "resume": (
        PostgresBroker.resume_schedule, "run again from the next slot on", "runs again from its next slot on",
    ),
}  # fmt: skip


def main(argv: Sequence[str]) -> int:
    arguments = list(argv)
    if not arguments or (arguments[0].startswith("-") and arguments[0] not in ("-h", "--help")):
        arguments.insert(0, "list")
    options = _parser().parse_args(arguments)
    return run(options, lambda desk: _list(desk, options) if options.verb == "list" else _act(desk, options))


def _parser() -> argparse.ArgumentParser:
    found = parser("schedules", "Look at schedules, run one now, pause and resume.")
    verbs = Verbs(found, "list|run-now|pause|resume")
    verbs.add("list", "list schedules with their last and next run (this is what `schedules` alone does)")
    for name, (_, description, _) in _ACTS.items():
        verbs.add(name, description).add_argument("names", nargs="+", metavar="NAME")
    return found


async def _list(desk: Desk, options: argparse.Namespace) -> int:
    found = await desk.broker.get_schedules()
    if options.json:
        say_json({"schedules": found})
        return OK
    if not found:
        say("no schedule yet: they appear when `horsies scheduler` has served them for the first time")
        return OK
    say_table(
        ["SCHEDULE", "STATE", "NEXT RUN", "LAST RUN", "RUNS", "LAST TASK", "ITS STATUS"],
        [
            (
                one.schedule_name, _state(one), None if one.paused_at else one.next_run_at, one.last_run_at,
                f"{one.run_count:,}", one.last_task_id, one.last_task_status,
            )
            for one in found
        ],
        right=("RUNS",),
    )  # fmt: skip
    return OK


def _state(one: ScheduleInfo) -> str:
    if one.run_requested_at is not None:
        return "paused, run asked for" if one.paused_at is not None else "run asked for"
    if one.paused_at is not None:
        return "paused"
    return "by hand only" if one.next_run_at is None else "active"


async def _act(desk: Desk, options: argparse.Namespace) -> int:
    act, _, told = _ACTS[options.verb]
    names: list[str] = list(dict.fromkeys(options.names))
    # all or none: a slip in the third name must not leave the first two changed
    known = [one.schedule_name for one in await desk.broker.get_schedules()]
    for name in names:
        if name not in known:
            raise CommandError(f"nothing done: there is no schedule {name!r}, {_hint(name, known)}")
    done = [name for name in names if await act(desk.broker, name)]
    gone = [f"schedule {name!r} has vanished meanwhile" for name in names if name not in done]
    if options.json:
        say_json({"verb": options.verb, "done": done, "problems": gone})
    else:
        for name in done:
            say(f"{one_line(name)}: {told}")
        for text in gone:
            complain(text)
    return PROBLEMS if gone else OK


def _hint(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "`horsies schedules list` names those there are" if known else "no scheduler has served any yet"
