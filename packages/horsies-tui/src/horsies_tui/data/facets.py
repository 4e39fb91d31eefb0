"""Counts the tasks of a list by state, and by the queues, names and workers to narrow it to."""

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from horsies.operate.filters import RETRYABLE_STATES, metadata_texts, statement_for
from horsies.operate.session import Fetch
from horsies.status import TASK_TERMINAL_STATES, TaskStatus
from horsies_tui.data.filters import Query
from horsies_tui.data.models import Breakdown, Count, Facet

QUEUES: Final = 40
PER_QUEUE: Final = 300
"""The number of queues, and of waiting tasks that are read from each."""
LOOK: Final = 1_500
LOOK_UNSUCCESSFUL: Final = 200
"""The number of held tasks and of the newest ends that are read, and of tasks in each state without success."""
SHOWN: Final = 12
"""The number of values that are shown for one field."""

FIELDS: Final = {"queue": "queue", "name": "task", "worker": "worker"}
"""The fields of the filter, and their names on the screen."""
_SECTIONS: Final = {
    TaskStatus.PENDING: ("waiting", "withdrawn"),
    TaskStatus.CLAIMED: ("held",),
    TaskStatus.RUNNING: ("held",),
    **{status: (str(status),) for status in TaskStatus if status.is_terminal},
}
_BOUNDS: Final = {
    "waiting": PER_QUEUE, "withdrawn": LOOK, "held": LOOK, "COMPLETED": LOOK,
    **{str(status): LOOK_UNSUCCESSFUL for status in RETRYABLE_STATES},
}  # fmt: skip


async def breakdown(
    fetch: Fetch, query: Query, since: timedelta | None, estimates: Callable[[Fetch], Awaitable[Mapping[str, int]]]
) -> Breakdown:
    since = None if query.id else since
    metadata = query.filter.metadata
    rows = await fetch(
        statement_for("task_facets", metadata), [*query.tasks], query.queue or None, query.name or None,
        query.worker or None, query.error or None, query.id or None, since, QUEUES, PER_QUEUE, LOOK,
        LOOK_UNSUCCESSFUL, SHOWN, query.group or None, metadata_texts(metadata),
    )  # fmt: skip
    cut = {row["value"] for row in rows if row["field"] == "read" and row["tasks"] >= _BOUNDS[row["value"]]}
    found = {row["value"]: int(row["tasks"]) for row in rows if row["field"] == "status"}
    counts = {
        status: Count(found.get(status, 0), is_least=not cut.isdisjoint(sections))
        for status, sections in _SECTIONS.items()
    }
    # the planner's estimates cover the whole table, without a filter or a window
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


def _facets(rows: Sequence[Mapping[str, Any]], query: Query, *, is_least: bool) -> Iterator[Facet]:
    for field in FIELDS:
        asked: str = getattr(query, field)
        for row in rows:
            if row["field"] == field:
                value: str = row["value"]
                # a search matches a part of a name or worker; narrowing to a name means the whole of it
                is_asked = bool(asked) and asked in value if field == "worker" else _searched(field, value) == asked
                yield Facet(field, value, row["host"], Count(int(row["tasks"]), is_least=is_least), is_asked)


def _searched(field: str, value: str) -> str:
    return value.lower() if field == "name" else value
