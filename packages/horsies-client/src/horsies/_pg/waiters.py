"""Everybody in this process who waits for a task or a workflow: one LISTEN connection and one batched read for all.

Order is what makes it sound: LISTEN is in force, *then* the row is read, then the waiter waits. A task that
ended before the read is seen by it, one that ends later notifies later. So each waiter's id is read at
once, again whenever LISTEN (re)starts, on its own notification, and every poll interval as a net.
LISTEN is held only while someone waits (and a little longer): `task_done` reaches every listening process.
A task that was sent this very moment has not ended: where LISTEN is in force, its first read is put off for a
moment, and most of the time its notification comes first.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from horsies._pg import channels
from horsies._pg.backoff import Backoff
from horsies._pg.listener import Listener
from horsies._pg.statements import load
from horsies._pg.transient import is_transient
from horsies.config.resilience import ResilienceConfig
from horsies.errors import UsageError
from horsies.ids import is_younger_than
from horsies.status import TaskStatus, WorkflowStatus

R = TypeVar("R")

LINGER_S = 30.0
"""How long LISTEN outlives the last waiter: a web app's next request will wait again."""
JUST_SENT_MS = 3
FIRST_LOOK_S = 0.050
"""One statement less per round trip, while worker and server are busy with that very task."""


@dataclass(frozen=True, slots=True)
class Seen:
    """What the row of a task or a workflow said when somebody looked."""

    task_name: str
    status: TaskStatus | WorkflowStatus
    result: str | None
    definition_key: str | None = None
    """Of a workflow: the shape that it was started with."""


class _Host(Protocol):
    def listener(self) -> Listener: ...
    async def run_once(self, action: Callable[[Any], Awaitable[R]]) -> R: ...


