"""Typed functions over `sql/`: each takes a connection and keyword arguments and runs one statement."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, NamedTuple

from horsies._pg.statements import Statement, load
from horsies.codec import encode_error
from horsies.errors import OutcomeCode
from horsies.result import TaskError
from horsies_worker.decide import Transition
from horsies_worker.identity import Identity
from horsies_worker.session import SET_LOCAL_CLAIM_SETTINGS

# "caps", "reap" and "prun" in ASCII; the other half of each key is the schema
CAPS_LOCK: Final = 0x63617073
REAPER_LOCK: Final = 0x72656170
PRUNE_LOCK: Final = 0x7072756E

EXPIRED_RESULT: Final = encode_error(TaskError(OutcomeCode.TASK_EXPIRED, "its good_until passed before it could start"))
CANCELLED_RESULT: Final = encode_error(TaskError(OutcomeCode.TASK_CANCELLED, "cancelled before it started"))
UNRETRIED_RESULT: Final = encode_error(TaskError(OutcomeCode.TASK_CANCELLED, "cancelled before its next attempt"))

DUE_LOOK: Final = 1_000
"""Future tasks of one (queue, priority) that are read to find the first one of a known name; and ready tasks of other
names that make it crowded."""

Rows = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class Hint:
    """A (queue, priority) that an earlier claim took from, and the oldest it saw: nothing older is left there."""

    queue_name: str
    priority: int
    since: datetime


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a claim may take."""

    discover: Sequence[str]
    hints: Sequence[Hint]
    limit: int
    room_sync: int
    room_ahead: int
    room_async: int
    prefetch: int
    async_names: Sequence[str]
    short_names: Sequence[str]
    other_names: Sequence[str]
    """All names that are not async, the short ones too. What is in neither list is left in line."""
    look: int = 0
    """How many tasks to look at when the first ones may be of a kind that has no room; at least `limit`."""
    floor: datetime | None = None
    """With `discover`: begin here in every (queue, priority); None for a full scan."""


@dataclass(frozen=True, slots=True)
class NextRequest:
    """More from where the last claim took from, without a look at anything else."""

    hint: Hint
    limit: int
    names: Sequence[str] | None
    """What to take; None for all that is known. Other tasks of `known` are not taken, and count against `limit`."""
    known: Sequence[str]

    @property
    def discover(self) -> Sequence[str]:
        return ()


NO_CHILD_YET: Final = None
"""As process of a task that is claimed: which child gets it is not known, and the parent's pid would be taken for the
process to kill. The first heartbeat writes the child's, or the end of the task."""


class Outlook(NamedTuple):
    """What an idle worker has before it."""

    due_s: float | None
    """Until the first future task of a name that it knows."""
    asked_at: datetime
    is_crowded: bool
    """Many tasks of other names are ready."""


class Claimed(NamedTuple):
    """What a claim brought."""

    rows: Rows
    is_capped: bool = False
    """It brought nothing, and a cap was exhausted: tasks may wait for a place under it."""


