"""How the tasks of a list divide: a number for every state, and the queues, names and workers to narrow it to."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from horsies.status import TASK_TERMINAL_STATES, TaskStatus
from horsies_tui.data.filters import Query
from horsies_tui.data.models import Breakdown, Count, Facet

Fetch = Callable[..., Awaitable[Sequence[Mapping[str, Any]]]]
Estimates = Mapping[str, int]

QUEUES: Final = 40
PER_QUEUE: Final = 300
"""Waiting tasks that are read of each queue, of so many queues."""
LOOK: Final = 1_500
LOOK_CODED: Final = 200
"""Of what is held or ended well, and of what ended with an error code: the latter are few and far between."""
SHOWN: Final = 12
"""Values of one facet."""

FIELDS: Final = {"queue": "queue", "name": "task", "worker": "worker"}
"""What a list is narrowed by, and what people call it."""
_SECTIONS: Final = {
    TaskStatus.PENDING: ("waiting",),
    TaskStatus.CLAIMED: ("held",),
    TaskStatus.RUNNING: ("held",),
    TaskStatus.COMPLETED: ("ended",),
    TaskStatus.FAILED: ("coded",),
    TaskStatus.CANCELLED: ("ended", "coded"),
    TaskStatus.EXPIRED: ("coded",),
}
_BOUNDS: Final = {"waiting": PER_QUEUE, "held": LOOK, "ended": LOOK, "coded": LOOK_CODED}


async def breakdown(
    fetch: Fetch, query: Query, since: timedelta | None, estimates: Callable[[Fetch], Awaitable[Estimates]]
) -> Breakdown:
    since = None if query.id else since
    rows = await fetch(
        "task_facets", [*query.tasks], query.queue or None, query.name or None, query.worker or None,
        query.error or None, query.id or None, since, QUEUES, PER_QUEUE, LOOK, LOOK_CODED, SHOWN,
    )  # fmt: skip
    cut = {row["value"] for row in rows if row["field"] == "read" and row["tasks"] >= _BOUNDS[row["value"]]}
    found = {row["value"]: int(row["tasks"]) for row in rows if row["field"] == "status"}
    counts = {
        status: Count(found.get(status, 0), is_least=not cut.isdisjoint(sections))
        for status, sections in _SECTIONS.items()
    }
    # the planner knows how many there are in all; not how many of them a filter or a window leaves
    guessed = {
        status
        for status, count in counts.items()
        if count.is_least and not query.has_text and (status not in TASK_TERMINAL_STATES or since is None)
    }
    if guessed:
        known = await estimates(fetch)
        counts |= {
            status: Count(known[status], is_estimate=True)
            for status in guessed
            if known.get(status, 0) > counts[status].value
        }
    return Breakdown(counts, tuple(_facets(rows, query, is_least=bool(cut & _read(query)))))


def _read(query: Query) -> set[str]:
    """The sections that the filter reads."""
    return {section for status in query.tasks for section in _SECTIONS[status]}


def _facets(rows: Sequence[Mapping[str, Any]], query: Query, *, is_least: bool) -> list[Facet]:
    found: list[Facet] = []
    for field in FIELDS:
        asked: str = getattr(query, field)
        mine = [row for row in rows if row["field"] == field]
        if field == "name":
            # a name is searched by a part of it; narrowing asks for all of it
            values = [(row["value"], row["value"].lower() == asked) for row in mine]
        elif field == "worker":
            values = [(row["value"], bool(asked) and asked in row["value"]) for row in mine]
        else:
            values = [(row["value"], row["value"] == asked) for row in mine]
        found += [
            Facet(field, value, row["host"], Count(int(row["tasks"]), is_least=is_least), is_asked)
            for row, (value, is_asked) in zip(mine, values, strict=True)
        ]
    return found
