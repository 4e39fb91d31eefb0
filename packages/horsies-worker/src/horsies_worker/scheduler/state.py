"""The scheduler's statements as typed functions: the rows of schedules in code, and the writing of runs."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from horsies._runtime import AppRuntime
from horsies.new_tasks import NewTasks
from horsies.operate.schedule_state import FORGOTTEN_AFTER, LISTED_EVERY
from horsies.schedule import Overlap
from horsies.scheduled import ScheduledTask
from horsies.workflow.start import Start
from horsies_worker.database.queries import Queries
from horsies_worker.scheduler.announcing import Announcer
from horsies_worker.scheduler.blocked import BlockedSchedules
from horsies_worker.scheduler.next_run import Slots, slots_of
from horsies_worker.scheduler.slots import (
    ORPHANED_AFTER,
    DueRow,
    Entry,
    Fire,
    KnownRow,
    Move,
    PlannedRow,
    Why,
    history,
)


@dataclass(frozen=True, slots=True)
class Served:
    """A schedule that is ready to run."""

    task: ScheduledTask
    slots: Slots
    version: int | None = None
    """Of a schedule that was made at run time."""


Serve = Callable[[ScheduledTask, int | None], Served]


def serve(task: ScheduledTask, version: int | None = None) -> Served:
    return Served(task, slots_of(task.schedule), version)


@dataclass(frozen=True, slots=True)
class Outlook:
    """How many schedules are due and when the next one is, on the database's clock."""

    now: datetime
    known: int
    """Schedules of this app's code that have a row."""
    due: int
    """Schedules in code with a due slot or a request to run."""
    next_due: datetime | None
    """The first future slot of a schedule in code."""
    orphaned: int
    """Schedules in code whose rows no scheduler serves: of a release that is gone, or given back to the code."""
    clashing: Sequence[str] | None
    """Schedules in code whose names were taken by schedules that were made at run time."""
    stored_due: bool
    stored_requested: bool
    stored_unplanned: bool
    stored_next_due: datetime | None
    """The same for schedules that were made at run time."""

    @property
    def is_due(self) -> bool:
        return self.due > 0 or self.stored_due or self.stored_requested

    @property
    def next_slot(self) -> datetime | None:
        return min((slot for slot in (self.next_due, self.stored_next_due) if slot is not None), default=None)


@dataclass(frozen=True, slots=True)
class Batch:
    """Locked rows, the schedules that they belong to, and the database's time of the lock."""

    now: datetime | None
    rows: Sequence[DueRow]
    served: Mapping[str, Served]
    is_full: bool
    """There may be more rows."""
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    """Schedules that cannot be served, and why."""


class CodeSchedules:
    """The rows of the schedules in the app's code."""

    def __init__(self, queries: Queries, tasks: Mapping[str, Served]) -> None:
        self._sql = queries.sql
        self._identity = queries.identity
        self._served = tasks
        self._names = list(tasks)
        self._hashes = [one.task.schedule.config_hash for one in tasks.values()]

    async def outlook(self, connection: Any, stored: Sequence[Any], blocked: BlockedSchedules) -> Outlook:
        """`stored`: the names that schedules made at run time must have, and those put aside. `blocked`: schedules
        whose slots cannot be written; while they wait they do not count as due, or there would be a look for them
        again and again, with pauses in which the slots of others come."""
        waiting = list(blocked.waiting(time.monotonic()))
        row = await connection.fetchrow(
            self._sql("schedule_outlook"), self._names, self._hashes, ORPHANED_AFTER, *stored, waiting
        )
        return Outlook(**row)

    async def confirm(self, connection: Any, tasks: Sequence[str], workflows: Sequence[str]) -> None:
        """Record that a live scheduler knows these tasks, and lists these schedules unless that was recorded lately."""
        await connection.execute(self._sql("confirm_schedule_batch"), self._names, self._hashes, LISTED_EVERY / 2)
        me = self._identity
        await connection.execute(
            self._sql("beat_scheduler"), me.worker_id, me.hostname, me.pid, tasks, workflows, self._names,
            FORGOTTEN_AFTER,
        )  # fmt: skip

    async def read(self, connection: Any) -> dict[str, KnownRow]:
        rows = await connection.fetch(self._sql("read_schedules"), self._names)
        return {row["name"]: KnownRow(**row) for row in rows}

    async def write_plans(self, connection: Any, plans: Sequence[PlannedRow]) -> set[str]:
        """Names of the rows that were written; another scheduler has changed the others meanwhile."""
        written: list[Any] = []
        new = [plan for plan in plans if plan.was is None]
        if new:
            written += await connection.fetch(
                self._sql("insert_schedule_batch"), [plan.name for plan in new], [plan.config_hash for plan in new],
                [plan.next_run_at for plan in new],
            )  # fmt: skip
        old = [(plan, plan.was) for plan in plans if plan.was is not None]
        if old:
            written += await connection.fetch(
                self._sql("replan_schedule_batch"), [plan.name for plan, _ in old],
                [plan.config_hash for plan, _ in old], [plan.next_run_at for plan, _ in old],
                [was.config_hash for _, was in old], [was.next_run_at for _, was in old],
            )  # fmt: skip
        return {row["schedule_name"] for row in written}

    async def lock_due(self, connection: Any, limit: int, blocked: BlockedSchedules) -> Batch:
        """Due rows, without those of schedules whose slots cannot be written now."""
        names, hashes = self._names, self._hashes
        if waiting := blocked.waiting(time.monotonic()):
            kept = [(name, one) for name, one in zip(names, hashes, strict=True) if name not in waiting]
            names, hashes = [name for name, _ in kept], [one for _, one in kept]
        rows = await connection.fetch(self._sql("lock_due_schedules"), names, hashes, limit)
        live = await live_runs(connection, self._sql("live_task_batch"), rows, self._served)
        due = [due_row(row, live, is_ours=bool(row["is_ours"])) for row in rows]
        return Batch(rows[0]["now"] if rows else None, due, self._served, len(rows) == limit)


