"""The database as a source: reads in read-only transactions with a time limit, acts through the client's broker.

Two connections and no more: one for everything that is asked or done, one after the other, and one that listens. (The
doctor of the maintenance screen opens its own for the moment.) No transaction stays open between two looks.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Any, Final, TypeVar

from horsies import AppConfig, Horsies, PostgresConfig, ResilienceConfig
from horsies._operations import is_denied, worker_statuses
from horsies._pg import channels
from horsies._pg.statements import Statement, load, qualify
from horsies.errors import HorsiesError
from horsies.info import TaskDetail, WorkerStatus
from horsies.stale import SEEN_WITHIN
from horsies_tui.data import facets, reading
from horsies_tui.data.acting import act
from horsies_tui.data.filters import Query
from horsies_tui.data.models import (
    Breakdown,
    Maintenance,
    Overview,
    Place,
    Rights,
    ScheduleRow,
    Session,
    Stale,
    TableFacts,
    TaskList,
    TaskRow,
    WorkerAttempt,
    WorkerDetail,
    WorkerLine,
    WorkerMoment,
    WorkflowDetail,
    WorkflowList,
    WorkflowNode,
    WorkflowRow,
)
from horsies_tui.data.series import Fetch, Rates
from horsies_tui.data.source import OnHint, OnLive, Outcome, SourceError, Target

R = TypeVar("R")

APPLICATION_NAME: Final = "horsies tui"
READ_TIMEOUT_MS: Final = 5_000
ANSWER_S: Final = 10.0
"""The server ends a statement before that; one that is silent for so long is gone."""
MAX_CHARS: Final = 20_000
MAX_ERRORS: Final = 50
"""Of arguments and results; the rest is not fetched."""
MAX_NODES: Final = 2_000
ESTIMATES_KEPT_S: Final = 30.0
"""They change when the table is analysed; the catalog's view of them is slower than most of what we ask."""
MOMENTS: Final = 60
"""Of a worker's past, however long the window."""

_FILES: Final = (
    "tasks.sql", "facets.sql", "overview.sql", "workers.sql", "stale.sql", "workflows.sql", "session.sql",
)  # fmt: skip
_CHANNELS: Final = {
    channels.TASK_NEW: "tasks", channels.TASK_DONE: "tasks", channels.QUEUE_STATE: "queues",
    channels.WORKFLOW_DONE: "workflows", channels.WORKFLOW_STEP: "workflows",
    channels.SCHEDULE_STATE: "schedules",
}  # fmt: skip


