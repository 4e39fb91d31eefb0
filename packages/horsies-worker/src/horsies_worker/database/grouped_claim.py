"""What a claim of grouped tasks asks for, and what it reports. The claim is `horsies_claim_grouped` of the schema."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

Group = tuple[str, str | None]
"""A queue and the key of a group. None: the tasks without a group, in a queue that shares a limit."""
Pair = tuple[str, int]
"""A queue and a priority."""


class Cursor(NamedTuple):
    """How far a walk through the groups of a (queue, priority) has come."""

    key: str = ""
    """The walk goes on with the first group at or behind this text."""
    is_wrapped: bool = False
    """It has passed the end and begun again."""
    stop: str = ""
    """Where it began, hence where it ends after that."""

    def next_round(self) -> "Cursor":
        return Cursor(self.key, False, self.key)


class GroupedRequest(NamedTuple):
    queues: Sequence[str]
    looks: Sequence[Group]
    is_walk: bool
    cursors: Mapping[Pair, Cursor]
    max_groups: int
    limit: int
    room_async: int
    room_sync: int
    room_ahead: int
    async_names: Sequence[str]
    short_names: Sequence[str]
    sync_names: Sequence[str]
    expected_at: float
    """The time on the server's clock, as this worker expects it: a later one means that the clock was set forward."""


class Wait(NamedTuple):
    """A group that has no token for its next task, or whose next task is delayed."""

    queue: str
    key: str | None
    seconds: float


class Report(NamedTuple):
    now: float
    """The server's clock, in seconds since 1970."""
    is_over: bool
    """The walk looked at every group; nothing was left out because there was no room, or because it grew too long."""
    is_throttled: bool
    """Tasks are ready and wait for a limit."""
    busy: Sequence[str]
    """Queues that another claim worked on; nothing was looked at there."""
    limited: Sequence[str]
    """Queues that share a limit, so that their tasks without a group are claimed here as well."""
    cursors: Sequence[tuple[str, int, Cursor]]
    """Queue, priority, and where the walk goes on."""
    waits: Sequence[Wait]


class GroupedResult(NamedTuple):
    rows: Sequence[Mapping[str, Any]]
    report: Report


def grouped_values(request: GroupedRequest) -> tuple[Any, ...]:
    """The first parameters of the statement `claim_grouped`."""
    cursors = request.cursors
    return (
        list(request.queues), [queue for queue, _ in request.looks], [key for _, key in request.looks],
        request.is_walk, [queue for queue, _ in cursors], [priority for _, priority in cursors],
        [cursor.key for cursor in cursors.values()], [cursor.is_wrapped for cursor in cursors.values()],
        [cursor.stop for cursor in cursors.values()], request.max_groups, request.limit, request.room_async,
        request.room_sync, request.room_ahead, list(request.async_names), list(request.short_names),
        list(request.sync_names),
    )  # fmt: skip


def read_report(text: str) -> Report:
    report: dict[str, Any] = json.loads(text)
    waits = [Wait(*wait) for wait in report.pop("waits")]
    cursors = [(queue, priority, Cursor(*cursor)) for queue, priority, *cursor in report.pop("cursors")]
    return Report(**report, waits=waits, cursors=cursors)