def due_row(row: Mapping[str, Any], live: set[str], *, is_ours: bool) -> DueRow:
    """From a row of `lock_due_schedules`, or of those for schedules made at run time."""
    why = row["last_skipped"]
    return DueRow(
        row["schedule_name"], row["next_run_at"], is_ours, row["is_paused"], row["run_requested_at"],
        row["last_task_id"] in live, row["entries"], None if why is None else Why(why), row["last_skipped_slot"],
        row["last_run_at"],
    )  # fmt: skip


async def live_runs(
    connection: Any, sql: str, rows: Iterable[Mapping[str, Any]], served: Mapping[str, Served]
) -> set[str]:
    """The last runs that have not ended; read only for schedules with overlap=skip."""
    previous = [
        row["last_task_id"]
        for row in rows
        if row["last_task_id"]
        and row["schedule_name"] in served
        and served[row["schedule_name"]].task.schedule.overlap is Overlap.SKIP
    ]
    return {row["id"] for row in await connection.fetch(sql, previous)} if previous else set()


class Runs:
    """Writes runs: their tasks and workflows, the rows of their schedules, and the history."""

    def __init__(self, app: AppRuntime, queries: Queries) -> None:
        self._sql = queries.sql
        self.announcer = Announcer(app)

    async def enqueue(self, connection: Any, moves: Sequence[Move], served: Mapping[str, Served]) -> set[str]:
        """Insert the tasks and start the workflows of these moves; returns the ids that did not exist before."""
        rows: list[tuple[Fire, NewTasks]] = []
        starts: list[Start[Any]] = []
        for move in moves:
            for fire in move.fires:
                announced = await self.announcer.announce(served[move.name].task, fire)
                if isinstance(announced.target, NewTasks):
                    rows.append((fire, announced.target))
                elif announced.target is not None:
                    starts.append(announced.target)
        fresh = await self._insert(connection, rows)
        for start in starts:
            sql, values = start.statement()
            if await connection.fetch(sql, *values):
                fresh.add(start.workflow_id)
        return fresh

    async def _insert(self, connection: Any, fires: Sequence[tuple[Fire, NewTasks]]) -> set[str]:
        if not fires:
            return set()
        rows = await connection.fetch(
            self._sql("insert_scheduled_batch"),
            [fire.task_id for fire, _ in fires], [row.plan.task_name for _, row in fires],
            [row.plan.queue_name for _, row in fires], [row.plan.priority for _, row in fires],
            [row.args[0] for _, row in fires], [row.kwargs[0] for _, row in fires], [fire.slot for fire, _ in fires],
            [fire.not_before for fire, _ in fires], [row.plan.good_until for _, row in fires],
            [row.plan.ttl for _, row in fires], [row.plan.max_retries for _, row in fires],
            [row.plan.task_options for _, row in fires], [row.shas[0] for _, row in fires],
            [row.metadata for _, row in fires], [row.groups[0] if row.groups else None for _, row in fires],
            [row.plan.keep_seconds for _, row in fires],
        )  # fmt: skip
        return {row["id"] for row in rows}

    async def write_moves(self, connection: Any, moves: Sequence[Move], batch: Batch, fresh: set[str]) -> None:
        """Move the rows of the schedules on, and note the runs and the skipped slots."""
        ran = [[fire.task_id for fire in move.fires if fire.task_id in fresh] for move in moves]
        rows = {row.name: row for row in batch.rows}
        noted: list[tuple[str, Entry]] = []
        newest: list[int] = []
        for move in moves:
            row = rows[move.name]
            entries = history(move, batch.served[move.name].slots, row, fresh.__contains__, self.announcer.is_refused)
            noted += [(move.name, entry) for entry in entries]
            newest.append(entries[-1].number if entries else row.entries)
        written: Sequence[Mapping[str, Any]] = await connection.fetch(
            self._sql("move_schedule_batch"),
            [move.name for move in moves], [move.was for move in moves], [move.next_run_at for move in moves],
            [len(ids) for ids in ran], [batch.now] * len(moves), [ids[-1] if ids else None for ids in ran],
            [move.is_request_fulfilled for move in moves], newest,
            [name for name, _ in noted], [entry.number for _, entry in noted], [entry.slot for _, entry in noted],
            [entry.last_slot for _, entry in noted], [entry.task_id for _, entry in noted],
            [entry.skipped for _, entry in noted], [entry.is_request for _, entry in noted], batch.now,
        )  # fmt: skip
        if len(written) != len(moves):
            raise RuntimeError("a locked schedule was changed by another session")