class PostgresSource:
    """See `Source`."""

    def __init__(self, config: PostgresConfig) -> None:
        self._config = config
        # a refused or broken connection is told at once and tried again by the feed: no hidden retries
        self._app = Horsies(AppConfig(config, resilience=ResilienceConfig(reconnect_max_ms=2_000)))
        self._schema = config.schema
        self._statements: Mapping[str, Statement] = {
            **load("horsies._pg", "operate.sql", config.schema),
            **load("horsies._pg", "tasks.sql", config.schema),
            **load("horsies._pg", "recover.sql", config.schema),
            **load("horsies._pg", "schedules.sql", config.schema),
            **{
                name: statement
                for file in _FILES
                for name, statement in load("horsies_tui.data", file, config.schema).items()
            },
        }
        self._estimates: tuple[float, Mapping[str, int]] | None = None
        self._hides = False  # messages, arguments and results
        self._rates: dict[timedelta, Rates] = {}
        """What was counted so far, by window."""

    # -- looking ---------------------------------------------------------------------------------

    async def session(self) -> Session:
        tables = [
            qualify(f"horsies_{name}", self._schema)
            for name in ("tasks", "task_attempts", "queue_state", "workflows", "schedule_state")
        ]

        async def read(fetch: Fetch) -> Session:
            row = (await fetch("session", *tables, qualify("horsies_cancel_tasks(text[])", self._schema)))[0]
            rights = Rights(**{field.name: row[field.name] for field in fields(Rights)})
            if row["is_standby"]:
                rights = Rights.none()
            return Session(row["database"], row["role"], row["version"].split(" ")[0], rights)

        return await self._read(read)

    async def overview(self, window: timedelta) -> Overview:
        rates = self._rates.setdefault(window, Rates(window))
        return await self._read(lambda fetch: reading.overview(fetch, window, rates, self._known))

    async def breakdown(self, query: Query, *, since: timedelta | None) -> Breakdown:
        return await self._read(lambda fetch: facets.breakdown(fetch, query, since, self._known))

    async def _known(self, fetch: Fetch) -> Mapping[str, int]:
        """The planner's estimates of tasks by state."""
        now = asyncio.get_running_loop().time()
        if self._estimates is None or now - self._estimates[0] > ESTIMATES_KEPT_S:
            rows = await fetch("status_estimates", qualify("horsies_tasks", self._schema))
            self._estimates = (now, reading.status_estimates(rows))
        return self._estimates[1]

    async def tasks(self, query: Query, *, since: timedelta | None, after: Place | None, limit: int) -> TaskList:
        return await self._read(lambda fetch: reading.tasks(fetch, query, since, after, limit))

    async def task(self, task_id: str) -> TaskDetail | None:
        async def read(fetch: Fetch, private: bool) -> TaskDetail | None:
            rows = await fetch("show_task", task_id)
            payload = list(await fetch("show_payload", task_id, MAX_CHARS)) if private else []
            if not rows or (private and not payload):
                return None
            attempts = await fetch("read_attempts" if private else "show_attempts", task_id)
            beats = await fetch("show_heartbeats", task_id, 20)
            return TaskDetail.of(rows[0], payload[0] if private else None, attempts, beats)

        return await self._read_shown(read)

    async def workers(self) -> tuple[WorkerLine, ...]:
        async def read(fetch: Fetch) -> tuple[WorkerLine, ...]:
            statuses = await _workers(fetch)
            curves: dict[str, list[float]] = {one.worker_id: [] for one in statuses}
            for row in await fetch("worker_trends", list(curves), 12):
                curves[row["worker_id"]].append(row["cpu_percent"] or 0.0)
            return tuple(WorkerLine(one, tuple(curves[one.worker_id])) for one in statuses)

        return await self._read(read)

    async def worker(self, worker_id: str, window: timedelta) -> WorkerDetail | None:
        async def read(fetch: Fetch) -> WorkerDetail | None:
            status = next((one for one in await _workers(fetch) if one.worker_id == worker_id), None)
            if status is None:
                return None
            slot_s = window.total_seconds() / MOMENTS
            past = await fetch("worker_history", worker_id, status.snapshot_at, slot_s, MOMENTS)
            history = [WorkerMoment.from_row(row) for row in past]
            holds = [TaskRow.from_row(row) for row in await fetch("worker_tasks", worker_id, 200)]
            ended = [WorkerAttempt.from_row(row) for row in await fetch("worker_attempts", worker_id, 2_000, 50)]
            return WorkerDetail(status, tuple(history), tuple(holds), tuple(ended))

        return await self._read(read)

    async def stale(self) -> Stale:
        async def read(fetch: Fetch, private: bool) -> Stale:
            return await reading.stale(fetch, await _workers(fetch), with_reasons=private)

        return await self._read_shown(read)

    async def workflows(
        self, query: Query, *, since: timedelta | None, after: Place | None, limit: int
    ) -> WorkflowList:
        return await self._read(lambda fetch: reading.workflows(fetch, query, since, after, limit))

    async def workflow(self, workflow_id: str) -> WorkflowDetail | None:
        async def read(fetch: Fetch, shown: bool) -> WorkflowDetail | None:
            rows = await fetch("workflow_by_id", workflow_id)
            if not rows:
                return None
            nodes = await fetch("workflow_nodes", workflow_id, MAX_NODES)
            found = WorkflowDetail(WorkflowRow.from_row(rows[0]), tuple(WorkflowNode.from_row(row) for row in nodes))
            errors = await fetch("workflow_errors", workflow_id, MAX_CHARS, MAX_ERRORS) if shown else ()
            return reading.with_errors(found, errors)

        return await self._read_shown(read)

    async def schedules(self) -> tuple[ScheduleRow, ...]:
        async def read(fetch: Fetch) -> tuple[ScheduleRow, ...]:
            return tuple(ScheduleRow.from_row(row) for row in await fetch("schedules"))

        return await self._read(read)

    async def maintenance(self) -> Maintenance:
        async def read(fetch: Fetch) -> tuple[TableFacts, ...]:
            rows = await fetch("table_facts_shown", qualify("horsies_tasks", self._schema))
            return tuple(TableFacts.from_row(row) for row in rows)

        tables = await self._read(read)
        return Maintenance(tuple(await self._app.get_broker().diagnose()), tables)

    # -- acting, watching, leaving ---------------------------------------------------------------

    async def act(self, action: str, targets: Sequence[Target]) -> Outcome:
        try:
            return await act(self._app.get_broker(), action, targets)
        except HorsiesError as error:
            raise SourceError(str(error)) from error

    async def watch(self, on_hint: OnHint, on_live: OnLive) -> None:
        def told(kind: str) -> Callable[[str], None]:
            return lambda _payload: on_hint(kind)

        listener = self._app.database.here().listener()
        await listener.run(
            {channel: told(kind) for channel, kind in _CHANNELS.items()},
            on_live=lambda _connection: on_live(True),
            on_down=lambda: on_live(False),
        )

    async def close(self) -> None:
        await self._app.aclose()

    async def _read_shown(self, action: Callable[[Fetch, bool], Awaitable[R]]) -> R:
        """Read with messages, arguments and results, or without them when this role may not see them."""
        if not self._hides:
            try:
                return await self._read(lambda fetch: action(fetch, True))
            except SourceError as error:
                if not is_denied(error):
                    raise
                self._hides = True
        return await self._read(lambda fetch: action(fetch, False))

    async def _read(self, action: Callable[[Fetch], Awaitable[R]]) -> R:
        """Run the statements of one look in one short transaction that can write nothing."""

        async def run(connection: Any) -> R:
            async def fetch(name: str, *values: Any) -> Sequence[Mapping[str, Any]]:
                return await connection.fetch(self._statements[name].sql, *values, timeout=ANSWER_S)

            async with connection.transaction(readonly=True):
                # custom plans: most conditions of a filter are not asked, and the planner should know
                await connection.execute(
                    f"SET LOCAL statement_timeout = {READ_TIMEOUT_MS}; SET LOCAL plan_cache_mode = force_custom_plan;"
                    " SET LOCAL jit = off",
                    timeout=ANSWER_S,
                )
                return await action(fetch)

        try:
            return await self._app.database.here().run_once(run)
        except asyncio.CancelledError:
            raise
        except HorsiesError as error:
            raise SourceError(self._config.redact(str(error))) from error
        except Exception as error:
            raise SourceError(self._config.redact(f"{type(error).__name__}: {error}")) from error


async def _workers(fetch: Fetch) -> list[WorkerStatus]:
    return worker_statuses(await fetch("worker_snapshots", SEEN_WITHIN), await fetch("in_flight_counts"))
