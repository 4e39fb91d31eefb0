"""`horsies queues [list]`, `horsies queues pause|resume NAME...`, `horsies queues show|set|unset|groups`."""

import argparse
from typing import TYPE_CHECKING

from horsies._checks import queue_name_problem
from horsies.config.queues import DEFAULT_QUEUE
from horsies.errors import BrokerError, ConfigurationError
from horsies.operate.commands._common import OK, Command, CommandError, Desk, at_least_one
from horsies.operate.commands._policies import (
    add_fields,
    add_limits,
    ageing_of,
    changes,
    field_text,
    holds_text,
    names_of,
    not_overridden,
    overridden_text,
    unset_text,
    weight_of,
)
from horsies.operate.commands._print import one_line, plural, say, say_json, say_pairs, say_table, span
from horsies.operate.groups import LOOKED, TOP, GroupStatus
from horsies.operate.policies import LIMIT_FIELDS, QUEUE_FIELDS, QueuePolicy
from horsies.operate.views import QueueStatus

if TYPE_CHECKING:
    from horsies.app import Horsies


def build() -> Command:
    command = Command(
        "queues", "What waits and runs in which queue; pause and resume queues; limits of their groups.", default="list"
    )
    about = "list queues with what waits, what runs, and who serves them (this is what `queues` alone does)"
    command.add("list", about, _list)
    pause = command.add("pause", "let no worker claim from these queues; what runs goes on", _mark)
    pause.add_argument("--force", action="store_true", help="also queues that no task and no worker has so far")
    for verb in (pause, command.add("resume", "let workers claim from these queues again", _mark)):
        verb.add_argument("names", nargs="+", metavar="NAME", help="the queue")
    show = command.add(
        "show", "show the policies of queues: what the app declared, what was overridden, what holds", _show
    )
    show.add_argument("name", nargs="?", metavar="NAME", help="one queue, field by field (default: all that have one)")
    _add_overriding(command)
    groups = command.add("groups", "list the groups of a queue with the most waiting tasks, and why they wait", _groups)
    groups.add_argument("name", metavar="NAME", help="the queue")
    groups.add_argument("--top", type=at_least_one, default=TOP, metavar="N", help=f"so many groups (default: {TOP})")
    return command


def _add_overriding(command: Command) -> None:
    about = "override fields of a queue's policy, from the next claim on; what is not given stays as it is"
    setting = command.add("set", about, _set)
    setting.add_argument("name", metavar="NAME", help="the queue")
    add_limits(setting, "of one group")
    setting.add_argument(
        "--fair", action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS,
        help="one task of each group in turn, or as many of a group as fit",
    )  # fmt: skip
    setting.add_argument(
        "--limits", type=names_of, metavar="NAME,NAME|none", default=argparse.SUPPRESS,
        help="the limits that the queue shares with others (`horsies limits`)",
    )  # fmt: skip
    setting.add_argument(
        "--weight", type=weight_of, metavar="N|none", default=argparse.SUPPRESS,
        help="the share of the places of workers, compared with the weights of other queues",
    )  # fmt: skip
    setting.add_argument(
        "--ageing-seconds", type=ageing_of, metavar="TIME|none", default=argparse.SUPPRESS,
        help="tasks that have waited this long, such as 90s, get one of ten starts regardless of priority",
    )  # fmt: skip
    setting.add_argument("--force", action="store_true", help="also a queue that no task and no worker has so far")
    unset = command.add("unset", "take back what was overridden: what the app declared holds again", _unset)
    unset.add_argument("name", metavar="NAME", help="the queue")
    add_fields(unset, QUEUE_FIELDS)


async def _list(desk: Desk) -> int:
    queues = await desk.reader.get_queues()
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
                problems.append(f"queue {name!r} is not paused: {_unknown(known)}; --force pauses it all the same")
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


def _unknown(known: set[str]) -> str:
    return f"no task and no worker has it so far (known are {', '.join(map(one_line, sorted(known)))})"


# -- policies ------------------------------------------------------------------------------------


async def _show(desk: Desk) -> int:
    name: str | None = desk.options.name
    policies = desk.broker.policies
    if name is None:
        found = await desk.reader.policies.queues()
        if not desk.has_said({"queues": [_policy_json(one) for one in found]}, found, "no queue has a policy"):
            say_table(
                ["QUEUE", "PER GROUP", "RATE PER GROUP", "FAIR", "LIMITS", "WEIGHT", "AGEING", "OVERRIDDEN"],
                [_policy_line(one) for one in found],
                right=("PER GROUP", "WEIGHT", "AGEING"),
            )
        return OK
    policy = await policies.queue(name)
    if not policy.policy:
        known = await _known(desk)
        if known is not None and name not in known:
            raise CommandError(f"there is no queue {name!r}: {_unknown(known)}")
    if desk.options.json:
        say_json(_policy_json(policy))
    else:
        _say_policy(policy, desk.given_app)
    return OK


def _policy_json(one: QueuePolicy) -> dict[str, object]:
    return {
        "queue_name": one.queue_name, "declared": one.declared, "declared_at": one.declared_at,
        "override": one.override, "override_at": one.override_at, "effective": one.effective,
    }  # fmt: skip


