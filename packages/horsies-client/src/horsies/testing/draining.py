"""A worker for one call, in this process: claims what is ready, runs it, writes the ends and takes the steps of
workflows, with the worker's own statements and decisions. Nothing is waited for."""

import random
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from functools import partial
from math import inf
from typing import Any, Final

from horsies._pg.embedded import resolve_async
from horsies.app import Horsies
from horsies.errors import UsageError
from horsies.status import TaskStatus
from horsies.testing.attempts import in_thread, run_attempt
from horsies.testing.records import DrainReport
from horsies_worker.child.outcome import outside_of_workflows
from horsies_worker.claim.claimed_task import claimed_task
from horsies_worker.claim.settings import claim_settings
from horsies_worker.database.clock import DatabaseClock
from horsies_worker.database.grouped_claim import GroupedRequest
from horsies_worker.database.queries import ClaimRequest, Queries
from horsies_worker.database.session import Session
from horsies_worker.finish.decide import decide
from horsies_worker.identity import Identity
from horsies_worker.workflows.advance import Advancer

_BATCH: Final = 100
_LEASE_MS: Final = 60_000
_GRACE: Final = timedelta(0)
_SHIFT: Final = r"""
SELECT format('UPDATE %I.%I SET %s', n.nspname, c.relname,
              string_agg(format('%1$I = %1$I - $1::interval', a.attname), ', ' ORDER BY a.attnum))
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
 WHERE n.nspname = coalesce($1::text, current_schema()) AND c.relname LIKE 'horsies\_%' AND c.relkind IN ('r', 'p')
   AND NOT c.relispartition AND a.atttypid = 'timestamptz'::regtype
 GROUP BY n.nspname, c.relname ORDER BY c.relname
"""
"""One statement per table of horsies, which moves every time in it back."""


async def move_times(app: Horsies, time: timedelta) -> None:
    """Move every time in the database back: for horsies, so much time has passed."""
    async with _session(app) as session:

        async def move(connection: Any) -> None:
            async with session.transaction(connection):
                for row in await connection.fetch(_SHIFT, app.schema):
                    await connection.execute(row[0], time)

        await session.run(move)


async def drain(app: Horsies, queues: Sequence[str] | None, *, recursive: bool, limit: int) -> DrainReport:
    """Run what is ready, and what follows from it, until nothing is ready any more."""
    async with _session(app) as session:
        return await _Drain(app, session, queues, limit).run(recursive=recursive)


@asynccontextmanager
async def _session(app: Horsies) -> AsyncGenerator[Session]:
    session = Session(await resolve_async(app.config.broker), "testing", Queries(app.schema, Identity()))
    try:
        yield session
    finally:
        await session.close()


class _Drain:
    def __init__(self, app: Horsies, session: Session, queues: Sequence[str] | None, limit: int) -> None:
        config = app.config
        self._app = app
        self._session = session
        self._queries = session.queries
        self._limit = limit
        self._settings = claim_settings(
            config, queues=queues or config.queue_names, max_batch=_BATCH, max_per_worker=_BATCH, run_ahead=False
        )
        self._names = [task.name for task in app.registry if not task.is_stub]
        self._advancer = Advancer(session, config)
        self._clock = DatabaseClock()
        self._report = DrainReport()

    async def run(self, *, recursive: bool) -> DrainReport:
        await self._session.run(self._clock.read)
        await self._step()
        while rows := await self._claim():
            await self._run_tasks(rows)
            await self._step()
            if not recursive:
                break
        return self._report

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
        for at, row in enumerate(rows):
            try:
                await self._run_task(row)
            except BaseException:  # the limit, Ctrl-C, or pytest's own `fail`: what has not run goes back
                left = [
                    (one["id"], one["claim_generation"]) for one in rows[at:] if one["status"] == TaskStatus.RUNNING
                ]
                await self._session.run(lambda connection: self._queries.hand_back(connection, left))  # noqa: B023
                raise

    async def _run_task(self, row: Any) -> None:
        if row["status"] != TaskStatus.RUNNING:
            if row["status"] == TaskStatus.EXPIRED:
                self._report.failed += 1
                self._advancer.tasks_ended([row["id"]])
            return
        if self._report.attempts >= self._limit:
            raise UsageError(
                f"drain has run {self._limit:,} attempts, and task {row['task_name']!r} is still ready: does a task "
                "send itself again? Give recursive=False or another limit"
            )
        definition = self._app.registry.get(row["task_name"])
        assert definition is not None  # only known names are claimed
        claimed = claimed_task(row, definition, run_ahead=False)
        job = claimed.job
        outcome = await in_thread(partial(run_attempt, self._app, definition, job, row.get("group_key")))
        if not claimed.is_workflow_task:
            outcome = outside_of_workflows(outcome)
        began = outcome.started_mono
        end = decide(
            task_id=job.task_id, generation=job.generation, attempt=job.attempt, options=claimed.options,
            budget=claimed.max_retries, outcome=outcome, started=None if began is None else self._clock.at(began),
            finished=self._clock.at(outcome.finished_mono), random=random.random,
        )  # fmt: skip
        await self._session.run(lambda connection: self._queries.finalize_own(connection, [end]))
        self._report.attempts += 1
        self._report.completed += end.status is TaskStatus.COMPLETED
        self._report.retried += end.status is TaskStatus.PENDING
        self._report.failed += end.status not in (TaskStatus.COMPLETED, TaskStatus.PENDING)
        self._advancer.tasks_ended([job.task_id])
