"""A worker reduced to its statements: claims, starts, hands back and ends tasks on one connection, without processes.

async with Hands.on(db) as hands:
    rows = await hands.claim(limit=3)
    await hands.end(rows)
"""

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from itertools import count
from math import inf
from typing import Any, Self

import asyncpg

from horsies import TaskError
from horsies.codec import encode_error
from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.child.outcome import Outcome, OutcomeKind
from horsies_worker.database.grouped_claim import GroupedRequest, GroupedResult
from horsies_worker.database.queries import ClaimRequest, Queries
from horsies_worker.database.settings import CLAIM_SETTINGS
from horsies_worker.database.transition import Transition
from horsies_worker.identity import Identity
from tests.support import factories
from tests.support.postgres import Database

Row = Mapping[str, Any]
_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)
_pids = count(100)


class Hands:
    def __init__(self, connection: Any, identity: Identity) -> None:
        self.connection = connection
        self.identity = identity
        self.queries = Queries(None, identity)

    @classmethod
    @asynccontextmanager
    async def on(cls, db: Database, worker_id: str = "worker-1") -> AsyncIterator[Self]:
        connection = await asyncpg.connect(db.url, server_settings=CLAIM_SETTINGS)
        try:
            yield cls(connection, Identity(worker_id, "host-1", 4711))
        finally:
            await connection.close()

    async def claim(
        self,
        limit: int = 100,
        *,
        lease_ms: int = 60_000,
        queue_caps: Mapping[str, int] | None = None,
        cluster_cap: int | None = None,
        **request: Any,
    ) -> Sequence[Row]:
        """Without more words: everything ready in `default`, the task `add` being known and having room."""
        given = {
            "discover": ["default"], "hints": (), "limit": limit, "room_sync": limit, "room_ahead": 0, "room_async": 0,
            "prefetch": 0, "async_names": (), "short_names": (), "sync_names": ["add"], **request,
        }  # fmt: skip
        claimed = await self.queries.claim(
            self.connection, ClaimRequest(**given), lease_ms=lease_ms, queue_caps=queue_caps or {},
            cluster_cap=cluster_cap, pooled=False,
        )  # fmt: skip
        return claimed.rows

    async def claim_grouped(
        self,
        limit: int = 100,
        *,
        queue_caps: Mapping[str, int] | None = None,
        cluster_cap: int | None = None,
        **request: Any,
    ) -> GroupedResult:
        """Without more words: a walk through all groups of `default`, the task `add` being known and having room."""
        given = {
            "queues": ["default"], "looks": (), "is_walk": True, "cursors": {}, "max_groups": 200, "limit": limit,
            "room_sync": limit, "room_ahead": 0, "room_async": 0, "async_names": (), "short_names": (),
            "sync_names": ["add"], "expected_at": inf, **request,
        }  # fmt: skip
        return await self.queries.claim_grouped(
            self.connection, GroupedRequest(**given), queue_caps=queue_caps or {}, cluster_cap=cluster_cap, pooled=False
        )

    async def start(self, rows: Sequence[Row]) -> dict[str, str]:
        return await self.queries.start(self.connection, keys_of(rows))

    async def hand_back(self, rows: Sequence[Row]) -> set[str]:
        return await self.queries.hand_back(self.connection, keys_of(rows))

    async def end(self, rows: Sequence[Row], **fields: Any) -> dict[str, str]:
        """Ends as the pool would report them; by default all went well."""
        return await self.finalize([end_of(row, **fields) for row in rows])

    async def finalize(self, ends: Sequence[Transition]) -> dict[str, str]:
        return await self.queries.finalize_own(self.connection, ends)


def running(db: Database, **columns: Any) -> dict[str, Any]:
    """A task in worker-1's hands, as its claim saw it."""
    task = factories.task(db, "RUNNING", **columns)
    row = factories.read(db, task)
    return {name: row[name] for name in ("id", "claim_generation", "retry_count", "max_retries")}


def attempts(db: Database, task: str) -> list[dict[str, Any]]:
    names = (
        "attempt", "outcome", "will_retry", "started_at", "finished_at", "error_code", "error_message",
        "failed_reason", "worker_id", "worker_hostname", "worker_pid", "worker_process_name",
    )  # fmt: skip
    found = db.execute(
        f"SELECT {', '.join(names)} FROM horsies_task_attempts WHERE task_id = %s ORDER BY attempt", task
    )
    return [dict(zip(names, row, strict=True)) for row in found]


def keys_of(rows: Sequence[Row]) -> list[tuple[str, int]]:
    return [(row["id"], row["claim_generation"]) for row in rows]


def moment(seconds: float | None) -> datetime:
    """A transition's time as the database gives it back: counted from its own epoch, and rounded after that. Rounded
    as Python does it, one in sixteen differs by a microsecond."""
    assert seconds is not None
    return _EPOCH + timedelta(microseconds=round((seconds - _EPOCH.timestamp()) * 1e6))


def end_of(row: Row, status: TaskStatus = TaskStatus.COMPLETED, **fields: Any) -> Transition:
    """The end of a claimed row's attempt. FAILED, CANCELLED and PENDING (a retry) carry an error."""
    failed = status is not TaskStatus.COMPLETED
    code = fields.get("error_code", "SMTP_DOWN") if failed else None
    now, mono = time.time(), time.monotonic()
    outcome: dict[str, Any] = {
        "kind": OutcomeKind.ERR if failed else OutcomeKind.OK,
        "result": encode_error(TaskError(code, "as the test wanted")) if code else '{"ok":1}', "error_code": code,
        "error_message": code and "as the test wanted", "failed_reason": code and "why",
        "started_mono": mono - 0.001, "finished_mono": mono, "pid": next(_pids), "process_name": "child-9",
    }  # fmt: skip
    transition: dict[str, Any] = {
        "recorded": AttemptOutcome.FAILED if failed else AttemptOutcome.COMPLETED, "retry_delay_ms": 0,
        "budget": row["max_retries"], "started": now - 0.001, "finished": now, "crash": None,
    }  # fmt: skip
    for name, value in fields.items():
        (transition if name in transition else outcome)[name] = value
    return Transition(
        task_id=row["id"], generation=row["claim_generation"], attempt=row["retry_count"] + 1, status=status,
        outcome=Outcome(**outcome), **transition,
    )  # fmt: skip