def _policy_line(one: QueuePolicy) -> tuple[object, ...]:
    return (one.queue_name, *(holds_text(name, one.effective) for name in QUEUE_FIELDS), overridden_text(one))


def _label(field: str) -> str:
    """A queue has a `max_concurrency` of its own, which is no part of its policy."""
    return f"{field} per group" if field in LIMIT_FIELDS else field


def _say_policy(one: QueuePolicy, app: "Horsies | None") -> None:
    say_table(
        ["FIELD", "HOLDS", "DECLARED", "OVERRIDDEN"],
        [
            (
                _label(name),
                holds_text(name, one.effective),
                field_text(name, one.declared),
                field_text(name, one.override),
            )
            for name in QUEUE_FIELDS
        ],
    )
    say()
    say_pairs(
        [
            (
                "declared",
                f"{span(one.declared_for)} ago by a worker" if one.declared_for is not None else "by no worker",
            ),
            ("overridden", f"{span(one.override_for)} ago" if one.override_for is not None else "no"),
            *[("whole queue", cap) for cap in _own_cap(one.queue_name, app)],
        ]
    )


def _own_cap(name: str, app: "Horsies | None") -> list[str]:
    """The limit of the queue itself, which only the app knows: with `--app`, if it has such a queue."""
    caps = [queue.max_concurrency for queue in app.config.custom_queues if queue.name == name] if app else []
    return [f"max_concurrency {cap:,}, by the app" if cap is not None else "no max_concurrency" for cap in caps]


async def _set(desk: Desk) -> int:
    options, name = desk.options, desk.options.name
    override = changes(options, QUEUE_FIELDS)
    known = None if options.force else await _known(desk)
    if known is not None and name not in known and queue_name_problem(name, "queue") is None:
        raise CommandError(f"nothing is set for queue {name!r}: {_unknown(known)}; --force sets it all the same")
    try:
        policy = await desk.broker.policies.set_queue(name, **override)
    except ConfigurationError as error:
        raise CommandError("; ".join(f"{one.why}: {one.fix}" for one in error.problems)) from None
    if options.json:
        say_json({"verb": "set", **_policy_json(policy)})
        return OK
    is_share = bool({"weight", "ageing_seconds"} & set(override))
    when = "workers read it with their next heartbeat" if is_share else "it holds from the next claim on"
    say(f"set {', '.join(override)} of queue {one_line(name)}; {when}")
    _say_policy(policy, desk.given_app)
    return OK


async def _unset(desk: Desk) -> int:
    name, fields = desk.options.name, desk.options.fields
    before = await desk.broker.policies.queue(name)
    was_set = await desk.broker.policies.unset_queue(name, fields)
    policy = await desk.broker.policies.queue(name)
    known = None if was_set or policy.policy else await _known(desk)
    if known is not None and name not in known:
        raise CommandError(f"there is no queue {name!r}: {_unknown(known)}")
    problems = [] if was_set else [not_overridden(f"queue {name!r}", fields)]
    done = [unset_text(f"queue {one_line(name)}", fields, before.overridden)] if was_set else []
    return desk.report(done, problems, done=was_set, problems=problems, **_policy_json(policy))


# -- groups --------------------------------------------------------------------------------------


async def _groups(desk: Desk) -> int:
    name, top = desk.options.name, min(desk.options.top, LOOKED)
    found = await desk.reader.policies.groups(name, top)
    if desk.options.json:
        say_json(found)
        return OK
    if not found.groups:
        known = await _known(desk)
        if known is not None and name not in known:
            raise CommandError(f"there is no queue {name!r}: {_unknown(known)}")
        say(f"no task of queue {one_line(name)} with a group waits or runs")
        return OK
    say_table(
        ["GROUP", "WAITING", "RUNNING", "OLDEST READY", "TOKENS", "THROTTLED"],
        [_group_line(one) for one in found.groups],
        right=("WAITING", "RUNNING", "OLDEST READY", "TOKENS"),
    )
    # a shared limit or a pause holds back all of them, also those that are not shown
    shown = sum(bool(one.throttled_by) for one in found.groups)
    throttled = f"{plural(max(found.throttled, shown), 'group')} of {found.looked:,} throttled"
    if any(one.name == name and one.paused_for is not None for one in await desk.reader.get_queues(bound=1)):
        throttled += "; the queue is paused"
    if not found.is_complete:
        throttled += "; there are more: looked at were those of the oldest, the newest and the running tasks"
    say(f"\n{throttled}")
    return OK


def _group_line(one: GroupStatus) -> tuple[object, ...]:
    most = f"/{one.max_concurrency:,}" if one.max_concurrency is not None else ""
    return (
        one.key, f"{'≥ ' if one.is_least else ''}{one.waiting:,}", f"{one.running:,}{most}", one.oldest_ready,
        f"{one.tokens}/{one.burst}" if one.tokens is not None else None, "; ".join(one.throttled_by) or "no",
    )  # fmt: skip
