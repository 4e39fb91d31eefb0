"""A worker for one call, in this process: claims what is ready, runs it, writes the ends and takes the steps of
workflows, with the worker's own statements and decisions. Nothing is waited for."""

import asyncio
import random
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import Any, Final

from horsies._pg.embedded import resolve_async
from horsies.app import Horsies
from horsies.completing import Claimant
from horsies.errors import UsageError
from horsies.result import NO_VALUE
from horsies.status import TaskStatus
from horsies.testing.attempts import decoded, run_attempt, run_call
from horsies.testing.callers_connection import CallersConnection, CallersSession
from horsies.testing.completing import DrainCompleter
from horsies.testing.crashing import ChildOfTest, Crash, Died, wanted_crash
from horsies.testing.passing_time import (
    Timeline,
    is_run_asked_for,
    let_pass,
    move_times,
    next_due,
    run_schedules,
    time_of_server,
)
from horsies.testing.records import DrainReport
from horsies.testing.recovering import read_states, recover
from horsies.testing.threads import Runner, in_thread, lent
from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import Outcome, outside_of_workflows
from horsies_worker.claim.claimed_task import ClaimedTask, claimed_task
from horsies_worker.claim.settings import claim_settings
from horsies_worker.database.clock import DatabaseClock
from horsies_worker.database.grouped_claim import GroupedRequest
from horsies_worker.database.queries import EXPIRED_RESULT, ClaimRequest, Queries
from horsies_worker.database.session import Session
from horsies_worker.database.transition import Transition
from horsies_worker.finish.decide import decide
from horsies_worker.identity import Identity
from horsies_worker.workflows.advance import Advancer

Work = Callable[[], list[Outcome]]
_BATCH: Final = 100
_LEASE_MS: Final = 60_000
_GRACE: Final = timedelta(0)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a drain runs."""

    queues: Sequence[str] | None
    recursive: bool
    until_quiet: bool
    limit: int


class OpenSession:
    """The session of a test database: one connection for all its drains, on the kit's own event loop."""

    def __init__(self, app: Horsies) -> None:
        self._app = app
        self.broker = app.config.broker
        """Of this block: another one inside it leads the app to another database."""
        self._session: Session | None = None
        self._turn = asyncio.Lock()
        self.line = Timeline()
        self.clock = DatabaseClock()

    @asynccontextmanager
    async def on(self, caller: CallersConnection | None, here: Runner | None) -> AsyncGenerator[Session]:
        """This session, or one on the connection of the test."""
        if caller is not None:
            if here is not None:
                caller.run_by(here)
            await caller.require_transaction()
            yield CallersSession(self._app, caller)
            return
        async with self._turn:
            if self._session is None:
                queries = Queries(self.broker.schema, Identity())
                self._session = Session(await resolve_async(self.broker), "testing", queries)
            yield self._session

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


async def drain(
    app: Horsies, wanted: Wanted, opened: OpenSession, caller: CallersConnection | None, here: Runner | None
) -> DrainReport:
    """Run what is ready, and what follows from it, until nothing is ready any more. `here` runs blocking code in the
    thread of the caller; None: the caller waits on the running loop. `caller`: the connection of the test."""
    async with opened.on(caller, here) as session:
        identity = session.queries.identity
        await session.ask("register_drain", identity.worker_id, identity.completion_key)
        try:
            return await _Drain(app, session, wanted, opened, here).run()
        finally:
            with suppress(Exception):  # in a transaction that has failed
                await session.ask("forget_drain", identity.worker_id)


async def advance(
    app: Horsies, time: timedelta, opened: OpenSession, caller: CallersConnection | None, here: Runner | None
) -> None:
    """Let time pass, and enqueue the runs of schedules whose slots have come."""
    async with opened.on(caller, here) as session:
        await let_pass(app, session, opened.line, time)


