"""`watch`: the state and the progress of a task or a run, from now until its end.

    async with watch(app.handle(task_id)) as states:
        async for state in states:
            print(state.status, state.value)

All watches of an event loop share one statement per interval and the LISTEN connection of the waiters, which announces
the end. `report_progress` sends no notification, so a new value is seen at the next interval.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self, cast

from horsies._awaited import Awaited
from horsies._checks import shown
from horsies._pg import log
from horsies._pg.backoff import Backoff
from horsies._pg.statements import load
from horsies._pg.transient import is_transient
from horsies.errors import BrokerError, HorsiesError, UsageError
from horsies.handle import TaskHandle
from horsies.ids import is_storable_id
from horsies.payload_codec import PayloadError
from horsies.status import TaskStatus, WorkflowStatus
from horsies.workflow.handle import WorkflowHandle

if TYPE_CHECKING:
    from horsies._pg.pool import LoopDatabase
    from horsies._pg.waiters import Seen
    from horsies._runtime import AppRuntime

INTERVAL_MS: Final = 1_000
MIN_INTERVAL_MS: Final = 100
MAX_INTERVAL_MS: Final = 3_600_000
LONGEST_BACKOFF_S: Final = 5.0
"""After an outage every watch has the new state within this time."""


@dataclass(frozen=True, slots=True)
class Progress:
    """The state of a task or a run at one moment."""

    id: str
    name: str
    """Of the task or the workflow."""
    status: TaskStatus | WorkflowStatus
    value: Any = None
    """What the task has reported last with `report_progress`."""
    attempt: int | None = None
    """Of a task: the number of the current attempt, or of the last one."""
    error_code: str | None = None
    """Of a task that has failed."""
    nodes_total: int | None = None
    """Of a run: how many nodes it has."""
    nodes_ended: int | None = None

    @property
    def is_ended(self) -> bool:
        return self.status.is_terminal


@dataclass(frozen=True, slots=True)
class _Key:
    id: str
    is_workflow: bool


@dataclass(slots=True)
class _Subject:
    """A task or a run that is watched, and the watches that are told of its changes."""

    watches: "set[Watch]" = field(default_factory=lambda: set[Watch]())  # noqa: PLW0108  (Watch comes below)
    latest: Progress | None = None
    read_at: float | None = None
    """On the monotonic clock; None while the first state, or a newer one for a new watch, is still to be read."""
    error: Exception | None = None
    end: asyncio.Task[None] | None = None

    def tell(self) -> None:
        for watch in self.watches:
            watch.tell()


class Watch:
    """Made by `watch`. Inside `async with` it yields the current state, then each change, and ends after the end of the
    task or the run. It yields nothing when there is no such task, or when it is not of the handle's kind."""

    def __init__(self, app: "AppRuntime", key: _Key, name: str | None, interval_s: float) -> None:
        self.interval_s: float = interval_s
        self._app = app
        self._key = key
        self._name = name
        self._news = asyncio.Event()
        self._feed: _Feed | None = None
        self._subject: _Subject | None = None
        self._last: Progress | None = None
        self._is_open = self._is_over = False

    async def __aenter__(self) -> Self:
        self._is_open = True
        if self._app.stand_in is None and is_storable_id(self._key.id):
            self._feed = _feed_of(self._app)
            self._subject = self._feed.add(self._key, self)
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._is_over = True
        if self._feed is not None:
            self._feed.remove(self._key, self)
            self._feed = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Progress:
        state = await self.next()
        if state is None:
            raise StopAsyncIteration
        return state

    async def next(self) -> Progress | None:
        """Wait for the next change; None when there will be none. May be cancelled and called again."""
        if not self._is_open:
            raise UsageError("a watch is used inside `async with watch(handle) as states`")
        while not self._is_over:
            if self._subject is None:
                state = await look_at(self._app, self._key.id, is_workflow=self._key.is_workflow)
                self._is_over = True  # what a stand-in holds does not change by itself
            else:
                await self._news.wait()
                self._news.clear()
                if self._subject.error is not None:
                    raise self._subject.error
                state = self._subject.latest
            if state is None or not _fits(state, self._name):
                self._is_over = True
                return None
            if state != self._last:
                self._last = state
                self._is_over = self._is_over or state.is_ended
                return state
        return None

    def tell(self) -> None:
        """For the feed: the subject was read."""
        self._news.set()


