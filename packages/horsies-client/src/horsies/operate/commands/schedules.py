"""`horsies schedules [list]`, `horsies schedules run-now|pause|resume NAME...`.

It reads and marks rows only: the app's code is not needed, and a schedule is known once a scheduler has served it.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from typing import Final

from horsies.operate.broker import PostgresBroker
from horsies.operate.commands._common import OK, Command, CommandError, Desk
from horsies.operate.commands._print import complain, one_line, say, say_table, short, span
from horsies.operate.schedule_state import FORGOTTEN_AFTER, LISTED_FOR, ScheduleState
from horsies.operate.views import ScheduleInfo

_PAUSED, _OVERDUE, _REMOVED = ScheduleState.PAUSED, ScheduleState.OVERDUE, ScheduleState.REMOVED
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
    command = Command("schedules", "Look at schedules, run one now, pause and resume.")
    about = "list schedules with their last and next run (this is what `schedules` alone does)"
    listing = command.add("list", about, _list)
    listing.add_argument("--all", action="store_true", help="also those that were removed more than a day ago")
    for name, (_, description, _) in _ACTS.items():
        command.add(name, description, _act).add_argument("names", nargs="+", metavar="NAME")
    return command.run(argv, default="list")


async def _list(desk: Desk) -> int:
    found = await desk.broker.get_schedules()
    if not desk.options.all:
        found = [one for one in found if one.state is not _REMOVED or one.unlisted_for <= FORGOTTEN_AFTER]
    document = {"schedules": [{**asdict(one), "state": one.state} for one in found]}
    empty = "no schedule yet: they appear when `horsies scheduler` has served them for the first time"
    if desk.has_said(document, found, empty):
        return OK
    say_table(
        ["SCHEDULE", "STATE", "NEXT RUN", "LAST RUN", "RUNS", "LAST TASK", "ITS STATUS"],
        [
            (
                one.schedule_name, _state(one), None if one.state in (_PAUSED, _REMOVED) else one.next_run_at,
                one.last_run_at, f"{one.run_count:,}", one.last_task_id,
                one.last_task_status or one.last_workflow_status,
            )
            for one in found
        ],
        right=("RUNS",),
    )  # fmt: skip
    for text in _alarms(found):
        say(f"\n{text}")
    return OK


def _state(one: ScheduleInfo) -> str:
    state = one.state
    if state is _REMOVED:
        return f"removed, last listed {span(one.unlisted_for)} ago"
    parts = [f"overdue by {span(one.overdue_by)}" if state is _OVERDUE and one.overdue_by else str(state)]
    if one.run_requested_at is not None:
        parts = [*(parts if state in (_PAUSED, _OVERDUE) else []), "run asked for"]
    return ", ".join(parts)


def _alarms(found: Sequence[ScheduleInfo]) -> Iterator[str]:
    if found and found[0].scheduler_seen > LISTED_FOR:
        yield (
            f"no scheduler is running: the last sign of one is {span(found[0].scheduler_seen)} old; `horsies scheduler "
            "module:app` starts one"
        )
    if any(one.state is _REMOVED for one in found):
        yield (
            "no live scheduler lists the removed ones: they are gone from the code, or the scheduler of their app is "
            "down; after a day only --all lists them"
        )


async def _act(desk: Desk) -> int:
    options = desk.options
    act, _, told = _ACTS[options.verb]
    names: list[str] = list(dict.fromkeys(options.names))
    # all or none: a misspelt third name must not leave the first two changed
    schedules = await desk.broker.get_schedules()
    known = [one.schedule_name for one in schedules]
    for name in names:
        if name not in known:
            raise CommandError(f"nothing done: there is no schedule {short(name)!r}, {_hint(name, known)}")
    done = [name for name in names if await act(desk.broker, name)]
    gone = [f"schedule {name!r} has vanished meanwhile" for name in names if name not in done]
    if options.verb == "run-now" and not options.json:
        for text in _alarms([one for one in schedules if one.schedule_name in done]):
            complain(text)
    return desk.report([f"{one_line(name)}: {told}" for name in done], gone, done=done, problems=gone)


def _hint(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "`horsies schedules list` names those there are" if known else "no scheduler has served any yet"
