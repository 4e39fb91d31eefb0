"""The database as a source: it reads in read-only transactions with a time limit, and acts through the client's broker.

It uses two connections: one for all reads and actions, one after the other, and one that listens. (The doctor of the
maintenance screen opens its own for a moment.) No transaction stays open between two reads. With a `replica_url` reads
have a third connection, to the replica; what the operator may do, actions, the doctor and notifications stay with the
primary, because a standby has no LISTEN.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from typing import Final, TypeVar

from horsies import AppConfig, Horsies, PostgresConfig, ResilienceConfig
from horsies._pg import channels
from horsies._pg.refusals import and_remedy, worded
from horsies._pg.statements import Statement, load, qualify
from horsies.envelopes import redacted_message
from horsies.errors import HorsiesError
from horsies.operate import policies, reading
from horsies.operate.actions import Outcome
from horsies.operate.filters import TaskFilter
from horsies.operate.groups import top_groups
from horsies.operate.replica import Replica
from horsies.operate.schedule_control import HISTORY
from horsies.operate.schedule_views import ScheduleRun, StoredSchedule
from horsies.operate.session import READ_TIMEOUT_MS, Fetch, bounded, is_denied, statements
from horsies.operate.stale import SEEN_WITHIN
from horsies.operate.views import TaskDetail, TaskSummary
from horsies_tui.data import facets, lists, models
from horsies_tui.data.acting import act
from horsies_tui.data.filters import IN_FLIGHT, Query
from horsies_tui.data.overview import overview, status_estimates
from horsies_tui.data.series import Rates
from horsies_tui.data.source import MAX_SCHEDULES, OnHint, OnLive, SourceError, Target

R = TypeVar("R")

APPLICATION_NAME: Final = "horsies tui"
ANSWER_S: Final = 10.0
"""How long to wait for an answer; the server ends a statement before that."""
MAX_CHARS: Final = 20_000
"""The length to which arguments, results and errors are cut."""
MAX_ERRORS: Final = 50
MAX_NODES: Final = 2_000
HEARTBEATS: Final = 20
ESTIMATES_KEPT_S: Final = 30.0
"""Estimates change when the table is analysed, and reading them takes longer than most other statements."""
GROUPS_SHOWN: Final = 50
MOMENTS: Final = 60
"""The number of snapshots of a worker's past, for any window."""

_CANCEL: Final = "horsies_cancel_tasks(text[])"
_SIGNAL: Final = "horsies_signal(text, text, jsonb, text, text)"
_PURGE: Final = "horsies_purge_tasks(text[])"
_FILES: Final = (
    "tasks.sql", "facets.sql", "overview.sql", "workers.sql", "stale.sql", "workflows.sql", "session.sql",
)  # fmt: skip
_CHANNELS: Final = {
    channels.TASK_NEW: "tasks", channels.TASK_DONE: "tasks", channels.TASKS_ENDED: "tasks",
    channels.QUEUE_STATE: "queues", channels.WORKFLOW_DONE: "workflows", channels.WORKFLOWS_ENDED: "workflows",
    channels.WORKFLOW_STEP: "workflows",
    channels.SCHEDULE_STATE: "schedules",
}  # fmt: skip