def watch(handle: Awaited[Any], *, interval_ms: int = INTERVAL_MS) -> Watch:
    """Watch the task or the run of a handle: its state, what it reports with `report_progress`, the nodes that have
    ended. `interval_ms`: how often the database is asked; the end of the task is announced, and does not wait for
    that."""
    app, key, name = _subject_of(handle)
    if isinstance(interval_ms, bool) or not isinstance(interval_ms, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"watch: interval_ms is a number of milliseconds, not {shown(interval_ms)}")
    if not MIN_INTERVAL_MS <= interval_ms <= MAX_INTERVAL_MS:
        raise UsageError(f"watch: interval_ms is {interval_ms}, and must be {MIN_INTERVAL_MS} to {MAX_INTERVAL_MS}")
    return Watch(app, key, name, interval_ms / 1000)


async def look(handle: Awaited[Any]) -> Progress | None:
    """The state now; None when there is no such task or run, or when it is not of the handle's kind. Raises
    BrokerError when the database cannot be asked."""
    app, key, name = _subject_of(handle)
    state = await look_at(app, key.id, is_workflow=key.is_workflow)
    return state if state is not None and _fits(state, name) else None


async def look_at(app: "AppRuntime", sent_id: str, *, is_workflow: bool) -> Progress | None:
    """The state of a task or a run by its id."""
    if app.stand_in is not None:
        seen = app.stand_in.look(sent_id, is_workflow=is_workflow)
        return None if seen is None else _seen(sent_id, seen)
    if not is_storable_id(sent_id):
        return None
    key = _Key(sent_id, is_workflow)
    try:
        return (await _feed_of(app).read([key], again=True)).get(key)
    except HorsiesError:
        raise
    except Exception as error:
        raise _worded(app, error) from error


def _subject_of(handle: object) -> "tuple[AppRuntime, _Key, str | None]":
    """The app and the id of a handle, and the name that its task or workflow must have."""
    if not isinstance(handle, Awaited):
        raise UsageError(f"watch takes a handle, not {shown(handle)}: give what send() returned, or app.handle(id)")
    name = None
    if isinstance(handle, TaskHandle):
        definition = handle._definition  # pyright: ignore[reportPrivateUsage]
        name = None if definition is None else definition.name
    elif isinstance(handle, WorkflowHandle):
        spec = handle._spec  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportUnknownVariableType]
        name = None if spec is None else spec.name
    one = cast("Awaited[Any]", handle)
    return one._app, _Key(one.sent_id, one._is_workflow), name  # pyright: ignore[reportPrivateUsage]


def _fits(state: Progress, name: str | None) -> bool:
    return name is None or state.name == name


def _seen(sent_id: str, seen: "Seen") -> Progress:
    return Progress(sent_id, seen.task_name, seen.status)


def _worded(app: "AppRuntime", error: BaseException) -> BrokerError:
    from horsies._pg.refusals import and_remedy, worded

    return BrokerError(app.config.broker.redact(worded(error) + and_remedy(error)))


# -- the shared reader ---------------------------------------------------------------------------


