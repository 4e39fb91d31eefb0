"""A claimer without processes: on a real database, with a stand-in for the pool."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
import pytest

from horsies import AppConfig, PostgresConfig, QueueMode, ResilienceConfig, TaskError, TaskResult
from horsies._pg.backoff import Backoff
from horsies._pg.listener import Listener
from horsies.app import Horsies
from horsies_worker.child.jobs import Job, Room
from horsies_worker.claim.buffer import Buffer
from horsies_worker.claim.claimed_task import OwnedTasks
from horsies_worker.claim.claimer import Claimer
from horsies_worker.claim.dispatch import Dispatcher
from horsies_worker.claim.duty import Duty, Group
from horsies_worker.claim.hints import Hints, Scan
from horsies_worker.claim.plan import Plan
from horsies_worker.claim.reconcile import Reconciler
from horsies_worker.claim.settings import claim_settings, task_kinds
from horsies_worker.claim.state import Wait
from horsies_worker.database.queries import ClaimRequest, NextRequest, Queries
from horsies_worker.database.session import Session
from horsies_worker.finish.finalizer import Finalizer
from horsies_worker.identity import Identity
from tests.support import factories
from tests.support.hands import end_of
from tests.support.postgres import Database
from tests.support.waiting import eventually_async


@dataclass
class Pool:
    """Has so many places, and keeps what it is given until the test takes it out."""

    sync: int = 2
    asynchronous: int = 0
    ahead: int = 0
    short: frozenset[str] = frozenset()
    jobs: list[Job] = field(default_factory=list)

    def room(self) -> Room:
        busy = sum(not job.is_async for job in self.jobs)
        waiting = sum(job.is_async for job in self.jobs)
        free = max(0, self.sync - busy)
        return Room(free, max(0, self.ahead - max(0, busy - self.sync)), max(0, self.asynchronous - waiting))

    def short_names(self) -> frozenset[str]:
        return self.short

    def submit(self, jobs: list[Job]) -> None:
        self.jobs += jobs

    @property
    def ids(self) -> list[str]:
        return [job.task_id for job in self.jobs]


@dataclass
class Yard:
    db: Database
    claimer: Claimer
    pool: Pool
    owned: OwnedTasks
    buffer: Buffer
    finalizer: Finalizer
    requests: list[ClaimRequest | NextRequest]

    @property
    def is_idle(self) -> bool:
        """The queues were found empty, and the claimer waits."""
        return self.claimer.state.is_idle and isinstance(self.claimer.state.move, Wait)

    def finish(self, *ids: str) -> None:
        """These ended well; their places are free."""
        for job in [job for job in self.pool.jobs if job.task_id in (ids or self.pool.ids)]:
            self.pool.jobs.remove(job)
            row = {"id": job.task_id, "claim_generation": job.generation, "retry_count": 0, "max_retries": 0}
            self.finalizer.add(end_of(row))
        self.claimer.on_room()

    async def has(self, *ids: str, timeout: float = 4) -> None:
        await eventually_async(lambda: sorted(self.pool.ids) == sorted(ids), timeout=timeout, interval=0.005)


class RecordingQueries(Queries):
    """Keeps the requests of all claims."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.requests: list[ClaimRequest | NextRequest] = []

    async def claim(self, connection: Any, request: ClaimRequest, **options: Any) -> Any:
        self.requests.append(request)
        return await super().claim(connection, request, **options)

    async def claim_next(self, connection: Any, request: NextRequest, **options: Any) -> Any:
        self.requests.append(request)
        return await super().claim_next(connection, request, **options)


def is_scan(request: ClaimRequest | NextRequest) -> bool:
    """Whether the claim looked at all pairs."""
    return isinstance(request, ClaimRequest) and bool(request.discover)


