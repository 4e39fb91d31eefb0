"""The worker's own statements without processes, on the same tables: what the database allows.

This is the only module of the bench that uses the worker's internals.
"""

import asyncio
import time
from typing import Any

import asyncpg

from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.child.outcome import Outcome, OutcomeKind
from horsies_worker.database.queries import ClaimRequest, Hint, NextRequest, Queries
from horsies_worker.database.settings import CLAIM_SETTINGS
from horsies_worker.database.transition import Transition
from horsies_worker.identity import Identity

QUERIES = Queries(None, Identity())


async def claim(connection: asyncpg.Connection, limit: int) -> list[Any]:
    request = ClaimRequest(limit, 0, limit, 0, 0, (), ("noop",), ("noop",), discover=("default",))
    options: dict[str, Any] = {"lease_ms": 60_000, "queue_caps": {}, "cluster_cap": None}
    return list((await QUERIES.claim(connection, request, pooled=False, **options)).rows)


async def finish(connection: asyncpg.Connection, rows: list[Any]) -> int:
    now, ok = time.time(), AttemptOutcome.COMPLETED
    outcome = Outcome(OutcomeKind.OK, '{"ok":1}', pid=1, process_name="bare")
    ends = [
        Transition(row["id"], row["claim_generation"], 1, TaskStatus.COMPLETED, outcome, ok, 0, 0, now - 0.001, now)
        for row in rows
    ]  # fmt: skip
    return len(await QUERIES.finalize_own(connection, ends))


async def drain(url: str, batch: int) -> float:
    """Claim and finish all pending tasks on two connections at the same time, as a worker does; tasks per second."""
    claimer, finalizer = await asyncpg.connect(url, server_settings=CLAIM_SETTINGS), await asyncpg.connect(url)
    claimed: asyncio.Queue[list[Any]] = asyncio.Queue(maxsize=2)

    async def claim_all() -> None:
        while rows := await claim(claimer, batch):
            while rows:  # more of the same kind, with the statement that a worker uses for that
                await claimed.put(rows)
                hint = Hint("default", rows[0]["priority"], rows[0]["since"])
                rows = list(
                    await QUERIES.claim_next(claimer, NextRequest(hint, batch, ["noop"], ["noop"]), pooled=False)
                )
        await claimed.put([])

    done, began = 0, time.perf_counter()
    claiming = asyncio.create_task(claim_all())
    while rows := await claimed.get():
        done += await finish(finalizer, rows)
    rate = done / (time.perf_counter() - began)
    await claiming
    await claimer.close()
    await finalizer.close()
    return rate