class _Feed:
    """Reads all that is watched on one event loop."""

    def __init__(self, app: "AppRuntime", here: "LoopDatabase") -> None:
        self._app = app
        self._here = here
        schema = app.schema
        self._tasks_sql = load("horsies._pg", "tasks.sql", schema)["watch_tasks"].sql
        self._workflows_sql = load("horsies._pg", "workflows.sql", schema)["watch_workflows"].sql
        self._subjects: dict[_Key, _Subject] = {}
        self._due: set[_Key] = set()
        self._next_at = 0.0
        self._wake = asyncio.Event()
        self._service: asyncio.Task[None] | None = None

    def add(self, key: _Key, watch: Watch) -> _Subject:
        subject = self._subjects.get(key)
        if subject is None:
            subject = self._subjects[key] = _Subject()
        subject.watches.add(watch)
        now = time.monotonic()
        if subject.read_at is not None and now - subject.read_at <= watch.interval_s:
            watch.tell()
        else:  # another watch, with a longer interval, may have an old state
            subject.read_at = None
            self._read_soon(key)
        self._next_at = min(self._next_at, now + watch.interval_s)
        self._wake.set()  # the service may be waiting for a later time
        if self._service is None or self._service.done():
            self._service = asyncio.create_task(self._serve(), name="horsies-watches")
        return subject

    def remove(self, key: _Key, watch: Watch) -> None:
        subject = self._subjects[key]
        subject.watches.discard(watch)
        if not subject.watches:
            del self._subjects[key]
            self._due.discard(key)
            if subject.end is not None:
                subject.end.cancel()
        self._wake.set()  # the service ends with the last watch

    async def read(self, keys: Sequence[_Key], *, again: bool = False) -> dict[_Key, Progress]:
        """The state of each that exists. `again`: repeat the read after a transient error, within the bounds of the
        configuration."""
        tasks = [key.id for key in keys if not key.is_workflow]
        runs = [key.id for key in keys if key.is_workflow]

        async def fetch(connection: Any) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]]]:
            return (
                await connection.fetch(self._tasks_sql, tasks) if tasks else (),
                await connection.fetch(self._workflows_sql, runs) if runs else (),
            )

        task_rows, run_rows = await (self._here.run(fetch) if again else self._here.run_once(fetch))
        return {_Key(row["id"], False): self._task(row) for row in task_rows} | {
            _Key(row["id"], True): _run(row) for row in run_rows
        }

    def _task(self, row: Mapping[str, Any]) -> Progress:
        value = None
        if row["progress"] is not None:
            try:
                value = json.loads(self._app.envelopes.unwrap(row["progress"], row["name"]))
            except PayloadError as error:
                log.warning("task %s: its progress cannot be decoded: %s", row["id"], error)
        return Progress(
            row["id"], row["name"], TaskStatus(row["status"]), value, row["retry_count"] + 1, row["error_code"]
        )

    def _read_soon(self, key: _Key) -> None:
        self._due.add(key)
        self._wake.set()

    def _interval_s(self) -> float:
        return min(watch.interval_s for subject in self._subjects.values() for watch in subject.watches)

    async def _serve(self) -> None:
        backoff = Backoff(self._app.config.resilience)
        self._next_at = time.monotonic()
        while self._subjects:
            self._wake.clear()
            now = time.monotonic()
            if now >= self._next_at:
                self._due.update(self._subjects)
                self._next_at = now + self._interval_s()
            batch = [key for key in self._due if key in self._subjects]
            self._due.clear()
            if batch:
                try:
                    self._publish(batch, await self.read(batch))
                    backoff.reset()
                except Exception as error:
                    if is_transient(error):  # watches keep their last state until the database is back
                        self._due.update(batch)
                        await asyncio.sleep(min(backoff.next(), LONGEST_BACKOFF_S))
                        continue
                    self._fail(batch, error)
            try:
                async with asyncio.timeout(max(0.0, self._next_at - time.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                pass

    def _publish(self, batch: Sequence[_Key], found: Mapping[_Key, Progress]) -> None:
        for key in batch:
            subject = self._subjects.get(key)
            if subject is None:  # its last watch left during the read
                continue
            is_first, subject.read_at, subject.error = subject.read_at is None, time.monotonic(), None
            state = found.get(key)
            if is_first or state != subject.latest:
                subject.latest = state
                subject.tell()
            if subject.end is None and state is not None and not state.is_ended:
                subject.end = asyncio.create_task(self._hear_of_end(key), name="horsies-watched-end")

    async def _hear_of_end(self, key: _Key) -> None:
        try:
            await self._here.waiters.wait(key.id, is_workflow=key.is_workflow)
        except Exception:  # reads go on at their interval
            return
        if key in self._subjects:
            self._read_soon(key)

    def _fail(self, batch: Sequence[_Key], error: Exception) -> None:
        told = error if isinstance(error, HorsiesError) else _worded(self._app, error)
        for key in batch:
            if (subject := self._subjects.get(key)) is not None:
                subject.error = told
                subject.tell()


def _run(row: Mapping[str, Any]) -> Progress:
    ended: int = row["total"] - row["nodes_left"]
    status = WorkflowStatus(row["status"])
    return Progress(row["id"], row["name"], status, nodes_total=row["total"], nodes_ended=max(0, ended))


def _feed_of(app: "AppRuntime") -> _Feed:
    here = app.database.here()
    feed = here.feed
    if not isinstance(feed, _Feed):
        feed = here.feed = _Feed(app, here)
    return feed
