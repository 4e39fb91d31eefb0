"""What the last claim brought, when all of it was alike: then more of the same can be asked for by a simpler statement.

A whole claim weighs all queues, priorities and kinds of task against each other. Where it found one (queue, priority)
and one kind, the next rows are probably like these; if they are not, the answer comes back short and is looked into.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from horsies_worker.jobs import Room
from horsies_worker.queries import Hint, NextRequest


class Streak:
    def __init__(self, sync_names: Sequence[str], async_names: Sequence[str]) -> None:
        self._sync_names = sync_names
        self._async_names = async_names
        self._async = frozenset(async_names)
        self._sync = frozenset(sync_names)
        self._known = [*sync_names, *async_names]
        self._hint: Hint | None = None
        self._is_async = False
        self._names: frozenset[str] = frozenset()

    def saw(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Learn from a claim. One that brought nothing says nothing: what was alike before may come again."""
        if not rows:
            return
        first = rows[0]
        pair = (first["queue_name"], first["priority"])
        names = frozenset(row["task_name"] for row in rows)
        self._is_async = names <= self._async
        alike = (self._is_async or names <= self._sync) and all(
            row["status"] == "RUNNING" and not row["is_workflow_task"] and (row["queue_name"], row["priority"]) == pair
            for row in rows
        )
        self._hint = Hint(*pair, first["since"]) if alike else None
        self._names = names

    def forget(self) -> None:
        self._hint = None

    def begin_at(self, floor: datetime | None) -> None:
        """Nothing is left before this time: do not walk it again."""
        if self._hint is not None and floor is not None and self._hint.since < floor:
            self._hint = replace(self._hint, since=floor)

    def next_request(
        self, room: Room, most: int, *, short: Collection[str], paused: Collection[str]
    ) -> NextRequest | None:
        """For at most `most` more, as `room` allows; None when only a whole claim will do."""
        hint = self._hint
        if hint is None or hint.queue_name in paused:
            return None
        if self._is_async:
            names, places = self._async_names, room.asynchronous
        elif self._names <= frozenset(short):
            names, places = [name for name in self._sync_names if name in short], room.sync + room.ahead
        else:
            names, places = self._sync_names, room.sync
        limit = min(most, places)
        # a thousand names need not be sent twice
        taken = None if len(names) == len(self._known) else names
        return NextRequest(hint, limit, taken, self._known) if limit > 0 else None
