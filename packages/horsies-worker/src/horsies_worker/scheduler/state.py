"""The scheduler's statements as typed functions, for one set of schedules."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from horsies._runtime import AppRuntime
from horsies.new_tasks import NewTasks
from horsies.operate.schedule_state import LISTED_EVERY
from horsies.schedule import Overlap
from horsies.scheduled import ScheduledTask
from horsies.workflow.start import Start
from horsies_worker.database.queries import Queries
from horsies_worker.scheduler.announcing import Announcer
from horsies_worker.scheduler.slots import ORPHANED_AFTER, DueRow, Fire, KnownRow, Move, PlannedRow


@dataclass(frozen=True, slots=True)
class Outlook:
    """How many schedules are due and when the next one is, on the database's clock."""

    now: datetime
    known: int
    """Schedules of this app that have a row."""
    due: int
    """Schedules with a due slot or a request to run."""
    next_due: datetime | None
    """The first future slot."""
    orphaned: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Locked rows, and the database's time of the lock."""

    now: datetime | None
    rows: Sequence[DueRow]


class ScheduleState:
    def __init__(self, app: AppRuntime, queries: Queries, tasks: Sequence[ScheduledTask]) -> None:
        self._sql = queries.sql
        self.announcer = Announcer(app)
        self._tasks = {task.name: task for task in tasks}
        self._names = list(self._tasks)
        self._hashes = [task.schedule.config_hash for task in tasks]

    async def outlook(self, connection: Any) -> Outlook:
        row = await connection.fetchrow(self._sql("schedule_outlook"), self._names, self._hashes, ORPHANED_AFTER)
        return Outlook(**row)

    async def confirm(self, connection: Any) -> None:
        """Record that a live scheduler lists these schedules, unless that was recorded lately."""
        half = LISTED_EVERY / 2
        await connection.execute(self._sql("confirm_schedule_batch"), self._names, self._hashes, half)

    # -- planning --------------------------------------------------------------------------------

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

    # -- firing ----------------------------------------------------------------------------------

    async def lock_due(self, connection: Any, limit: int) -> Batch:
        rows = await connection.fetch(self._sql("lock_due_schedules"), self._names, self._hashes, limit)
        # read only for schedules with overlap=skip
        previous = [row["last_task_id"] for row in rows if self._is_alone(row["schedule_name"]) and row["last_task_id"]]
        live = await connection.fetch(self._sql("live_task_batch"), previous) if previous else ()
        live_ids = {row["id"] for row in live}
        return Batch(
            rows[0]["now"] if rows else None,
            [
                DueRow(
                    row["schedule_name"], row["next_run_at"], bool(row["is_ours"]), row["is_paused"],
                    row["run_requested_at"], row["last_task_id"] in live_ids,
                )
                for row in rows
            ],
        )  # fmt: skip

    def _is_alone(self, name: str) -> bool:
        return self._tasks[name].schedule.overlap is Overlap.SKIP

    async def enqueue(self, connection: Any, moves: Sequence[Move]) -> set[str]:
        """Insert the tasks and start the workflows of these moves; returns the ids that did not exist before."""
        rows: list[tuple[Fire, NewTasks]] = []
        starts: list[Start[Any]] = []
        for move in moves:
            for fire in move.fires:
                announced = await self.announcer.announce(self._tasks[move.name], fire)
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
        )  # fmt: skip
        return {row["id"] for row in rows}

    async def write_moves(self, connection: Any, moves: Sequence[Move], now: datetime, fresh: set[str]) -> None:
        ran = [[fire.task_id for fire in move.fires if fire.task_id in fresh] for move in moves]
        written: Sequence[Mapping[str, Any]] = await connection.fetch(
            self._sql("move_schedule_batch"),
            [move.name for move in moves], [move.was for move in moves], [move.next_run_at for move in moves],
            [len(ids) for ids in ran], [now] * len(moves), [ids[-1] if ids else None for ids in ran],
            [move.is_request_fulfilled for move in moves],
        )  # fmt: skip
        if len(written) != len(moves):
            raise RuntimeError("a locked schedule was changed by another session")
