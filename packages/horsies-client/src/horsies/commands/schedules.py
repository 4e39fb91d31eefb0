"""`horsies schedules [list]`, `horsies schedules run-now|pause|resume NAME...`.

Works on the rows alone: the app's code is not needed, and a schedule is known once a scheduler has served it.
"""

import argparse
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from datetime import datetime
from difflib import get_close_matches
from typing import Final

from horsies.broker import PostgresBroker
from horsies.commands._common import OK, PROBLEMS, CommandError, Desk, Verbs, parser, run
from horsies.commands._print import complain, one_line, say, say_json, say_table, span
from horsies.info import ScheduleInfo
from horsies.schedule_state import FORGOTTEN_AFTER, LISTED_FOR, ScheduleState

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
    listing = verbs.add("list", "list schedules with their last and next run (this is what `schedules` alone does)")
    listing.add_argument("--all", action="store_true", help="also those that were removed more than a day ago")
    for name, (_, description, _) in _ACTS.items():
        verbs.add(name, description).add_argument("names", nargs="+", metavar="NAME")
    return found


async def _list(desk: Desk, options: argparse.Namespace) -> int:
    found = [one for one in await desk.broker.get_schedules() if options.all or not _is_forgotten(one)]
    if options.json:
        say_json({"schedules": [{**asdict(one), "state": one.state} for one in found]})
        return OK
    if not found:
        say("no schedule yet: they appear when `horsies scheduler` has served them for the first time")
        return OK
    say_table(
        ["SCHEDULE", "STATE", "NEXT RUN", "LAST RUN", "RUNS", "LAST TASK", "ITS STATUS"],
        [
            (
                one.schedule_name, _state(one), _next_run(one), one.last_run_at,
                f"{one.run_count:,}", one.last_task_id, one.last_task_status,
            )
            for one in found
        ],
        right=("RUNS",),
    )  # fmt: skip
    for text in _alarms(found):
        say(f"\n{text}")
    return OK


def _is_forgotten(one: ScheduleInfo) -> bool:
    return one.state is ScheduleState.REMOVED and one.unlisted_for > FORGOTTEN_AFTER


def _state(one: ScheduleInfo) -> str:
    state = one.state
    if state is ScheduleState.REMOVED:
        return f"removed, last listed {span(one.unlisted_for)} ago"
    parts = [f"overdue by {span(one.overdue_by)}" if state is ScheduleState.OVERDUE and one.overdue_by else str(state)]
    if one.run_requested_at is not None:
        parts = [*(parts if state in (ScheduleState.PAUSED, ScheduleState.OVERDUE) else []), "run asked for"]
    return ", ".join(parts)


def _next_run(one: ScheduleInfo) -> datetime | None:
    return None if one.state in (ScheduleState.PAUSED, ScheduleState.REMOVED) else one.next_run_at


def _alarms(found: Sequence[ScheduleInfo]) -> Iterator[str]:
    if found and found[0].scheduler_seen > LISTED_FOR:
        yield (
            f"no scheduler is running: the last sign of one is {span(found[0].scheduler_seen)} old; `horsies scheduler "
            "module:app` starts one"
        )
    if any(one.state is ScheduleState.REMOVED for one in found):
        yield (
            "no live scheduler lists the removed ones: they are gone from the code, or the scheduler of their app is "
            "down; after a day only --all lists them"
        )


async def _act(desk: Desk, options: argparse.Namespace) -> int:
    act, _, told = _ACTS[options.verb]
    names: list[str] = list(dict.fromkeys(options.names))
    # all or none: a slip in the third name must not leave the first two changed
    schedules = await desk.broker.get_schedules()
    known = [one.schedule_name for one in schedules]
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
        if options.verb == "run-now":
            for text in _alarms([one for one in schedules if one.schedule_name in done]):
                complain(text)
        for text in gone:
            complain(text)
    return PROBLEMS if gone else OK


def _hint(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "`horsies schedules list` names those there are" if known else "no scheduler has served any yet"