class Waiters:
    """Wakes each waiter with its task's end, or with None when there is no such task."""

    def __init__(self, host: _Host, resilience: ResilienceConfig, *, schema: str | None) -> None:
        self._host = host
        self._resilience = resilience
        self._poll_s = resilience.notify_poll_interval_ms / 1000
        statements = load("horsies._pg", "tasks.sql", schema)
        self._one_sql = statements["read_ended"].sql
        self._many_sql = statements["read_ended_batch"].sql
        self._workflow_sql = load("horsies._pg", "workflows.sql", schema)["read_ended_workflow_batch"].sql
        self._waiting: dict[str, set[asyncio.Future[Seen | None]]] = {}
        self._workflows: set[str] = set()
        """Which of the ids are workflows; all others are tasks."""
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._poll_at = 0.0
        self._quiet_since = 0.0
        self._service: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self.last_error: BaseException | None = None
        self._era = 0

    async def wait_for_workflow(self, workflow_id: str) -> Seen | None:
        """`wait`, for the end of a workflow."""
        self._workflows.add(workflow_id)
        return await self.wait(workflow_id)

    async def look_at_workflow(self, workflow_id: str) -> Seen | None:
        """Look once, without waiting."""
        rows = await self._host.run_once(lambda connection: connection.fetch(self._workflow_sql, [workflow_id]))
        return _seen_workflow(rows[0]) if rows else None

    async def wait(self, task_id: str) -> Seen | None:
        """Wait without a bound; callers bring their own time-out, by cancelling."""
        if not self._waiting:
            self.last_error = None  # whatever went wrong for earlier ones,
            self._era += 1  # and whatever is still going wrong in a read that began for them
        future: asyncio.Future[Seen | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task_id, set()).add(future)
        if self._listener is not None and self._listener.is_live and is_younger_than(task_id, JUST_SENT_MS):
            # `_notified` does just that: a look, if somebody still waits
            future.get_loop().call_later(FIRST_LOOK_S, self._notified, task_id)
        else:
            self._look_at((task_id,))
        if self._service is None or self._service.done():
            self._service = asyncio.create_task(self._serve(), name="horsies-waiters")
        try:
            return await future
        finally:
            group = self._waiting.get(task_id)
            if group is not None:
                group.discard(future)
                if not group:
                    del self._waiting[task_id]
                    self._workflows.discard(task_id)
                    if not self._waiting:
                        self._quiet_since = time.monotonic()

    async def look(self, task_id: str) -> Seen | None:
        """Look once, without waiting."""
        rows = await self._host.run_once(lambda connection: self._read_tasks(connection, [task_id]))
        return _seen(rows[0]) if rows else None

    async def close(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.cancel()
            await asyncio.gather(service, return_exceptions=True)
        self._fail(list(self._waiting), UsageError("the app was closed"))

    def _look_at(self, task_ids: Iterable[str]) -> None:
        self._due.update(task_ids)
        self._wake.set()

    def _notified(self, task_id: str) -> None:
        if task_id in self._waiting:
            self._look_at((task_id,))

    async def _serve(self) -> None:
        while True:
            self._listener = self._host.listener()
            listening = asyncio.create_task(
                self._listener.run(
                    {channels.TASK_DONE: self._notified, channels.WORKFLOW_DONE: self._notified},
                    on_live=lambda _connection: self._look_at(self._waiting),
                ),
                name="horsies-listener",
            )
            try:
                await self._read_until_idle()
            finally:
                if self._timer is not None:
                    self._timer.cancel()
                listening.cancel()
                await asyncio.gather(listening, return_exceptions=True)
            if not self._waiting:  # somebody may have come while the connection was being closed
                return

    async def _read_until_idle(self) -> None:
        """Serve until nobody has waited for a while. The clock has a timer of its own: a time-out around each wait
        would cost a round trip 40 µs, and a notification for one would put off the poll for all others."""
        backoff = Backoff(self._resilience)
        self._quiet_since = time.monotonic()
        self._poll_at = self._quiet_since + self._poll_s
        self._tick()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._waiting and time.monotonic() >= self._quiet_since + LINGER_S:
                return
            # whatever gathers during this read goes into the next one: no timer, and big batches under load
            batch = [task_id for task_id in self._due if task_id in self._waiting]
            self._due.clear()
            if not batch:
                continue
            era = self._era
            try:
                await self._host.run_once(lambda connection: self._read(connection, batch))  # noqa: B023  (awaited here)
            except Exception as error:
                if era == self._era:
                    self.last_error = error
                if not is_transient(error):
                    self._fail(batch, error)
                    continue
                self._look_at(batch)
                # not beyond a poll: when the server is back, everybody still gets an answer within one
                await asyncio.sleep(min(backoff.next(), self._poll_s))
            else:
                self.last_error = None
                backoff.reset()

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._poll_at:
            self._look_at(self._waiting)
            self._poll_at = now + self._poll_s * random.uniform(0.8, 1.2)
        if not self._waiting and now >= self._quiet_since + LINGER_S:
            self._wake.set()
        self._timer = asyncio.get_running_loop().call_later(min(self._poll_at - now, LINGER_S), self._tick)

    async def _read(self, connection: Any, batch: list[str]) -> None:
        found: dict[str, Seen] = {}
        tasks = [one for one in batch if one not in self._workflows]
        if tasks:
            found = {row["id"]: _seen(row) for row in await self._read_tasks(connection, tasks)}
        if len(tasks) < len(batch):
            workflows = [one for one in batch if one in self._workflows]
            rows = await connection.fetch(self._workflow_sql, workflows)
            found |= {row["id"]: _seen_workflow(row) for row in rows}
        for task_id in batch:
            seen = found.get(task_id)
            if seen is None or seen.status.is_terminal:
                self._resolve(task_id, seen)

    async def _read_tasks(self, connection: Any, task_ids: list[str]) -> Sequence[Mapping[str, Any]]:
        if len(task_ids) == 1:
            return await connection.fetch(self._one_sql, task_ids[0])
        return await connection.fetch(self._many_sql, task_ids)

    def _resolve(self, task_id: str, seen: Seen | None) -> None:
        for future in self._waiting.get(task_id, ()):
            if not future.done():
                future.set_result(seen)

    def _fail(self, batch: list[str], error: BaseException) -> None:
        for task_id in batch:
            for future in self._waiting.get(task_id, ()):
                if not future.done():
                    future.set_exception(error)


def _seen(row: Mapping[str, Any]) -> Seen:
    return Seen(row["task_name"], TaskStatus(row["status"]), row["result"])


def _seen_workflow(row: Mapping[str, Any]) -> Seen:
    return Seen(row["task_name"], WorkflowStatus(row["status"]), row["result"], row["definition_key"])
