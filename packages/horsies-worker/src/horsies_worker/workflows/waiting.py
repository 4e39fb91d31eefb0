"""Nodes that wait: they begin to wait, get signals, and end when their time has come. In the step's transaction."""

from collections.abc import Sequence
from typing import Any, Final

from horsies.codec import encode_error
from horsies.errors import OutcomeCode
from horsies.result import TaskError
from horsies_worker.workflows.work import RunStatements

WAITS: Final = ("signal", "sleep")
"""The kinds of nodes that wait."""
TIMED_OUT: Final = encode_error(TaskError(OutcomeCode.SIGNAL_TIMEOUT, "no signal came in time"))


class Waits:
    """The waits of one run, in one step."""

    def __init__(self, run: RunStatements) -> None:
        self._fetch = run.fetch
        self.have_changed = False
        """A clock of the run has begun or ended in this step."""

    async def begin(self, indexes: Sequence[int], ended_count: int) -> list[Any]:
        """Let these nodes wait. Returns those that a signal ended at once, which was sent before."""
        rows = await self._fetch("start_waits", list(indexes))
        self.have_changed |= bool(rows)
        if not any(row["kind"] == "signal" for row in rows):
            return []
        return await self._fetch("consume_signals", ended_count)

    async def consume(self, ended_count: int) -> list[Any]:
        """Give the signals of the run to nodes that wait for them."""
        await self.notice()  # first: a signal that commits between the two statements is left for recovery
        rows = await self._fetch("consume_signals", ended_count)
        self.have_changed |= bool(rows)
        return rows

    async def notice(self) -> None:
        await self._fetch("notice_signals")

    async def end_due(self, ended_count: int, *, is_paused: bool) -> list[Any]:
        """End the nodes whose time has come."""
        rows = await self._fetch("end_due_nodes", is_paused, TIMED_OUT, ended_count)
        self.have_changed |= bool(rows)
        return rows

    async def next_clock(self) -> float | None:
        """Set the clock of the run anew; the seconds until it comes."""
        rows = await self._fetch("set_wake_at")
        return rows[0]["wait_s"] if rows else None
