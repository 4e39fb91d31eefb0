"""The ids and the filter of tasks on the command line, the same for every verb."""

import argparse
from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from horsies._text import short, span
from horsies.errors import ConfigurationError
from horsies.ids import ID_LENGTH
from horsies.operate.commands._common import Desk, Refused, at_least_one, duration, row_id
from horsies.operate.commands._print import complain
from horsies.operate.filters import METADATA_WINDOW, TaskFilter
from horsies.operate.worker_control import SHORTEST_PREFIX
from horsies.status import TaskStatus

_FIELDS: Final = {
    "status": "statuses", "queue": "queues", "group": "group", "task": "task_names", "error_code": "error_codes",
    "worker": "worker_id", "older_than": "older_than", "newer_than": "newer_than", "meta": "metadata",
}  # fmt: skip


def add_selection(to: argparse.ArgumentParser, *, ids: bool = True, ends: bool = True) -> None:
    """Add ids as arguments, and the options of a filter; `ends`: also those that say how a task ended."""
    if ids:
        to.add_argument("ids", nargs="*", metavar="ID", type=row_id, help="ids of tasks")
    group = to.add_argument_group("filter", "conditions that must all hold; one that is given twice means either")
    if ends:
        group.add_argument(
            "--status", action="append", type=_status, choices=list(TaskStatus), metavar="STATUS",
            help=f"one of {', '.join(TaskStatus)}",
        )  # fmt: skip
    group.add_argument("--queue", action="append", metavar="NAME", help="in this queue")
    group.add_argument("--group", action="append", metavar="KEY", help="the task's group, as it was sent with")
    group.add_argument("--task", action="append", metavar="NAME", help="the task's registered name")
    if ends:
        group.add_argument("--error-code", action="append", metavar="CODE", help="how it ended, such as WORKER_CRASHED")
    group.add_argument(
        "--worker", metavar="WORKER",
        help="held or run by this worker, also at its end: an id, its beginning, or host:pid",
    )  # fmt: skip
    group.add_argument(
        "--older-than", type=duration, metavar="SPAN", help="at least so long in its state: 90s, 15m, 2h, 7d"
    )
    group.add_argument("--newer-than", type=duration, metavar="SPAN", help="at most so long in its state")
    group.add_argument(
        "--meta", action=_Metadata, type=_pair, metavar="KEY=VALUE",
        help="its metadata has this value; all that are given must match. Looks at live tasks and at those that ended "
        "in the last 24 h (before --older-than); --newer-than looks further back",
    )  # fmt: skip
    group.add_argument("--limit", type=at_least_one, metavar="N", help="at most so many tasks")


def filter_of(options: argparse.Namespace) -> TaskFilter:
    """The filter of the options, without the ids; raises Refused."""
    try:
        return TaskFilter(**{field: getattr(options, name, None) for name, field in _FIELDS.items()})
    except ConfigurationError as error:
        told = str(error)
        for option, field in _FIELDS.items():
            told = told.replace(f"TaskFilter.{field}", f"--{option.replace('_', '-')}")
        raise Refused(told) from None


async def chosen_filter(desk: Desk) -> TaskFilter:
    """The filter of the options, with the id of the worker that `--worker` names; raises Refused."""
    filter = filter_of(desk.options)
    word = filter.worker_id
    if word is None or len(word) == ID_LENGTH:
        return filter
    workers = await desk.reader.get_workers(None)
    if word in (ids := [one.worker_id for one in workers]):
        return filter
    found = [one.worker_id for one in workers if word == f"{one.hostname}:{one.pid}"]
    found = found or [one for one in ids if len(word) >= SHORTEST_PREFIX and one.startswith(word)]
    if len(found) > 1:
        raise Refused(
            f"--worker {short(word)!r} names {len(found)} workers, one after the other: {', '.join(found[:5])}"
        )
    if not found:
        complain(
            f"no worker {short(word)!r} is known: give a whole id, its beginning, or host:pid, as "
            "`horsies workers --all` lists them"
        )
        return filter
    return replace(filter, worker_id=found[0])


def searched(filter: TaskFilter) -> str | None:
    """What to say about ended tasks that a condition on metadata did not look at; None when it looked at all."""
    if (window := filter.window) is None:
        return None
    older = filter.older_than
    hours = METADATA_WINDOW // timedelta(hours=1)
    when = f"more than {span(older)} and less than {span(window)} ago" if older else f"in the last {hours} h"
    return f"--meta looked only at ended tasks that ended {when}; --newer-than SPAN looks further back"


class _Metadata(argparse.Action):
    """Collects the pairs of `--meta`; a key that is given twice is refused, because both would have to match."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option_string: object = None
    ) -> None:
        key, value = values
        found: dict[str, str] = getattr(namespace, self.dest) or {}
        if found.get(key, value) != value:
            parser.error(f"--meta {short(key)!r} is given twice with two values, and no task has both: give one")
        setattr(namespace, self.dest, {**found, key: value})


def _pair(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        what = "no key" if equals else "no value"
        raise argparse.ArgumentTypeError(f"{short(text)!r} has {what}: write KEY=VALUE, such as --meta tenant=acme")
    return key, value


def narrowed(filter: TaskFilter, allowed: Collection[TaskStatus], verb: str) -> TaskFilter:
    """The filter for a verb that only some states allow; raises Refused when it names another state."""
    if filter.statuses is None:
        return replace(filter, statuses=frozenset(allowed))
    if wrong := sorted(frozenset(filter.statuses) - frozenset(allowed)):
        *others, last = sorted(allowed)
        words = f"{', '.join(others)} and {last}" if others else last
        raise Refused(f"{', '.join(wrong)} tasks cannot be {verb}: only {words} ones can")
    return filter


def _status(word: str) -> TaskStatus:
    try:
        return TaskStatus(word.upper())
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{short(word)!r} is not a state: choose from {', '.join(TaskStatus)}"
        ) from None
