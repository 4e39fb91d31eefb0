"""`horsies schedules list | run-now | pause | resume`: what the schedulers have done and will do, and how to steer it.

Works on the rows alone: the app's code is not needed, and a schedule is known once a scheduler has served it.
"""

from collections.abc import Awaitable, Callable, Sequence
from difflib import get_close_matches
from typing import Final

from horsies.broker import PostgresBroker
from horsies.commands._common import OK, CommandError, Desk, Verbs, parser, run
from horsies.commands._print import plural, say, say_json, say_table
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
    """The command."""
    command = parser("schedules", "Look at schedules, run one now, pause and resume.")
    verbs = Verbs(command, "list|run-now|pause|resume")
    verbs.add("list", "every schedule with its last and next run")
    for name, (_, description, _) in _ACTS.items():
        verbs.add(name, description).add_argument("schedule", nargs="+", help="the schedule's name")
    options = command.parse_args(argv)
    if options.verb == "list":
        return run(options, lambda desk: _list(desk, as_json=options.json))
    names: list[str] = list(dict.fromkeys(options.schedule))
    return run(options, lambda desk: _act(desk, options.verb, names, as_json=options.json))


async def _list(desk: Desk, *, as_json: bool) -> int:
    found = await desk.broker.get_schedules()
    if as_json:
        say_json(found)
        return OK
    if not found:
        say("no schedule yet: they appear when `horsies scheduler` has served them for the first time")
        return OK
    say_table(
        ["schedule", "state", "next run", "last run", "runs", "last task", "its status"],
        [
            [
                one.schedule_name, _state(one), None if one.paused_at else one.next_run_at, one.last_run_at,
                one.run_count, one.last_task_id, one.last_task_status,
            ]
            for one in found
        ],
        right=["runs"],
    )  # fmt: skip
    return OK


def _state(one: ScheduleInfo) -> str:
    if one.run_requested_at is not None:
        return "paused, run asked for" if one.paused_at is not None else "run asked for"
    if one.paused_at is not None:
        return "paused"
    return "by hand only" if one.next_run_at is None else "active"


async def _act(desk: Desk, verb: str, names: Sequence[str], *, as_json: bool) -> int:
    act, _, told = _ACTS[verb]
    # all or none: a slip in the third name must not leave the first two changed
    known = [one.schedule_name for one in await desk.broker.get_schedules()]
    for name in names:
        if name not in known:
            raise CommandError(f"nothing done: there is no schedule {name!r}, {_hint(name, known)}")
    done = [name for name in names if await act(desk.broker, name)]
    if as_json:
        say_json({"verb": verb, "schedules": done})
    else:
        for name in done:
            say(f"{name}: {told}")
    if len(done) != len(names):
        raise CommandError(f"{plural(len(names) - len(done), 'schedule')} vanished meanwhile")
    return OK


def _hint(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "`horsies schedules list` names those there are" if known else "no scheduler has served any yet"
