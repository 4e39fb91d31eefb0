"""Control of workers at run time: drain, resume, resize, and wait until that holds. `app.get_broker().workers`.

A request is written to the worker's row. The worker reads it at once when it is on duty, else with its next heartbeat,
acts, and writes what holds. It holds until another request, or until the worker's process ends: a new process begins
with its own command line.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final, cast

from horsies._checks import Checks, shown
from horsies._pg.rows import FromRow
from horsies._text import plural, short
from horsies.errors import UsageError
from horsies.operate import reading
from horsies.operate.session import OperatorSession
from horsies.operate.views import WorkerStatus

MAX_PROCESSES: Final = 1_000
_TIMEOUT_MS: Final = 5_000
_SEEN_WITHIN: Final = timedelta(days=1)
_LOOK_S: Final = 0.25
SHORTEST_PREFIX: Final = 4
_BY_LENGTH: Final = 255


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """What was asked of one worker."""

    worker_id: str
    wanted_at: datetime
    state: str | None = None
    """`RUNNING` or `DRAINED`, if that was asked."""
    processes: int | None = None
    """The number of child processes, if that was asked."""


@dataclass(frozen=True, slots=True)
class WorkerProgress(FromRow):
    """How far a worker is with what was asked of it."""

    worker_id: str
    state: str | None
    """`RUNNING`, `DRAINING` or `DRAINED`."""
    wanted_state: str | None
    wanted_processes: int | None
    wanted_at: datetime | None
    wanted_by: str | None
    reached_at: datetime | None
    is_live: bool
    """It has sent a heartbeat lately, and has not stopped."""
    tasks: int
    """The tasks that it has."""

    def has_reached(self, request: WorkerRequest) -> bool:
        """What was asked holds, or was asked and held before something else was. A worker has resumed as soon as it
        claims: children that are too many may have tasks for long."""
        if request.state == "DRAINED" == self.wanted_state != self.state:
            return False  # a later resize holds before it: that does not wait until the worker is drained
        is_newest = self.is_live and self.wanted_at == request.wanted_at
        if request.state == "RUNNING" and self.state == "RUNNING" and is_newest:
            return True
        return self.reached_at is not None and self.reached_at >= request.wanted_at

    def problem(self, request: WorkerRequest) -> str | None:
        """Why it will not reach it; None when it may."""
        if self.has_reached(request):
            return None
        if not self.is_live:
            return f"worker {self.worker_id} has stopped, or gives no sign of life"
        if self.wanted_at is not None and self.wanted_at > request.wanted_at:
            return f"worker {self.worker_id}: {self.wanted_by or 'another operator'} has asked for something else since"
        return None


class WorkerControl:
    """The operations on workers, all coroutines. A worker is named by its id, by the beginning of it, or as `host:pid`;
    the name of a host stands for all live workers there."""

    def __init__(self, session: OperatorSession) -> None:
        self._session = session

    async def drain(self, workers: str | Collection[str], *, requested_by: str | None = None) -> list[WorkerRequest]:
        """Have them claim nothing more, until they are resumed. Running tasks go on; those that have not started go
        back to their queues. A drained worker stays alive."""
        return await self._want(workers, "DRAINED", None, requested_by)

    async def resume(self, workers: str | Collection[str], *, requested_by: str | None = None) -> list[WorkerRequest]:
        """Have drained workers claim again."""
        return await self._want(workers, "RUNNING", None, requested_by)

    async def resize(
        self, workers: str | Collection[str], processes: int, *, requested_by: str | None = None
    ) -> list[WorkerRequest]:
        """Change their number of child processes. Further ones start at once; those that are too many leave when they
        have no task."""
        checks = Checks("workers")
        checks.integer("processes", processes, 1, MAX_PROCESSES)
        checks.finish()
        return await self._want(workers, None, processes, requested_by)

    async def find(self, workers: str | Collection[str] | None = None) -> list[WorkerStatus]:
        """The live workers of these names, or all (None). Raises UsageError for a name without a live worker."""
        found = await self._session.read(lambda fetch: reading.workers(fetch, _SEEN_WITHIN))
        live = [one for one in found if one.liveness.is_there]
        if workers is None:
            return live
        names = _names(workers)
        chosen = {one.worker_id: one for name in names for one in _matching(name, live, found)}
        return list(chosen.values())

    async def progress(self, requests: Sequence[WorkerRequest]) -> list[WorkerProgress]:
        """How far the workers are."""
        ids = [request.worker_id for request in requests]
        rows = await self._session.read(lambda fetch: fetch("worker_progress", ids))
        return [WorkerProgress.from_row(row) for row in rows]

    async def wait(
        self, requests: Sequence[WorkerRequest], timeout_s: float | None = None,
        on_look: Callable[[int], None] = lambda _: None,
    ) -> list[str]:  # fmt: skip
        """Wait until what was asked holds; returns the problems of those for which it does not: a worker that has
        stopped, that was asked for something else, or that needs longer than `timeout_s`. The requests stay.
        `on_look` gets the number of workers for which it holds, again and again."""
        checks = Checks("workers")
        checks.seconds("timeout_s", timeout_s, 0, 10**9, optional=True)
        checks.finish()
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            found = {one.worker_id: one for one in await self.progress(requests)}
            problems: list[str] = []
            waiting: list[str] = []
            for request in requests:
                one = found.get(request.worker_id)
                if one is None:
                    problems.append(f"worker {request.worker_id} is gone")
                elif (problem := one.problem(request)) is not None:
                    problems.append(problem)
                elif not one.has_reached(request):
                    waiting.append(_told(one, request))
            on_look(len(requests) - len(problems) - len(waiting))
            if not waiting or (until is not None and time.monotonic() >= until):
                return problems + waiting
            await asyncio.sleep(_LOOK_S)

    async def _want(
        self, workers: str | Collection[str], state: str | None, processes: int | None, requested_by: str | None
    ) -> list[WorkerRequest]:
        checks = Checks("workers")
        if requested_by is not None:
            checks.text("requested_by", requested_by)
        checks.finish()
        chosen = await self.find(_names(workers))  # None would be all workers
        if older := [one.worker_id for one in chosen if one.state is None]:
            raise UsageError(
                f"worker {older[0]} cannot be asked: it runs an older release of horsies-worker, which cannot be "
                "drained or resized at run time. Restart it with this release, or stop it with SIGTERM"
            )
        ids = [one.worker_id for one in chosen]
        by = None if requested_by is None else requested_by.encode(errors="replace").decode()[:_BY_LENGTH]
        rows = await self._session.bounded(
            lambda fetch: fetch("want_of_workers", ids, state, processes, by), _TIMEOUT_MS
        )
        asked = [WorkerRequest(row["worker_id"], row["wanted_at"], state, processes) for row in rows]
        if len(asked) < len(ids):
            gone = sorted(set(ids) - {one.worker_id for one in asked})
            raise UsageError(
                f"{plural(len(gone), 'worker')} stopped meanwhile ({', '.join(gone)}); "
                f"{plural(len(asked), 'other worker')} was asked"
                if asked
                else f"worker {gone[0]} stopped meanwhile: nothing was asked"
            )
        return asked


def _names(workers: object) -> list[str]:
    """The names as a list; raises UsageError for anything else."""
    names: list[object] = [workers]
    if isinstance(workers, Collection) and not isinstance(workers, str | bytes):
        names = list(cast("Collection[object]", workers))
    if not names:
        raise UsageError("no worker is named: give ids, host:pid or names of hosts")
    for name in names:
        if not isinstance(name, str):
            raise UsageError(f"a worker is named by a str (an id, host:pid or a host), not {shown(name)}")
    return cast("list[str]", names)


def _matching(name: str, live: Sequence[WorkerStatus], found: Sequence[WorkerStatus]) -> list[WorkerStatus]:
    """The live workers that a name stands for."""
    exact = [one for one in live if name in (one.worker_id, f"{one.hostname}:{one.pid}")]
    if exact or (exact := [one for one in live if one.hostname == name]):
        return exact
    starts = [one for one in live if len(name) >= SHORTEST_PREFIX and one.worker_id.startswith(name)]
    if len(starts) == 1:
        return starts
    shown = repr(short(name))
    if starts:
        ids = ", ".join(one.worker_id for one in starts)
        raise UsageError(f"{shown} is the beginning of {len(starts)} workers ({ids}): give more of the id")
    for one in found:
        if name == one.worker_id or (len(name) >= SHORTEST_PREFIX and one.worker_id.startswith(name)):
            raise UsageError(f"worker {one.worker_id} is {one.liveness}: only a live worker can be asked")
    known = ", ".join(f"{one.worker_id} ({one.hostname}:{one.pid})" for one in live[:5]) or "none"
    more = f" and {len(live) - 5} more" if len(live) > 5 else ""
    raise UsageError(f"there is no live worker {shown}: live are {known}{more}; see `horsies workers`")


def _told(one: WorkerProgress, request: WorkerRequest) -> str:
    """What a worker still has to do."""
    if one.wanted_state == "DRAINED" and one.state != "DRAINED":
        what = f"is {(one.state or 'RUNNING').lower()}, with {plural(one.tasks, 'task')}"
        return f"worker {one.worker_id} {what}: it will be drained when they have ended"
    if request.processes is not None:
        return (
            f"worker {one.worker_id} does not have {plural(request.processes, 'child', 'children')} yet: those that "
            "are too many leave when their tasks have ended, new ones are starting (if not, its log says why)"
        )
    if one.wanted_processes is not None:  # asked for before: a request is reached when all of it holds
        children = plural(one.wanted_processes, "child", "children")
        return f"worker {one.worker_id} has not answered yet, or does not have the {children} of an earlier request yet"
    return f"worker {one.worker_id} has not answered yet"