def slow_scans(monkeypatch: pytest.MonkeyPatch, *slow: Scan) -> None:
    """To the claimer these scans seem to take a quarter of an hour, and others no time."""
    learn = Hints.learn

    def learn_slowly(self: Any, rows: Any, scan: Scan, kinds: Any, *, now: float, **_took: float) -> Any:
        return learn(self, rows, scan, kinds, took_s=1_000.0 if scan in slow else 0.0, now=now)

    monkeypatch.setattr(Hints, "learn", learn_slowly)


@asynccontextmanager
async def claiming(
    db: Database, pool: Pool, *, url: str | None = None, poll_ms: int = 5_000,
    max_per_worker: int | None = None, hears: bool = False, knows_add: bool = True, worker_id: str = "worker-1",
    **config: Any,
) -> AsyncIterator[Yard]:  # fmt: skip
    app = Horsies(
        AppConfig(
            PostgresConfig(url or db.url),
            resilience=ResilienceConfig(reconnect_initial_ms=10, reconnect_max_ms=100, notify_poll_interval_ms=poll_ms),
            **config,
        )
    )

    queue = None if app.config.queue_mode is QueueMode.DEFAULT else app.config.queue_names[0]

    if knows_add:

        @app.task("add", queue_name=queue)
        def add(a: int, b: int = 0) -> TaskResult[int, TaskError]:
            return TaskResult(ok=a + b)

    @app.task("noop", queue_name=queue)
    def noop() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    if pool.asynchronous:

        @app.task("poll")
        async def poll() -> TaskResult[None, TaskError]:
            return TaskResult(ok=None)

    queries = RecordingQueries(None, Identity(worker_id, "host-1", 4711))
    session = Session(app.config.broker, "claim", queries)
    writing = Session(PostgresConfig(db.url), "finalize", queries)
    owned = OwnedTasks()
    the_pool: Any = pool

    def on_done(keys: Any) -> None:
        owned.take(keys)
        claimer.want_scan() if app.config.cluster_wide_cap or config.get("custom_queues") else claimer.on_room()

    finalizer = Finalizer(writing, app.config.resilience, on_done=on_done)
    buffer = Buffer(session, the_pool, owned)
    settings = claim_settings(
        app.config, queues=app.config.queue_names, max_batch=None, max_per_worker=max_per_worker, run_ahead=True
    )
    claimer = Claimer(
        Plan(settings, task_kinds(app.registry)), session,
        Dispatcher(app.registry, the_pool, owned, buffer, finalizer, run_ahead=True), buffer,
        Reconciler(session, owned, finalizer), _no_duty(app, queries), Backoff(app.config.resilience),
        on_contact=lambda: None,
    )  # fmt: skip
    listener = await asyncpg.connect(db.url)
    if hears:
        await listener.add_listener("task_new", lambda *_: claimer.on_news())
    services = [asyncio.create_task(claimer.run()), asyncio.create_task(finalizer.run())]
    try:
        yield Yard(db, claimer, pool, owned, buffer, finalizer, queries.requests)
        assert not any(service.done() for service in services)
    finally:
        claimer.stop()
        await asyncio.wait_for(services[0], 10)
        services[1].cancel()
        await asyncio.gather(*services, return_exceptions=True)
        for connection in (session, writing, listener):
            await connection.close()


def _no_duty(app: Horsies, queries: Queries) -> Duty:
    """Without a connection there is no line to wait in: the claimer acts for itself."""

    async def refuse() -> Any:
        raise ConnectionError

    return Duty(Listener(refuse, app.config.resilience), queries, Group(None, app.config.queue_names, []))


async def a_first_one(yard: Yard) -> None:
    """The worker has run a task and is idle: it knows where the last one came from."""
    await eventually_async(lambda: yard.is_idle)
    await hears_of(yard, factories.task(yard.db))
    await calm(yard)


async def hears_of(yard: Yard, *ids: str) -> None:
    yard.claimer.on_news()
    await yard.has(*ids)
    yard.finish()
    await asyncio.wait_for(yard.finalizer.drained(), 30)


async def calm(yard: Yard) -> None:
    """Until it has scanned everything again and found nothing."""
    await eventually_async(lambda: is_scan(yard.requests[-1]) and yard.is_idle)