class PostgresSource:
    """See `Source`."""

    def __init__(self, config: PostgresConfig) -> None:
        self._config = config
        # no hidden retries: the dashboard shows a broken connection at once, and the feed tries again
        self._app = Horsies(AppConfig(config, resilience=ResilienceConfig(reconnect_max_ms=2_000)))
        self._replica = Replica(config) if config.replica_url is not None else None
        self._schema = config.schema
        self.statements: Mapping[str, Statement] = {
            **statements(config.schema),
            **{name: found for file in _FILES for name, found in load("horsies_tui.data", file, config.schema).items()},
        }
        self._estimates: tuple[float, Mapping[str, int]] | None = None
        self._hides = False
        """The role may not read messages, arguments and results."""
        self._rates: dict[timedelta, Rates] = {}
        """The slots that were counted so far, by window."""

    # -- reading ---------------------------------------------------------------------------------

    async def session(self) -> models.Session:
        tables = [
            qualify(f"horsies_{name}", self._schema)
            for name in ("tasks", "task_attempts", "queue_state", "workflows", "schedule_state")
        ]

        functions = [qualify(name, self._schema) for name in (_CANCEL, _SIGNAL, _PURGE)]
        others = [qualify(name, self._schema) for name in ("horsies_schedules", "horsies_worker_instances")]
        (row,) = await self._primary(lambda fetch: fetch("session", *tables, *functions, *others))
        rights = models.Rights(**{field.name: row[field.name] for field in fields(models.Rights)})
        return models.Session(row["database"], row["role"], models.Rights.none() if row["is_standby"] else rights)

    async def overview(self, window: timedelta) -> models.Overview:
        rates = self._rates.setdefault(window, Rates(window))
        return await self.read(lambda fetch: overview(fetch, window, rates, self._known))

    async def breakdown(self, query: Query, *, since: timedelta | None) -> models.Breakdown:
        return await self.read(lambda fetch: facets.breakdown(fetch, query, since, self._known))

    async def _known(self, fetch: Fetch) -> Mapping[str, int]:
        """The planner's estimates of tasks by state."""
        now = asyncio.get_running_loop().time()
        if self._estimates is None or now - self._estimates[0] > ESTIMATES_KEPT_S:
            rows = await fetch("status_estimates", qualify("horsies_tasks", self._schema))
            self._estimates = (now, status_estimates(rows))
        return self._estimates[1]

    async def tasks(
        self, query: Query, *, since: timedelta | None, after: models.Place | None, limit: int
    ) -> models.TaskList:
        return await self.read(lambda fetch: lists.tasks(fetch, query, since, after, limit))

    async def task(self, task_id: str) -> TaskDetail | None:
        return await self._read_shown(
            lambda fetch, private: reading.task_detail(fetch, task_id, MAX_CHARS, HEARTBEATS, private=private)
        )

    async def queue(self, name: str) -> models.QueueDetail:
        async def read(fetch: Fetch) -> models.QueueDetail:
            found = await policies.queue_policies(fetch, name)
            limits = await policies.shared_limits(fetch)
            groups = await top_groups(fetch, name, GROUPS_SHOWN)
            return models.QueueDetail(found[0] if found else policies.QueuePolicy.none(name), groups, tuple(limits))

        return await self.read(read)

    async def workers(self) -> tuple[models.WorkerLine, ...]:
        async def read(fetch: Fetch) -> tuple[models.WorkerLine, ...]:
            statuses = await reading.workers(fetch, SEEN_WITHIN)
            curves: dict[str, list[float]] = {one.worker_id: [] for one in statuses}
            for row in await fetch("worker_trends", list(curves), 12):
                curves[row["worker_id"]].append(row["cpu_percent"] or 0.0)
            return tuple(models.WorkerLine(one, tuple(curves[one.worker_id])) for one in statuses)

        return await self.read(read)

    async def worker(self, worker_id: str, window: timedelta) -> models.WorkerDetail | None:
        async def read(fetch: Fetch) -> models.WorkerDetail | None:
            known = await reading.workers(fetch, SEEN_WITHIN)
            status = next((one for one in known if one.worker_id == worker_id), None)
            if status is None:
                return None
            slot_s = window.total_seconds() / MOMENTS
            past = await fetch("worker_history", worker_id, status.snapshot_at, slot_s, MOMENTS)
            held = TaskFilter(worker_id=worker_id).call("tasks_held", IN_FLIGHT)
            return models.WorkerDetail(
                status,
                tuple(map(models.WorkerMoment.from_row, past)),
                tuple(map(TaskSummary.from_row, await fetch(*held, None, None, 200))),
                tuple(map(models.WorkerAttempt.from_row, await fetch("worker_attempts", worker_id, 2_000, 50))),
            )

        return await self.read(read)

    async def stale(self) -> models.Stale:
        return await self._read_shown(lambda fetch, private: lists.stale(fetch, private=private))

    async def workflows(
        self, query: Query, *, since: timedelta | None, after: models.Place | None, limit: int
    ) -> models.WorkflowList:
        return await self.read(lambda fetch: lists.workflows(fetch, query, since, after, limit))

    async def workflow(self, workflow_id: str) -> models.WorkflowDetail | None:
        async def read(fetch: Fetch, shown: bool) -> models.WorkflowDetail | None:
            rows = await fetch("workflow_by_id", workflow_id)
            if not rows:
                return None
            nodes = await fetch("workflow_nodes", workflow_id, MAX_NODES)
            found = models.WorkflowDetail(
                models.WorkflowRow.from_row(rows[0]), tuple(models.WorkflowNode.from_row(row) for row in nodes)
            )
            errors = await fetch("workflow_errors", workflow_id, MAX_CHARS, MAX_ERRORS) if shown else ()
            return lists.with_errors(found, errors)

        return await self._read_shown(read)

    async def schedules(self) -> tuple[models.ScheduleRow, ...]:
        return tuple(await self.read(lambda fetch: reading.schedules(fetch, models.ScheduleRow, MAX_SCHEDULES)))

    async def schedule(self, name: str) -> models.ScheduleDetail | None:
        async def read(fetch: Fetch, shown: bool) -> models.ScheduleDetail | None:
            rows = await reading.schedules(fetch, models.ScheduleRow, 1, names=[name])
            if not rows:
                return None
            problems = await fetch("schedule_problem", name) if shown else ()
            stored = await fetch("read_schedule" if shown else "show_schedule", name)
            return models.ScheduleDetail(
                rows[0],
                StoredSchedule.of(stored[0]).without_envelopes() if stored else None,
                redacted_message(problems[0]["problem"]) if problems else None,
                tuple(map(ScheduleRun.from_row, await fetch("schedule_history", name, HISTORY))),
            )

        return await self._read_shown(read)

    async def maintenance(self) -> models.Maintenance:
        # counters of rows and vacuums are those of the server that is asked
        rows = await self._primary(lambda fetch: fetch("table_facts_shown", qualify("horsies_tasks", self._schema)))
        findings = await self._app.get_broker().diagnose()
        return models.Maintenance(tuple(findings), tuple(map(models.TableFacts.from_row, rows)))

    # -- acting, watching, closing ---------------------------------------------------------------

    async def act(self, action: str, targets: Sequence[Target]) -> Outcome:
        try:
            return await act(self._app.get_broker(), action, targets)
        except HorsiesError as error:
            raise SourceError(str(error)) from error

    async def watch(self, on_hint: OnHint, on_live: OnLive) -> None:
        await (
            self._app.database.here()
            .listener()
            .run(
                {channel: lambda _payload, kind=kind: on_hint(kind) for channel, kind in _CHANNELS.items()},
                on_live=lambda _connection: on_live(True),
                on_down=lambda: on_live(False),
            )
        )

    def origin(self) -> str:
        return self._replica.state.told if self._replica is not None else ""

    async def close(self) -> None:
        if self._replica is not None:
            await self._replica.close()
        await self._app.aclose()

    async def _read_shown(self, action: Callable[[Fetch, bool], Awaitable[R]]) -> R:
        """Read, with True for a role that may read messages, arguments and results, and with False for others."""
        if not self._hides:
            try:
                return await self.read(lambda fetch: action(fetch, True))
            except SourceError as error:
                if not is_denied(error):
                    raise
                self._hides = True
        return await self.read(lambda fetch: action(fetch, False))

    async def read(self, action: Callable[[Fetch], Awaitable[R]]) -> R:
        """Run `action(fetch)` in one short read-only transaction, on the replica if there is one."""
        replica = self._replica
        if replica is None:
            return await self._primary(action)
        run = bounded(self.statements, replica.judged(action), READ_TIMEOUT_MS, answer_s=ANSWER_S)
        return await self._told(lambda: replica.first(run, lambda: self._primary(action)))

    async def _primary(self, action: Callable[[Fetch], Awaitable[R]]) -> R:
        run = bounded(self.statements, action, READ_TIMEOUT_MS, answer_s=ANSWER_S)
        return await self._told(lambda: self._app.database.here().run_once(run))

    async def _told(self, read: Callable[[], Awaitable[R]]) -> R:
        """Every error as a SourceError in words."""
        try:
            return await read()
        except (asyncio.CancelledError, SourceError):
            raise
        except HorsiesError as error:
            raise SourceError(self._config.redact(str(error))) from error
        except Exception as error:
            raise SourceError(self._config.redact(worded(error) + and_remedy(error))) from error
