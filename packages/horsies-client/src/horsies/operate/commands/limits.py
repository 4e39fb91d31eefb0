"""`horsies limits [list]`, `horsies limits set|unset NAME`: the limits that several queues share."""

from collections.abc import Sequence

from horsies.operate.commands._common import OK, Command, Desk
from horsies.operate.commands._policies import (
    add_fields,
    add_limits,
    changes,
    holds_text,
    not_overridden,
    overridden_text,
    unset_text,
)
from horsies.operate.commands._print import one_line, say, say_json, say_table
from horsies.operate.policies import LIMIT_FIELDS, SharedLimit


def build() -> Command:
    command = Command(
        "limits", "The limits that several queues share: how much is used; override and unset them.", default="list"
    )
    command.add("list", "list limits with what is used of them (this is what `limits` alone does)", _list)
    about = "override a limit, from the next claim on; what is not given stays as it is"
    setting = command.add("set", about, _set)
    setting.add_argument("name", metavar="NAME", help="the limit")
    add_limits(setting, "of its queues together")
    unset = command.add("unset", "take back what was overridden: what the app declared holds again", _unset)
    unset.add_argument("name", metavar="NAME", help="the limit")
    add_fields(unset, LIMIT_FIELDS)
    return command


async def _list(desk: Desk) -> int:
    found = await desk.reader.policies.limits()
    if not desk.has_said({"limits": [_json(one) for one in found]}, found, "no worker has declared a limit"):
        _say(found)
    return OK


def _say(limits: Sequence[SharedLimit]) -> None:
    say_table(
        ["LIMIT", "RUNNING", "MAX", "RATE", "TOKENS", "QUEUES", "OVERRIDDEN"],
        [
            (
                one.name, one.running, *(holds_text(name, one.effective) for name in LIMIT_FIELDS),
                f"{one.tokens}/{one.burst}" if one.tokens is not None else None, ", ".join(one.queues) or "none",
                overridden_text(one),
            )
            for one in limits
        ],
        right=("RUNNING", "MAX", "TOKENS"),
    )  # fmt: skip


def _json(one: SharedLimit) -> dict[str, object]:
    return {
        "name": one.name, "declared": one.declared, "declared_at": one.declared_at, "override": one.override,
        "override_at": one.override_at, "max_concurrency": one.effective.max_concurrency, "rate": one.effective.rate,
        "queues": one.queues, "running": one.running, "tokens": one.tokens, "next_token_in": one.wait_s,
        "throttle": one.throttle,
    }  # fmt: skip


async def _set(desk: Desk) -> int:
    name = desk.options.name
    override = changes(desk.options, LIMIT_FIELDS)
    limit = await desk.broker.policies.set_limit(name, **override)
    if desk.options.json:
        say_json({"verb": "set", **_json(limit)})
        return OK
    say(f"set {', '.join(override)} of limit {one_line(name)}; it holds from the next claim on")
    _say([limit])
    return OK


async def _unset(desk: Desk) -> int:
    name, fields = desk.options.name, desk.options.fields
    before = {limit.name: limit.overridden for limit in await desk.broker.policies.limits()}
    was_set = await desk.broker.policies.unset_limit(name, fields)
    problems = [] if was_set else [not_overridden(f"limit {name!r}", fields)]
    done = [unset_text(f"limit {one_line(name)}", fields, before.get(name, ()))] if was_set else []
    return desk.report(done, problems, done=was_set, problems=problems, name=name)
