"""A child pool for tests. A small feeder takes the place of the claimer and the database."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import signal
from collections import Counter, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from horsies_worker.child.jobs import ChildSpec, Job
from horsies_worker.child.outcome import Outcome, OutcomeKind
from horsies_worker.children.pool import ChildPool
from tests.support.waiting import eventually_async

APP = "tests.support.pool_apps:app"
ASYNC_TASKS = frozenset(
    {
        "async_sleep", "async_cleans_up", "async_stubborn", "async_odd", "async_forks", "async_steps",
        "async_who", "async_blocks", "async_leftovers",
    }
)  # fmt: skip


class PoolHarness:
    """Submits jobs as the pool has room, submits jobs again that come back unstarted, and keeps every outcome."""

    def __init__(self, app: str = APP, *, output: tuple[int, int] = (1, 2), feed: bool = True, **spec: Any) -> None:
        self.outcomes: dict[str, list[Outcome]] = {}
        self.unstarted: list[Job] = []
        self.progress: list[tuple[str, str]] = []
        self.fatal: list[str] = []
        self.deaths: list[str] = []
        """What the log says of children that died without a request to leave."""
        self.waiting: deque[Job] = deque()
        self.feed = feed
        self._numbers = itertools.count(1)
        spec.setdefault("processes", 2)
        spec.setdefault("kill_grace_s", 0.3)
        self.pool = ChildPool(
            ChildSpec(app, **spec),
            on_outcome=self._on_outcome,
            on_unstarted=self._on_unstarted,
            on_room=self._on_room,
            on_progress=lambda job, text: self.progress.append((job.task_id, text)),
            on_fatal=self.fatal.append,
            output=output,
        )

    async def __aenter__(self) -> Self:
        logging.getLogger("horsies.worker.pool").addFilter(self._on_log)
        await self.pool.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        try:
            await self.pool.stop(0)
        finally:
            logging.getLogger("horsies.worker.pool").removeFilter(self._on_log)

    def _on_log(self, record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("horsies-child-") and record.levelno == logging.WARNING:
            self.deaths.append(record.getMessage())
        return True

    def job(self, name: str, *, timeout_ms: int | None = None, run_ahead: bool = True, **kwargs: Any) -> Job:
        number = next(self._numbers)
        return Job(
            task_id=f"task-{number:06d}",
            generation=number + 1000,
            attempt=1,
            task_name=name,
            args=None,
            kwargs=json.dumps(kwargs) if kwargs else None,
            timeout_ms=timeout_ms,
            is_async=name in ASYNC_TASKS,
            run_ahead=run_ahead,
        )

    def send(self, *jobs: Job) -> Job:
        """Queue jobs for the feeder; returns the last one."""
        self.waiting.extend(jobs)
        self._on_room()
        return jobs[-1]

    async def run(self, name: str, *, timeout: float = 20, **options: Any) -> Outcome:
        """Run one job and return its outcome."""
        job = self.send(self.job(name, **options))
        return await self.outcome(job, timeout=timeout)

    async def prove_short(self, name: str, **options: Any) -> None:
        """Run an async job until the pool takes more of them than it has places for."""
        places = self.pool.spec.processes * self.pool.spec.async_concurrency
        while self.pool.room().asynchronous <= places:
            await self.run(name, **options)

    async def outcome(self, job: Job, *, timeout: float = 20) -> Outcome:
        await self.all_done([job], timeout=timeout)
        assert len(self.outcomes[job.task_id]) == 1
        return self.outcomes[job.task_id][0]

    async def all_done(self, jobs: Sequence[Job], *, timeout: float = 30) -> list[Outcome]:
        await eventually_async(
            lambda: all(job.task_id in self.outcomes for job in jobs),
            timeout=timeout,
            interval=0.005,
            describe=f"{len(jobs)} outcomes",
        )
        assert all(len(self.outcomes[job.task_id]) == 1 for job in jobs), "an outcome was reported twice"
        return [self.outcomes[job.task_id][0] for job in jobs]

    async def all_ready(self, count: int | None = None) -> None:
        count = count or self.pool.spec.processes
        await eventually_async(lambda: sum(c.state == "ready" for c in self.pool.stats().children) >= count)

    def pids(self) -> set[int]:
        return {child.pid for child in self.pool.stats().children if child.state == "ready"}

    def names(self) -> set[str]:
        return {child.name for child in self.pool.stats().children}

    def kinds(self) -> Counter[OutcomeKind]:
        return Counter(outcome.kind for outcomes in self.outcomes.values() for outcome in outcomes)

    def _on_outcome(self, job: Job, outcome: Outcome) -> None:
        self.outcomes.setdefault(job.task_id, []).append(outcome)

    def _on_unstarted(self, jobs: Sequence[Job]) -> None:
        self.unstarted.extend(jobs)
        if self.feed:
            self.waiting.extendleft(reversed(jobs))
            asyncio.get_running_loop().call_soon(self._on_room)

    def _on_room(self) -> None:
        if not self.feed:
            jobs = list(self.waiting)
            self.waiting.clear()
            if jobs:
                self.pool.submit(jobs)
            return
        room = self.pool.room()
        sync, ahead, asynchronous = room.sync, room.ahead, room.asynchronous
        batch: list[Job] = []
        left: deque[Job] = deque()
        while self.waiting:
            job = self.waiting.popleft()
            if job.is_async:
                taken, asynchronous = asynchronous > 0, asynchronous - (asynchronous > 0)
            elif sync > 0:
                taken, sync = True, sync - 1
            else:
                taken = ahead > 0 and job.run_ahead and self.pool.is_short(job.task_name)
                ahead -= taken
            (batch if taken else left).append(job)
            if not (sync or ahead or asynchronous):
                break
        left.extend(self.waiting)
        self.waiting = left
        if batch:
            self.pool.submit(batch)


def ok(outcome: Outcome) -> Any:
    """Return the value of an ok outcome; fails on any other."""
    assert outcome.kind is OutcomeKind.OK, outcome
    assert outcome.error_code is None
    return json.loads(outcome.result)["ok"]


def err(outcome: Outcome) -> dict[str, Any]:
    """Return the error of an outcome that is not ok."""
    assert outcome.kind is not OutcomeKind.OK, outcome
    return json.loads(outcome.result)["err"]


def is_running(pid: int) -> bool:
    """Return whether a process with this pid exists and is not a zombie."""
    return _state(pid) not in "ZX"


async def freeze(pid: int) -> None:
    """Stop the process and wait until it has stopped: while it waits for a processor it may still take a token."""
    os.kill(pid, signal.SIGSTOP)
    await eventually_async(lambda: _state(pid) == "T")


def _state(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123
            return stat.read().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "X"


def environment(**extra: str) -> dict[str, str]:
    return {**os.environ, **extra}


async def running_pid(trace: Path) -> int:
    """The pid that a task wrote as the last word of its first line."""
    await eventually_async(lambda: trace.exists() and "\n" in trace.read_text())
    return int(trace.read_text().split("\n")[0].split()[-1])