class _Drain:
    def __init__(
        self, app: Horsies, session: Session, wanted: Wanted, opened: OpenSession, here: Runner | None
    ) -> None:
        config = app.config
        self._app = app
        self._session = session
        self._queries = session.queries
        self._wanted = wanted
        self._limit = wanted.limit
        self._line = opened.line
        self._here = here
        self._settings = claim_settings(
            config, queues=wanted.queues or config.queue_names, max_batch=_BATCH, max_per_worker=_BATCH,
            run_ahead=False,
        )  # fmt: skip
        self._names = [task.name for task in app.registry if not task.is_stub]
        self._advancer = Advancer(session, config, waits_for_locks=True)
        self._clock = opened.clock
        self._completer = DrainCompleter(app, self._claimant)
        self._report = DrainReport()

    async def run(self) -> DrainReport:
        await self._session.run(self._clock.read)
        if await is_run_asked_for(self._app, self._session):
            await run_schedules(self._app, self._session, self._line)
        looked_at = await time_of_server(self._app, self._session)
        await self._run_ready()
        while self._wanted.until_quiet and (time := await self._time_to_pass(looked_at)) is not None:
            await move_times(self._app, self._session, self._line, time)
            looked_at = await time_of_server(self._app, self._session)
            await self._run_ready()
        return self._report

    async def _run_ready(self) -> None:
        await self._step()
        while rows := await self._claim():
            await self._run_tasks(rows)
            await self._step()
            if not self._wanted.recursive:
                break

    async def _time_to_pass(self, looked_at: datetime) -> timedelta | None:
        return await next_due(self._app, self._session, list(self._settings.queues), self._names, looked_at)

    async def _step(self) -> None:
        """Take the steps of workflows until there is none: those that follow from ends of tasks, and those of runs that
        were started, got a signal, or whose clocks have come."""
        before: set[str] = set()
        while True:
            self._advancer.look_at_clocks()
            while self._advancer.has_backlog():
                await self._advancer.run_once()
            found: set[str] = set()
            for name in ("unadvanced_workflows", "unsettled_stopped_workflows"):
                found |= {row["id"] for row in await self._session.ask(name, _GRACE, 10_000)}
            if found <= before:
                return  # a run that cannot go on is found again and again
            before = found
            self._advancer.check(found)

    async def _claim(self) -> list[Any]:
        """Take ready tasks: without groups first, then with."""
        settings, names = self._settings, self._names
        room: dict[str, Any] = {
            "limit": _BATCH, "room_sync": _BATCH, "room_ahead": 0, "room_async": 0, "async_names": (),
            "short_names": (), "sync_names": names,
        }  # fmt: skip
        caps: dict[str, Any] = {
            "queue_caps": settings.queue_caps, "cluster_cap": settings.cluster_cap, "pooled": self._session.pooled,
        }  # fmt: skip
        plain = ClaimRequest(**room, prefetch=0, discover=settings.queues)
        claimed = await self._session.run(
            lambda connection: self._queries.claim(connection, plain, lease_ms=_LEASE_MS, **caps)
        )
        rows = list(claimed.rows)
        if not rows:
            grouped = GroupedRequest(
                queues=settings.queues, looks=(), is_walk=True, cursors={}, max_groups=200, expected_at=inf, **room
            )
            found = await self._session.run(lambda connection: self._queries.claim_grouped(connection, grouped, **caps))
            rows = list(found.rows)
        return rows

    async def _run_tasks(self, rows: Sequence[Any]) -> None:
        left: list[Any] = list(rows)
        try:
            while left:
                if left[0]["status"] != TaskStatus.RUNNING:
                    self._count_unrun(left.pop(0))
                    continue
                together = self._together(left)
                await self._run_together(together)
                left = [row for row in left if row not in together]
        except BaseException:  # the limit, Ctrl-C, or pytest's own `fail`: what has not run goes back
            unrun = [(one["id"], one["claim_generation"]) for one in left if one["status"] == TaskStatus.RUNNING]
            with suppress(Exception):
                await self._session.run(lambda connection: self._queries.hand_back(connection, unrun))
            raise

    def _count_unrun(self, row: Any) -> None:
        if row["status"] == TaskStatus.EXPIRED:
            self._report.failed += 1
            self._report.results[row["id"]] = decoded(self._app, None, EXPIRED_RESULT)
            self._advancer.tasks_ended([row["id"]])

    def _together(self, rows: Sequence[Any]) -> list[Any]:
        """The first task, and of a batch task the others that run in the same call, as in a worker."""
        first = rows[0]
        definition = self._app.registry.get(first["task_name"])
        if definition is None or definition.batch is None or first["retry_count"]:
            return [first]
        alike = [
            row
            for row in rows
            if row["task_name"] == definition.name and row["status"] == TaskStatus.RUNNING and not row["retry_count"]
        ]
        return alike[: max(1, min(definition.batch.max_size, self._limit - self._report.attempts))]

    async def _run_together(self, rows: Sequence[Any]) -> None:
        name = rows[0]["task_name"]
        if self._report.attempts + self._report.snoozed >= self._limit:
            raise UsageError(
                f"drain has run {self._limit:,} attempts, and task {name!r} is still ready: does a task "
                "send itself again? Give recursive=False or another limit"
            )
        definition = self._app.registry.get(name)
        assert definition is not None  # only known names are claimed
        claimed = [claimed_task(row, definition, run_ahead=False) for row in rows]
        jobs, groups = [task.job for task in claimed], [row.get("group_key") for row in rows]
        app, completer = self._app, self._completer
        work: Work = partial(run_call, app, definition, jobs, groups)
        if definition.batch is None:
            work = lambda: [run_attempt(app, definition, jobs[0], groups[0], completer)]  # noqa: E731
        if (crash := wanted_crash(name, jobs[0].attempt)) is not None:
            await self._run_to_crash(crash, claimed, work)
            return
        outcomes = await self._call(name, work)
        for task, outcome in zip(claimed, outcomes, strict=True):
            await self._end(task, outcome)

    async def _run_to_crash(self, crash: Crash, claimed: Sequence[ClaimedTask], work: Work) -> None:
        """Run an attempt in a child, and kill it when the moment has come."""
        if isinstance(self._session, CallersSession):
            raise UsageError(
                "crash_at runs the attempt in a process of its own, which does not see the open transaction of "
                "drain(connection=...): commit, and drain without it"
            )
        ids, child = [task.job.task_id for task in claimed], ChildOfTest(self._app, crash)
        try:
            outcomes = await self._call("", partial(child.run, work))
            for task, outcome in zip(claimed, outcomes, strict=True):
                await self._end(task, outcome, is_told=crash.moment != "written")
            if crash.moment == "written":
                crash.task_id = ids[0]
                self._report.crashed += 1
        except Died:
            crash.task_id = ids[0]
            self._report.crashed += 1
            found = await recover(self._app, self._session, ids)
            for task in claimed:
                status, text = found[task.job.task_id]
                self._count(task.job, status, text)
            self._advancer.tasks_ended(ids)
        finally:
            child.kill()

    async def _call(self, task_name: str, work: Work) -> list[Outcome]:
        """Run user code: in the thread of the caller, or beside its loop. On a connection of that loop, the test and
        its `async def` tasks share the loop as well."""
        if not isinstance(self._session, CallersSession):
            return await (self._here or in_thread)(work)
        async with self._session.caller.attempt(task_name):
            if self._here is not None:
                return await self._here(work)
            before = lent.set(asyncio.get_running_loop())
            try:
                return await in_thread(work)
            finally:
                lent.reset(before)

    async def _end(self, claimed: ClaimedTask, outcome: Outcome, *, is_told: bool = True) -> None:
        """Write the end. `is_told`: the step of its workflow follows, and is not left to be found."""
        job = claimed.job
        if not claimed.is_workflow_task:
            outcome = outside_of_workflows(outcome)
        began = outcome.started_mono
        end = decide(
            task_id=job.task_id, generation=job.generation, attempt=job.attempt, options=claimed.options,
            budget=claimed.max_retries, outcome=outcome, started=None if began is None else self._clock.at(began),
            finished=self._clock.at(outcome.finished_mono), random=random.random,
        )  # fmt: skip
        status = await self._write(end)
        if status is TaskStatus.PENDING and end.recorded is None:
            self._report.snoozed += 1
            return
        text: str | None = outcome.result
        if status is TaskStatus.COMPLETED and outcome.may_be_completed:
            text = (await read_states(self._app, self._session, [job.task_id]))[job.task_id][1]
        self._count(job, status, text)
        if is_told:
            self._advancer.tasks_ended([job.task_id])

    def _count(self, job: Job, status: TaskStatus, text: str | None) -> None:
        report = self._report
        report.attempts += 1
        report.completed += status is TaskStatus.COMPLETED
        report.retried += status is TaskStatus.PENDING
        report.failed += status not in (TaskStatus.COMPLETED, TaskStatus.PENDING)
        if status is not TaskStatus.PENDING:
            report.results[job.task_id] = decoded(self._app, self._app.registry.get(job.task_name), text or NO_VALUE)

    async def _write(self, end: Transition) -> TaskStatus:
        """Write the end, unless the task has completed itself; returns the task's state."""
        written = await self._session.run(lambda connection: self._queries.finalize_own(connection, [end]))
        if not end.outcome.may_be_completed or end.task_id in written:
            return end.status
        attempt = (end.task_id, end.attempt)
        if await self._session.run(lambda connection: self._queries.find_completed(connection, [attempt])):
            return TaskStatus.COMPLETED
        raise UsageError(
            f"task {end.task_id} has returned, and the transaction in which it called complete() is still open: end it "
            "before the task returns"
        )

    def _claimant(self) -> Claimant:
        identity = self._queries.identity
        return Claimant(identity.worker_id, identity.completion_key, self._clock.at(0.0))
