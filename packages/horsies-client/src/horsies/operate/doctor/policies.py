"""Checks of groups and their limits: groups that starve, limits that limit nothing, and policies that differ from what
the code declares. Plain functions."""

import shlex
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any

from horsies._text import plural, short, span
from horsies.config.limits import Rate
from horsies.operate.doctor.finding import Facts, Finding, Severity
from horsies.operate.groups import GroupStatus
from horsies.operate.policies import LIMIT_FIELDS, QUEUE_FIELDS, Policy, QueuePolicy, SharedLimit

OK, WARN, PROBLEM = Severity.OK, Severity.WARN, Severity.PROBLEM
_MANY = 10
"""The number of findings of one kind that are listed one by one."""
_TIMES = 10
"""How many times as long as the median group of its queue a group must have waited to starve."""


# -- groups --------------------------------------------------------------------------------------


def groups(facts: Facts) -> Iterator[Finding]:
    """Groups that are passed over: nothing of theirs runs although no limit holds them back, and their tasks have been
    ready much longer than those of the other groups. The wait is divided by the number of waiting tasks, because a deep
    group waits for itself. When all groups of a queue wait long, it has a backlog, which is another check."""
    paused = {row["queue_name"] for row in facts.rows("queue_states") if row["paused_at"] is not None}
    served = {queue for worker in facts.live_workers() for queue in worker.queues}
    looked = [one for one in facts.all_groups() if one.queue_name not in paused and one.queue_name in served]
    starving: list[tuple[str, GroupStatus, timedelta, timedelta]] = []
    for queue in looked:
        waits = {one.key: one.oldest_ready / one.waiting for one in queue.groups if one.oldest_ready and one.waiting}
        usual = sorted(waits.values())[len(waits) // 2] if waits else timedelta()
        for one in queue.groups:
            wait = one.oldest_ready
            is_idle = not one.running and not one.throttled_by and one.tokens == one.burst and not one.is_least
            if is_idle and wait is not None and wait >= facts.limits.ready and waits[one.key] > _TIMES * usual:
                starving.append((queue.queue_name, one, wait, usual))
    for name, one, wait, usual in starving[:_MANY]:
        yield Finding(
            "groups", WARN,
            f"group {short(one.key)!r} of queue {name} starves: of {plural(one.waiting, 'waiting task')} none runs, "
            f"one has been ready for {span(wait)}, no limit holds it back, and half of the groups wait less than "
            f"{span(usual)} per task",
            "tasks of a better priority always come first, with fair=False so do other groups, or no worker of the "
            "queue knows the task's name",
            f"look at `horsies tasks list --queue {name} --group {shlex.quote(short(one.key))} --status PENDING`; then "
            f"`horsies queues set {name} --fair`, a better priority, or a worker that knows the name",
        )  # fmt: skip
    if len(starving) > _MANY:
        yield Finding("groups", WARN, f"{len(starving) - _MANY:,} more groups starve", "as above", "as above")
    if not starving:
        count = sum(one.looked for one in looked)
        said = f"{plural(count, 'group')} looked at, none starves" if looked else "no task of a group waits for long"
        yield Finding("groups", OK, said)


# -- limits --------------------------------------------------------------------------------------


def limits(facts: Facts) -> Iterator[Finding]:
    """Limits that no queue shares, and queues that share a limit which does not exist."""
    found = [SharedLimit.from_row(row) for row in facts.rows("shared_limits")]
    known = {one.name for one in found}
    good = True
    for row in facts.rows("queue_policies"):
        policy = QueuePolicy.from_row(row)
        for name in policy.effective.limits:
            if name not in known:
                good = False
                yield Finding(
                    "limits", PROBLEM, f"queue {policy.queue_name} shares the limit {name!r}, which does not exist",
                    "nothing limits its tasks: no worker has declared a limit of this name",
                    f"start a worker of the app that declares Limit({name!r}, ...) in AppConfig.limits, or name "
                    f"others: `horsies queues set {policy.queue_name} --limits none`",
                )  # fmt: skip
    for one in found:
        if not one.queues:
            good = False
            yield Finding(
                "limits", WARN, f"no queue shares the limit {one.name!r}", "it limits nothing",
                f"add it to a queue: CustomQueueConfig(..., limits=[{one.name!r}]), or "
                f"`horsies queues set QUEUE --limits {shlex.quote(one.name)}`; if no app declares it any more: "
                f"DELETE FROM horsies_limits WHERE name = {_literal(one.name)}",
            )  # fmt: skip
    if good:
        yield Finding("limits", OK, f"{plural(len(found), 'shared limit')}, each used" if found else "no shared limit")


# -- policies ------------------------------------------------------------------------------------


def policies(facts: Facts) -> Iterator[Finding]:
    """Overrides that hide what the code declares, and policies that workers of another release have declared."""
    queues = [QueuePolicy.from_row(row) for row in facts.rows("queue_policies")]
    shared = [SharedLimit.from_row(row) for row in facts.rows("shared_limits")]
    found = [
        *(finding for one in queues for finding in _hidden(one, f"queue {one.queue_name}", "queues", QUEUE_FIELDS)),
        *(finding for one in shared for finding in _hidden(one, f"limit {one.name}", "limits", LIMIT_FIELDS)),
    ]
    if facts.app is not None:
        served = {queue for worker in facts.live_workers() for queue in worker.queues}
        declared = {one.queue_name: one for one in queues}
        for name, mine in facts.app.queues.items():
            if name in served:
                found += _differing(f"queue {name}", mine, declared.get(name), QUEUE_FIELDS)
        rows = {one.name: one for one in shared}
        if served & facts.app.queues.keys():
            for name, mine in facts.app.limits.items():
                found += _differing(f"limit {name}", mine, rows.get(name), LIMIT_FIELDS)
    yield from found[:_MANY]
    if len(found) > _MANY:
        what = f"{len(found) - _MANY:,} more policies differ from what code declares"
        yield Finding("policies", WARN, what, "as above", "`horsies queues show` and `horsies limits` list them")
    if not found:
        with_one = sum(bool(one.policy) for one in queues)
        said = f"{plural(with_one, 'queue')} with a policy, as declared" if with_one else "no queue has a policy"
        yield Finding("policies", OK, said)


def _hidden(
    one: QueuePolicy | SharedLimit, what: str, command: str, fields: tuple[str, ...]
) -> Iterator[Finding]:  # fmt: skip
    """The override of a policy, if something else holds by it than was declared."""
    declared, holds = Policy.of(one.declared or {}), one.effective
    changed = [name for name in fields if name in one.overridden and getattr(declared, name) != getattr(holds, name)]
    if changed:
        told = ", ".join(
            f"{name} {_text(getattr(holds, name))} instead of {_text(getattr(declared, name))}" for name in changed
        )
        since = f", set {span(one.override_for)} ago" if one.override_for is not None else ""
        yield Finding(
            "policies", WARN, f"{what}: an override hides what the code declares: {told}{since}",
            "a new release that declares another value changes nothing",
            f"if it is no longer needed: `horsies {command} unset {shlex.quote(what.partition(' ')[2])}`",
        )  # fmt: skip


def _differing(
    what: str, mine: Mapping[str, Any] | None, one: QueuePolicy | SharedLimit | None, fields: tuple[str, ...]
) -> Iterator[Finding]:
    """A policy that this app declares otherwise than the workers did that wrote the row last."""
    here, there = Policy.of(mine or {}), Policy.of((one.declared if one is not None else None) or {})
    changed = [name for name in fields if getattr(here, name) != getattr(there, name)]
    if changed:
        told = ", ".join(
            f"{name} {_text(getattr(here, name))} here, {_text(getattr(there, name))} there" for name in changed
        )
        since = one.declared_for if one is not None else None
        written = f"declared {span(since)} ago" if since is not None else "where no worker has declared one"
        yield Finding(
            "policies", WARN, f"{what}: this app declares another policy than the database has, {written}: {told}",
            "the workers that started last are of another release, or of another app with the same queue; what they "
            "declared holds",
            "restart the workers of the release that is meant; let only one app declare a queue's policy",
        )  # fmt: skip


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(str(one) for one in value) or "none"  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else f"({value})" if isinstance(value, Rate) else str(value)


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
