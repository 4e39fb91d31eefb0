"""`horsies schedules [list]`, `show|history NAME`, `add|edit NAME`, `remove|run-now|pause|resume NAME...`.

It reads and writes rows only: the app's code is not needed. With `--app`, `add` and `edit` check the arguments against
the app's task. A schedule in code is known once a scheduler has served it.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from difflib import get_close_matches
from typing import TYPE_CHECKING, Final

from horsies._command_line import did_you_mean
from horsies.errors import BrokerError, ConfigurationError
from horsies.operate.broker import PostgresBroker
from horsies.operate.commands._common import OK, Command, CommandError, Desk, Refused, add_decode, at_least_one
from horsies.operate.commands._print import complain, one_line, say, say_pairs, say_table, short, span
from horsies.operate.commands._schedule_options import NEW, add_schedule_options, given_columns, merged
from horsies.operate.encoded import shown_arguments
from horsies.operate.schedule_control import HISTORY, MAX_PAGE, ScheduleControl
from horsies.operate.schedule_state import FORGOTTEN_AFTER, ScheduleState, is_scheduler_seen
from horsies.operate.schedule_views import ScheduleRun, StoredSchedule
from horsies.operate.session import NEEDS_OPERATOR, is_denied
from horsies.operate.views import ScheduleInfo
from horsies.stored_schedule import schedule_of

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.envelopes import Envelopes

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


def build() -> Command:
    command = Command(
        "schedules", "Look at schedules, make and change them, run one now, pause and resume.", default="list"
    )
    about = "list schedules with their last and next run (this is what `schedules` alone does)"
    listing = command.add("list", about, _list)
    listing.add_argument("--all", action="store_true", help="also those that were removed more than a day ago")
    listing.add_argument("--kind", choices=("code", "data"), help="only those in code, or only those made at run time")
    listing.add_argument("--limit", type=at_least_one, default=MAX_PAGE, metavar="N", help="at most so many")
    listing.add_argument("--after", metavar="NAME", help="those behind this name: the next page")
    show = command.add("show", "one schedule: when and what it runs, its state, what is wrong with it", _show)
    show.add_argument("name", metavar="NAME", help="the schedule")
    add_decode(show)
    past = command.add("history", f"the last {HISTORY} runs and skipped slots of one schedule", _history)
    past.add_argument("name", metavar="NAME", help="the schedule")
    past.add_argument("--limit", type=at_least_one, default=HISTORY, metavar="N", help="at most so many")
    new = command.add("add", "make a schedule; schedulers that know its task serve it at once", _add)
    new.add_argument("name", metavar="NAME", help="the schedule")
    add_schedule_options(new, is_new=True)
    edit = command.add("edit", "change what the options give, of a schedule that was made at run time", _edit)
    edit.add_argument("name", metavar="NAME", help="the schedule")
    add_schedule_options(edit, is_new=False)
    command.add(
        "remove",
        "delete schedules that were made at run time; one of the code that they hid runs again, unless it is paused",
        _remove,
    ).add_argument("names", nargs="+", metavar="NAME", help="the schedule")
    for name, (_, description, _) in _ACTS.items():
        command.add(name, description, _act).add_argument("names", nargs="+", metavar="NAME", help="the schedule")
    return command


async def _list(desk: Desk) -> int:
    options = desk.options
    limit = min(options.limit, MAX_PAGE)
    found = await desk.reader.schedules.list(limit, options.after, options.kind)
    last = found[-1].schedule_name if len(found) == limit else None
    if not options.all:
        found = [one for one in found if one.state is not _REMOVED or one.unlisted_for <= FORGOTTEN_AFTER]
    document = {"schedules": [{**asdict(one), "state": one.state} for one in found], "next": last}
    empty = (
        f"no schedule behind {short(options.after)!r}" if options.after is not None
        else "no schedule: those in code appear when `horsies scheduler` has served them for the first time, and "
        "`horsies schedules add` makes others"
    )  # fmt: skip
    if desk.has_said(document, found, empty):
        return OK
    say_table(
        ["SCHEDULE", "FROM", "STATE", "NEXT RUN", "LAST RUN", "RUNS", "LAST TASK", "ITS STATUS"],
        [
            (
                one.schedule_name, _kind(one), _state(one),
                None if one.state in (_PAUSED, _REMOVED) else one.next_run_at, one.last_run_at, f"{one.run_count:,}",
                one.last_task_id,
                one.last_task_status or one.last_workflow_status,
            )
            for one in found
        ],
        right=("RUNS",),
    )  # fmt: skip
    for text in _alarms(found):
        say(f"\n{text}")
    if last is not None:
        say(f"\nthere may be more: --after {short(last)!r}")
    return OK


def _kind(one: ScheduleInfo) -> str:
    return "data" if one.is_data else "code"


def _state(one: ScheduleInfo) -> str:
    state = one.state
    if state is _REMOVED:
        return f"removed, last listed {span(one.unlisted_for)} ago"
    parts = [f"overdue by {span(one.overdue_by)}" if state is _OVERDUE and one.overdue_by else str(state)]
    if one.run_requested_at is not None:
        parts = [*(parts if state in (_PAUSED, _OVERDUE) else []), "run asked for"]
    return ", ".join(parts)


def _alarms(found: Sequence[ScheduleInfo], *, is_shown: bool = False) -> Iterator[str]:
    """What is wrong with these; `is_shown`: with one of which the problem is said already."""
    if found and not is_scheduler_seen(seen := found[0].scheduler_seen):
        sign = "there was never one" if seen is None else f"the last sign of one is {span(seen)} old"
        yield f"no scheduler is running: {sign}; `horsies scheduler module:app` starts one"
    if unknown := [one.schedule_name for one in found if one.state is ScheduleState.UNKNOWN]:
        whose = one_line(short(unknown[0])) if len(unknown) == 1 else f"{len(unknown)} schedules"
        yield (
            f"no running scheduler knows what {whose} is to run: the name of the task or workflow is misspelt or gone "
            "from the code, or the scheduler of its app is down"
        )
    if not is_shown and any(one.state is ScheduleState.BROKEN for one in found):
        which = f"{one_line(found[0].schedule_name)!r} cannot" if len(found) == 1 else "some schedules cannot"
        yield f"{which} run: `horsies schedules show NAME` says why"
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
    schedules = [await _found(desk, name) for name in names]
    done = [name for name in names if await act(desk.broker, name)]
    gone = [f"schedule {name!r} has vanished meanwhile" for name in names if name not in done]
    if options.verb == "run-now" and not options.json:
        for text in _alarms([one for one in schedules if one.schedule_name in done]):
            complain(text)
    return desk.report([f"{one_line(name)}: {told}" for name in done], gone, done=done, problems=gone)


async def _found(desk: Desk, name: str) -> ScheduleInfo:
    """The state of a schedule; raises when there is none."""
    if (found := await desk.broker.schedules.state(name)) is not None:
        return found
    known = [one.schedule_name for one in await desk.broker.schedules.list(MAX_PAGE)]
    raise CommandError(f"nothing done: there is no schedule {short(name)!r}, {_hint(name, known)}")


def _hint(name: str, known: Sequence[str]) -> str:
    close = get_close_matches(name, known, 1)
    if close:
        return f"did you mean {close[0]!r}?"
    return "`horsies schedules list` names those there are" if known else "and no other one either"


# -- one schedule --------------------------------------------------------------------------------


async def _show(desk: Desk) -> int:
    control = desk.broker.schedules
    state = await _found(desk, desk.options.name)
    decodes = desk.decodes()
    envelopes = desk.given_app.envelopes if desk.given_app and decodes else None
    stored = await control.get(state.schedule_name, decode=False)
    problem = await _problem(control, state, decode=decodes)
    if desk.options.json:
        found = await control.get(state.schedule_name) if decodes else stored
        document = {
            "state": {**asdict(state), "state": state.state},
            "schedule": found and found.without_envelopes(),
            "problem": problem,
        }
        return desk.report((), (), **document)
    say_pairs(
        [
            ("schedule", state.schedule_name), ("from", "code" if stored is None else "data, made at run time"),
            ("state", _state(state)), ("problem", problem), ("next run", state.next_run_at),
            ("last run", state.last_run_at), ("runs", f"{state.run_count:,}"), ("last task", state.last_task_id),
            ("its status", state.last_task_status or state.last_workflow_status),
            ("paused since", state.paused_at), *(() if stored is None else _pairs(stored, envelopes)),
        ],
        limit=1_000,
    )  # fmt: skip
    for text in _alarms([state], is_shown=True):
        say(f"\n{text}")
    return OK


def _pairs(stored: StoredSchedule, envelopes: "Envelopes | None") -> Iterator[tuple[str, object]]:
    kwargs = stored.kwargs
    yield "runs" if stored.workflow else "task", stored.target
    yield "pattern", stored.told_pattern
    yield "time zone", stored.timezone
    yield "arguments", NEEDS_OPERATOR if kwargs is None else shown_arguments(kwargs, stored.target, envelopes)
    yield "queue", stored.queue_name
    yield "group", stored.group_key
    yield "overlap", stored.overlap
    yield "skipped times", stored.skipped_times
    yield "catch up", f"up to {stored.max_catch_up_runs} runs" if stored.catch_up_missed else "the latest slot"
    yield "jitter", f"{stored.jitter_s:g} s" if stored.jitter_s else None
    yield "enabled", stored.enabled
    yield "version", stored.version
    yield "made by", stored.created_by
    yield "made at", stored.created_at
    yield "changed at", stored.updated_at


async def _problem(control: ScheduleControl, state: ScheduleInfo, *, decode: bool) -> str | None:
    if state.problem_at is None:
        return None
    try:
        return await control.problem(state.schedule_name, decode=decode)
    except BrokerError as error:
        if not is_denied(error):
            raise
        return NEEDS_OPERATOR


async def _history(desk: Desk) -> int:
    state = await _found(desk, desk.options.name)
    found = await desk.broker.schedules.history(state.schedule_name, min(desk.options.limit, HISTORY))
    document = {"schedule": state.schedule_name, "history": list(found)}
    if desk.has_said(document, found, f"{one_line(state.schedule_name)} has not run yet"):
        return OK
    say_table(
        ["SLOT", "LATE BY", "OUTCOME", "TASK", "ERROR"],
        [(one.slot, _late(one), _outcome(one), one.task_id, one.error_code) for one in found],
        right=("LATE BY",),
    )
    return OK


def _late(one: ScheduleRun) -> str | None:
    return None if one.skipped or one.is_request else span(one.fired_at - one.slot)


def _outcome(one: ScheduleRun) -> str:
    if one.skipped is not None:
        return f"skipped: {one.skipped}" + (f", to {one.last_slot}" if one.last_slot != one.slot else "")
    return (one.status or "deleted") + (", on request" if one.is_request else "")


# -- making, changing, removing ------------------------------------------------------------------


async def _add(desk: Desk) -> int:
    return await _put(desk, NEW, 0, "made")


async def _edit(desk: Desk) -> int:
    name: str = desk.options.name
    given = given_columns(desk.options)
    if not given:
        raise Refused("nothing to change: give what shall be otherwise, such as --daily 03:00")
    stored = await desk.broker.schedules.get(name)
    if stored is None:
        await _found(desk, name)
        raise CommandError(_is_code(name))
    if stored.kwargs is None:
        raise CommandError(f"nothing done: the arguments of {short(name)!r} are {NEEDS_OPERATOR}")
    is_moved = any(name in given and given[name] != getattr(stored, name) for name in ("task_name", "workflow"))
    if is_moved and "kwargs" not in given and stored.without_envelopes().kwargs != stored.kwargs:
        raise Refused(
            f"nothing done: the arguments of {short(name)!r} are encoded for {short(stored.target)!r}: name the app "
            "that has the payload codec with --app module:app, or give --kwargs"
        )
    row = {field.name: getattr(stored, field.name) for field in fields(StoredSchedule)}
    return await _put(desk, row, stored.version, "changed")


async def _put(desk: Desk, row: Mapping[str, object], version: int, done: str) -> int:
    control = desk.broker.schedules
    if desk.given_app is not None:
        control = control.checked_by(desk.given_app.encode_schedule)
    try:
        schedule = schedule_of({**merged(row, given_columns(desk.options)), "name": desk.options.name})
        stored = await control.put(schedule, version=version)
    except ConfigurationError as error:
        raise Refused(f"nothing done: {error}") from error
    state = await desk.broker.schedules.state(stored.name)
    alarms = [] if state is None else list(_alarms([state]))
    if desk.given_app is not None:
        alarms = [*_unknown_target(desk.given_app, stored), *alarms]
    if not desk.options.json:
        for text in alarms:
            complain(text)
    where = "" if stored.pattern.get("kind") == "interval" else f" in {stored.timezone}"
    said = f"{one_line(stored.name)}: {done}; {stored.target}, {stored.told_pattern}{where}"
    shown = await control.get(stored.name, decode=False) or stored
    return desk.report([said], (), schedule=shown.without_envelopes(), alarms=alarms)


def _unknown_target(app: "Horsies", stored: StoredSchedule) -> Iterator[str]:
    """No error: the task may be of another app, whose scheduler knows it."""
    if stored.workflow is None:
        kind, name, known = "task", str(stored.task_name), {task.name for task in app.registry}
    else:
        known = {one.name for one in (*app.workflows, *app.workflows.definitions())}
        kind, name = "workflow", stored.workflow
    if name not in known:
        meant = did_you_mean(name, known)
        yield f"the given app has no {kind} {short(name)!r}, so its arguments were not checked{meant}"


async def _remove(desk: Desk) -> int:
    names: list[str] = list(dict.fromkeys(desk.options.names))
    for name in names:
        if not (await _found(desk, name)).is_data:
            raise CommandError(_is_code(name))
    done = [name for name in names if await desk.broker.schedules.delete(name)]
    gone = [f"schedule {name!r} has vanished meanwhile" for name in names if name not in done]
    said = [f"{one_line(name)}: removed{await _behind(desk, name)}" for name in done]
    return desk.report(said, gone, done=done, problems=gone)


async def _behind(desk: Desk, name: str) -> str:
    """What becomes of the schedule of the code that had the same name."""
    state = await desk.broker.schedules.state(name)
    if state is None:
        return ""
    return f"; that of the code {'stays paused' if state.paused_at is not None else 'runs again from its next slot on'}"


def _is_code(name: str) -> str:
    return (
        f"nothing done: schedule {short(name)!r} is in an app's code; change it there, or make one of the same name "
        "with `horsies schedules add`, which takes its place"
    )
