"""What can be asked about a batch: its progress, and the stored results of its members."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from horsies._pg.rows import FromRow
from horsies._pg.statements import load
from horsies.status import NodeStatus, WorkflowStatus

BATCH: Final = "batch"
"""The `definition_key` of every batch's run."""


@dataclass(frozen=True)
class BatchSummary:
    """How the members of a batch ended: the first argument of its `then`."""

    batch_id: str
    total: int
    completed: int
    failed: int
    """Their last attempt failed, or they expired."""
    cancelled: int
    """They were cancelled before they had an outcome."""


@dataclass(frozen=True, slots=True)
class BatchProgress(FromRow):
    """The state of a batch. `total` is `completed + failed + cancelled + running + waiting`; `then` is not counted."""

    CONVERTED: ClassVar = {"status": WorkflowStatus}

    status: WorkflowStatus
    total: int
    ended: int
    """completed + failed + cancelled"""
    completed: int
    failed: int
    cancelled: int
    """They were cancelled, alone or with the batch, before they had an outcome."""
    running: int
    waiting: int

    def __str__(self) -> str:
        counts = {"failed": self.failed, "cancelled": self.cancelled, "running": self.running, "waiting": self.waiting}
        rest = "".join(f", {count:,} {word}" for word, count in counts.items() if count)
        return f"{self.ended:,} of {self.total:,} members ended: {self.completed:,} completed{rest}"


@dataclass(frozen=True, slots=True)
class ThenState(FromRow):
    """The node of a batch's `then`."""

    CONVERTED: ClassVar = {"status": NodeStatus}

    task_name: str
    task_id: str | None
    status: NodeStatus


class BatchReading:
    """The statements, all coroutines; `BatchHandle` offers them without an event loop."""

    def __init__(self, run: Callable[[Callable[[Any], Awaitable[Any]]], Awaitable[Any]], schema: str | None) -> None:
        self._run = run
        self._statements = load("horsies._pg", "batches.sql", schema)

    async def progress(self, batch_id: str) -> BatchProgress | None:
        """The state of a batch; None when there is no such batch."""
        rows = await self._rows("batch_progress", batch_id)
        return BatchProgress.from_row(rows[0]) if rows else None

    async def results(self, batch_id: str, after: int, limit: int) -> Sequence[Mapping[str, Any]]:
        """A page of the members' stored results, in their order."""
        return await self._rows("batch_results", batch_id, after, limit)

    async def then(self, batch_id: str) -> Mapping[str, Any] | None:
        """The stored result of `then`; None when there is no such batch, or it has none."""
        rows = await self._rows("batch_then", batch_id)
        return rows[0] if rows else None

    async def state_of_then(self, batch_id: str) -> ThenState | None:
        """The state of `then`, which a viewer may read; None when there is no such batch, or it has none."""
        rows = await self._rows("batch_then_state", batch_id)
        return ThenState.from_row(rows[0]) if rows else None

    async def failures(self, batch_id: str, limit: int) -> list[str]:
        """The ids of the first failed nodes: of `then`, and of members."""
        return [row["node_id"] for row in await self._rows("batch_failures", batch_id, limit)]

    async def _rows(self, name: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        return await self._run(lambda connection: connection.fetch(self._statements[name].sql, *values))
