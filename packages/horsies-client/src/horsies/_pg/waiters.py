"""The waiters for tasks and workflows of a process share one LISTEN connection and one batched read.

LISTEN starts first, then the row is read, then the waiter waits: a task that ended before the read is seen by the read,
a task that ends later sends a notification later. So each id is read at once, again whenever LISTEN (re)starts, on its
own notification, and at every poll interval in case a notification was lost.

The end of a task is announced on the channel of its bucket (`channels.task_done`). The ids of this process share one
bucket; an id of another process adds that one's. LISTEN is held only for buckets with a waiter, and a little longer:
the server wakes every listening session for every notification, and sends on those of its channels.

A task that was sent a moment ago has not ended: while LISTEN is active its first read is delayed, and the notification
usually comes first.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from horsies._pg import channels
from horsies._pg.backoff import Backoff
from horsies._pg.listener import Listener, OnNotify
from horsies._pg.statements import load
from horsies._pg.transient import is_transient
from horsies.config.resilience import ResilienceConfig
from horsies.errors import UsageError
from horsies.ids import is_younger_than
from horsies.status import TaskStatus, WorkflowStatus

R = TypeVar("R")

LINGER_S = 30.0
"""How long LISTEN continues after the last waiter of a bucket: the next request of a web app waits again."""
JUST_SENT_MS = 3
"""The first read of a task that is younger than this is delayed."""
FIRST_READ_S = 0.050
"""The delay. It saves one statement per round trip while worker and server are busy with the task."""
SILENT_S = 0.250
"""A read that has had no answer for this long is told as an outage; opening a connection rarely takes as long."""


@dataclass(frozen=True, slots=True)
class Seen:
    """The row of a task or a workflow as it was read."""

    task_name: str
    status: TaskStatus | WorkflowStatus
    result: str | None
    definition_key: str | None = None
    """The shape that a workflow was started with."""


@dataclass(slots=True)
class _Bucket:
    """The ids that are waited for on one channel, and how many wait for each."""

    ids: dict[str, int] = field(default_factory=dict[str, int])
    quiet_since: float = 0.0
    """When the last waiter left."""

    def enter(self, task_id: str) -> None:
        self.ids[task_id] = self.ids.get(task_id, 0) + 1

    def leave(self, task_id: str) -> None:
        self.ids[task_id] -= 1
        if not self.ids[task_id]:
            del self.ids[task_id]
            self.quiet_since = time.monotonic()


class _Host(Protocol):
    def listener(self) -> Listener: ...
    async def run_once(self, action: Callable[[Any], Awaitable[R]]) -> R: ...


class Waiters:
    """Gives each waiter the row of its task when the task has ended, or None when there is no such task."""

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
        """The ids that are workflows; all others are tasks."""
        self._buckets: dict[str, _Bucket] = {}
        """By channel, also those without a waiter until `LINGER_S` is over."""
        self._heard: dict[str, OnNotify] = {}
        """The same channels, for the listener."""
        self._due: set[str] = set()
        self._wake = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._poll_at = 0.0
        self._service: asyncio.Task[None] | None = None
        self._listener: Listener | None = None
        self.last_error: BaseException | None = None
        self._era = 0
        self._asked_at: float | None = None
        """When the read under way began."""
        self._read_at: dict[str, float] = {}
        """When an id was last read that had not ended. Each tick removes the ids that nothing waits for any more."""

    def is_listening_to(self, task_id: str, *, is_workflow: bool = False) -> bool:
        """LISTEN is active for its bucket: the end of this task will be announced to this process."""
        return self._listener is not None and self._listener.hears(_channel(task_id, is_workflow))

    async def wait(self, task_id: str, *, is_workflow: bool = False) -> Seen | None:
        """Wait for the end of a task or a workflow, without a bound: callers cancel at their own time-out."""
        if not self._waiting:
            # forget the errors of earlier waiters, also of a read that is still running for them
            self.last_error = None
            self._era += 1
        if is_workflow:
            self._workflows.add(task_id)
        future: asyncio.Future[Seen | None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(task_id, set()).add(future)
        channel = _channel(task_id, is_workflow)
        bucket = self._listen_to(channel)
        bucket.enter(task_id)
        if self._listener is not None and self._listener.hears(channel) and is_younger_than(task_id, JUST_SENT_MS):
            future.get_loop().call_later(FIRST_READ_S, self._read_if_waiting, task_id)
        else:
            self._read_soon((task_id,))
        if self._service is None or self._service.done():
            self._service = asyncio.create_task(self._serve(), name="horsies-waiters")
        try:
            return await future
        finally:
            bucket.leave(task_id)
            group = self._waiting.get(task_id)
            if group is not None:
                group.discard(future)
                if not group:
                    del self._waiting[task_id]
                    self._workflows.discard(task_id)

    async def look(self, task_id: str, *, is_workflow: bool = False) -> Seen | None:
        """Read the row once, without waiting."""
        read = self._read_workflows if is_workflow else self._read_tasks
        found = await self._host.run_once(lambda connection: read(connection, [task_id]))
        return found.get(task_id)

    def has_read(self, task_id: str, since: float) -> bool:
        """True if a read has found since then that it had not ended."""
        return self._read_at.get(task_id, -1.0) >= since

    def silent_ms(self) -> int | None:
        """For how long the read under way has had no answer; None while that is too short to mean an outage."""
        silent_s = 0.0 if self._asked_at is None else time.monotonic() - self._asked_at
        return round(silent_s * 1000) if silent_s >= SILENT_S else None

    async def close(self) -> None:
        service, self._service = self._service, None
        if service is not None:
            service.cancel()
            await asyncio.gather(service, return_exceptions=True)
        self._fail(list(self._waiting), UsageError("the app was closed"))

    def _read_soon(self, task_ids: Iterable[str]) -> None:
        self._due.update(task_ids)
        self._wake.set()

    def _read_if_waiting(self, task_id: str) -> None:
        if task_id in self._waiting:
            self._read_soon((task_id,))

    def _read_bucket(self, channel: str) -> None:
        """LISTEN has become active for it: what ended before that is read now."""
        if channel in self._buckets:
            self._read_soon(self._buckets[channel].ids)

    def _listen_to(self, channel: str) -> _Bucket:
        bucket = self._buckets.get(channel)
        if bucket is None:
            bucket = self._buckets[channel] = _Bucket()
            self._heard[channel] = self._read_if_waiting
            if self._listener is not None:
                self._listener.follow()
        return bucket

    def _leave_quiet_buckets(self, now: float) -> None:
        quiet = [
            channel
            for channel, bucket in self._buckets.items()
            if not bucket.ids and now >= bucket.quiet_since + LINGER_S
        ]
        for channel in quiet:
            del self._buckets[channel], self._heard[channel]
        if quiet and self._listener is not None:
            self._listener.follow()

    async def _serve(self) -> None:
        while True:
            self._listener = self._host.listener()
            listening = asyncio.create_task(
                self._listener.run(
                    self._heard,
                    on_live=lambda _connection: self._read_soon(self._waiting),
                    on_added=self._read_bucket,
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
            if not self._waiting:  # a waiter may have come while the connection was being closed
                return

    async def _read_until_idle(self) -> None:
        """Read until no bucket has had a waiter for `LINGER_S`. Polls have a timer of their own: a time-out around each
        wait would cost 40 µs per round trip, and a notification for one id would delay the poll for all others."""
        backoff = Backoff(self._resilience)
        self._poll_at = time.monotonic() + self._poll_s
        self._tick()
        while True:
            await self._wake.wait()
            self._wake.clear()
            if not self._buckets:
                return
            # ids that arrive during this read go into the next one: batches grow under load, without a timer
            batch = [task_id for task_id in self._due if task_id in self._waiting]
            self._due.clear()
            if not batch:
                continue
            era = self._era
            try:
                await self._ask(batch)
            except Exception as error:
                if era == self._era:
                    self.last_error = error
                if not is_transient(error):
                    self._fail(batch, error)
                    continue
                self._read_soon(batch)
                # at most one poll interval: after an outage every waiter gets its answer within one
                await asyncio.sleep(min(backoff.next(), self._poll_s))
            else:
                self.last_error = None
                backoff.reset()

    def _tick(self) -> None:
        now = time.monotonic()
        if now >= self._poll_at:
            self._read_soon(self._waiting)
            self._poll_at = now + self._poll_s * random.uniform(0.8, 1.2)
        for task_id in self._read_at.keys() - self._waiting.keys():
            del self._read_at[task_id]
        self._leave_quiet_buckets(now)
        if not self._buckets:
            self._wake.set()
        self._timer = asyncio.get_running_loop().call_later(min(self._poll_at - now, LINGER_S), self._tick)

    async def _ask(self, batch: list[str]) -> None:
        self._asked_at = time.monotonic()
        try:
            await self._host.run_once(lambda connection: self._read(connection, batch))
        finally:
            self._asked_at = None

    async def _read(self, connection: Any, batch: list[str]) -> None:
        found: dict[str, Seen] = {}
        tasks = [one for one in batch if one not in self._workflows]
        if tasks:
            found = await self._read_tasks(connection, tasks)
        if len(tasks) < len(batch):
            found |= await self._read_workflows(connection, [one for one in batch if one in self._workflows])
        now = time.monotonic()
        for task_id in batch:
            seen = found.get(task_id)
            if seen is None or seen.status.is_terminal:
                self._resolve(task_id, seen)
            else:
                self._read_at[task_id] = now

    async def _read_tasks(self, connection: Any, task_ids: list[str]) -> dict[str, Seen]:
        if len(task_ids) == 1:
            rows = await connection.fetch(self._one_sql, task_ids[0])
        else:
            rows = await connection.fetch(self._many_sql, task_ids)
        return {row["id"]: Seen(row["task_name"], TaskStatus(row["status"]), row["result"]) for row in rows}

    async def _read_workflows(self, connection: Any, ids: list[str]) -> dict[str, Seen]:
        rows = await connection.fetch(self._workflow_sql, ids)
        return {
            row["id"]: Seen(row["task_name"], WorkflowStatus(row["status"]), row["result"], row["definition_key"])
            for row in rows
        }

    def _resolve(self, task_id: str, seen: Seen | None) -> None:
        for future in self._waiting.get(task_id, ()):
            if not future.done():
                future.set_result(seen)

    def _fail(self, batch: list[str], error: BaseException) -> None:
        for task_id in batch:
            for future in self._waiting.get(task_id, ()):
                if not future.done():
                    future.set_exception(error)


def _channel(task_id: str, is_workflow: bool) -> str:
    return channels.workflow_done(task_id) if is_workflow else channels.task_done(task_id)