class Queries:
    """The worker's statements, for one schema."""

    def __init__(self, schema: str | None, identity: Identity) -> None:
        self._identity = identity
        self._statements: Mapping[str, Statement] = {
            **load("horsies_worker", "claim.sql", schema),
            **load("horsies_worker", "finalize.sql", schema),
            **load("horsies_worker", "upkeep.sql", schema),
            **load("horsies_worker", "workflows.sql", schema),
            **load("horsies_worker", "liveness.sql", schema),
            **load("horsies_worker", "names.sql", schema),
            **load("horsies_worker", "prune.sql", schema),
            **load("horsies._pg", "control.sql", schema),
        }

    def sql(self, name: str) -> str:
        return self._statements[name].sql

    # -- claim -----------------------------------------------------------------------------------

    async def claim(
        self,
        connection: Any,
        request: ClaimRequest,
        *,
        lease_ms: int,
        queue_caps: Mapping[str, int],
        cluster_cap: int | None,
        pooled: bool,
    ) -> Claimed:
        caps = (list(queue_caps), list(queue_caps.values()), cluster_cap)
        values = (
            list(request.discover), request.limit,
            [hint.queue_name for hint in request.hints], [hint.priority for hint in request.hints],
            [hint.since for hint in request.hints],
            *caps,
            self._identity.worker_id, self._identity.hostname, NO_CHILD_YET, NO_CHILD_YET,
            timedelta(milliseconds=lease_ms), list(request.async_names), list(request.short_names),
            list(request.other_names), request.room_async, request.room_sync, request.room_ahead, request.prefetch,
            EXPIRED_RESULT, max(request.look, request.limit), request.floor,
        )  # fmt: skip
        capped = bool(queue_caps) or cluster_cap is not None
        if not capped and not pooled:
            return Claimed(await connection.fetch(self.sql("claim_batch"), *values))
        async with connection.transaction(isolation="read_committed"):
            if pooled:
                await connection.execute(SET_LOCAL_CLAIM_SETTINGS)
            if capped:
                # a frozen claimer must not stop the fleet: give up after a second and come again
                await connection.execute("SET LOCAL lock_timeout = '1s'")
                await connection.fetchval(self.sql("lock_caps"), CAPS_LOCK)
            rows = await connection.fetch(self.sql("claim_batch"), *values)
            if rows or not capped:
                return Claimed(rows)
            # Under the lock only ends change the count: places that are free now are free for the second claim too,
            # so when it finds nothing either, nothing waits. Without it, an end between the two would look like that.
            if await connection.fetchval(self.sql("is_capped"), *caps):
                return Claimed(rows, is_capped=True)
            return Claimed(await connection.fetch(self.sql("claim_batch"), *values))

    async def claim_next(self, connection: Any, request: NextRequest, *, pooled: bool) -> Rows:
        values = (
            request.hint.queue_name, request.hint.priority, request.hint.since, request.limit,
            None if request.names is None else list(request.names),
            self._identity.worker_id, self._identity.hostname, NO_CHILD_YET, NO_CHILD_YET,
            list(request.known),
        )  # fmt: skip
        if not pooled:
            return await connection.fetch(self.sql("claim_next_batch"), *values)
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(SET_LOCAL_CLAIM_SETTINGS)
            return await connection.fetch(self.sql("claim_next_batch"), *values)

    async def next_due(self, connection: Any, queues: Sequence[str], names: Sequence[str]) -> Outlook:
        return Outlook(*await connection.fetchrow(self.sql("next_due"), list(queues), list(names), DUE_LOOK))

    async def start(self, connection: Any, tasks: Sequence[tuple[str, int]]) -> dict[str, str]:
        """Status by id of the ones that were still ours: RUNNING, or EXPIRED."""
        rows = await connection.fetch(
            self.sql("start_batch"), self._identity.worker_id, [task[0] for task in tasks], [task[1] for task in tasks],
            self._identity.hostname, NO_CHILD_YET, NO_CHILD_YET, EXPIRED_RESULT,
        )  # fmt: skip
        return {row["id"]: row["status"] for row in rows}

    async def hand_back(self, connection: Any, tasks: Sequence[tuple[str, int]], delay_ms: int) -> set[str]:
        rows = await connection.fetch(
            self.sql("hand_back_batch"), self._identity.worker_id, [task[0] for task in tasks],
            [task[1] for task in tasks], timedelta(milliseconds=delay_ms), CANCELLED_RESULT,
        )  # fmt: skip
        return {row["id"] for row in rows}

    async def paused_queues(self, connection: Any) -> set[str]:
        return {row["queue_name"] for row in await connection.fetch(self.sql("paused_queues"))}

    # -- finalize --------------------------------------------------------------------------------

    async def finalize(self, connection: Any, batch: Sequence[Transition], owners: Sequence[str]) -> dict[str, str]:
        """New status by id of the ones that were written."""
        rows = await connection.fetch(
            self.sql("finalize_batch"),
            [item.task_id for item in batch], [item.generation for item in batch], list(owners),
            [item.status.value for item in batch], [item.result for item in batch],
            [item.error_code for item in batch], [item.error_message for item in batch],
            [item.failed_reason for item in batch],
            [item.outcome.value if item.outcome is not None else None for item in batch],
            [timedelta(milliseconds=item.retry_delay_ms) for item in batch], [item.budget for item in batch],
            [item.started for item in batch], [item.finished for item in batch], [item.pid for item in batch],
            [item.process_name for item in batch], UNRETRIED_RESULT,
        )  # fmt: skip
        return {row["id"]: row["status"] for row in rows}

    async def finalize_own(self, connection: Any, batch: Sequence[Transition]) -> dict[str, str]:
        """`finalize` of what this worker ran. One statement, the lean one where all of them are ok."""
        if all(item.is_ok for item in batch):
            return await self._complete(connection, batch)
        return await self.finalize(connection, batch, [self._identity.worker_id] * len(batch))

    async def _complete(self, connection: Any, batch: Sequence[Transition]) -> dict[str, str]:
        if len(batch) == 1:
            item = batch[0]
            rows = await connection.fetch(
                self.sql("complete_task"), self._identity.worker_id, item.task_id, item.generation, item.result,
                item.started, item.finished, item.pid, item.process_name,
            )  # fmt: skip
            return {row["id"]: row["status"] for row in rows}
        rows = await connection.fetch(
            self.sql("complete_batch"), self._identity.worker_id,
            [item.task_id for item in batch], [item.generation for item in batch], [item.result for item in batch],
            [item.started for item in batch], [item.finished for item in batch], [item.pid for item in batch],
            [item.process_name for item in batch],
        )  # fmt: skip
        return {row["id"]: row["status"] for row in rows}

    async def find_written(self, connection: Any, batch: Sequence[Transition]) -> set[str]:
        """Which of these attempts are in the database already, by this worker's hand."""
        rows = await connection.fetch(
            self.sql("find_written_batch"), [item.task_id for item in batch], [item.attempt for item in batch],
            self._identity.worker_id, [item.outcome.value if item.outcome is not None else None for item in batch],
        )  # fmt: skip
        return {row["id"] for row in rows}

    async def stage(self, connection: Any, batch: Sequence[Transition]) -> set[str]:
        """Ids of the ones that are marked now."""
        rows = await connection.fetch(
            self.sql("stage_batch"), self._identity.worker_id, [item.task_id for item in batch],
            [item.generation for item in batch], [item.result for item in batch], [item.started for item in batch],
            [item.finished for item in batch], [item.pid for item in batch], [item.process_name for item in batch],
        )  # fmt: skip
        return {row["id"] for row in rows}

    async def read_held(self, connection: Any, tasks: Sequence[tuple[str, int]]) -> dict[str, str]:
        """Status by id of those that are still this worker's, under this very claim."""
        rows = await connection.fetch(
            self.sql("read_held_batch"), self._identity.worker_id, [task[0] for task in tasks],
            [task[1] for task in tasks],
        )  # fmt: skip
        return {row["id"]: row["status"] for row in rows}

    async def list_held(self, connection: Any) -> list[tuple[str, int]]:
        """(id, generation) of all that the database believes in this worker's hands."""
        rows = await connection.fetch(self.sql("list_held"), self._identity.worker_id)
        return [(row["id"], row["claim_generation"]) for row in rows]

    async def write_progress(self, connection: Any, items: Sequence[tuple[str, int, str]]) -> set[str]:
        """Ids of the ones that were written."""
        rows = await connection.fetch(
            self.sql("write_progress_batch"), self._identity.worker_id, [item[0] for item in items],
            [item[1] for item in items], [item[2] for item in items],
        )  # fmt: skip
        return {row["id"] for row in rows}

    # -- upkeep ----------------------------------------------------------------------------------

    async def beat(self, connection: Any, beats: Sequence[tuple[str, int, str, int | None, str]]) -> set[str]:
        """Beats of (id, generation, role, pid, process name); returns the ids that are still ours."""
        rows = await connection.fetch(
            self.sql("beat_batch"), self._identity.worker_id, [beat[0] for beat in beats], [beat[1] for beat in beats],
            [beat[2] for beat in beats], self._identity.hostname, [beat[3] for beat in beats],
            [beat[4] for beat in beats],
        )  # fmt: skip
        return {row["id"] for row in rows}

    async def renew_claims(self, connection: Any, tasks: Sequence[tuple[str, int]], lease_ms: int) -> None:
        await connection.fetch(
            self.sql("renew_claims"), self._identity.worker_id, [task[0] for task in tasks],
            [task[1] for task in tasks], timedelta(milliseconds=lease_ms),
        )  # fmt: skip

    async def cancel_requests(self, connection: Any, task_ids: Sequence[str]) -> list[tuple[str, int]]:
        rows = await connection.fetch(self.sql("cancel_requests"), self._identity.worker_id, list(task_ids))
        return [(row["id"], row["claim_generation"]) for row in rows]
