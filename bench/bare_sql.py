"""The lifecycle in bare SQL: the worker's own claim and finalize statements, same table, same batches, no processes.

What the database allows; the worker is measured as a share of it.
"""

import asyncio
import time
from typing import Any

import asyncpg

from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.decide import Transition
from horsies_worker.identity import Identity
from horsies_worker.queries import ClaimRequest, Hint, NextRequest, Queries
from horsies_worker.session import CLAIM_SETTINGS

BATCH = 128


async def drain(url: str, *, batch: int = BATCH) -> float:
    """Claim and finish everything that is pending, on two connections that work at the same time, as a worker's do;
    tasks per second."""
    queries = Queries(None, Identity())
    claimer = await asyncpg.connect(url, server_settings=CLAIM_SETTINGS)
    finalizer = await asyncpg.connect(url)
    claimed: asyncio.Queue[list[Any]] = asyncio.Queue(maxsize=2)

    async def claim() -> None:
        hints: list[Hint] = []
        while True:
            if hints:  # more of the same, as the worker asks for it
                rows = await queries.claim_next(claimer, NextRequest(hints[0], batch, ["noop"], ["noop"]), pooled=False)
            else:
                request = ClaimRequest(
                    discover=("default",), hints=(), limit=batch, room_sync=0, room_ahead=batch,
                    room_async=0, prefetch=0, async_names=(), short_names=("noop",), other_names=("noop",),
                )  # fmt: skip
                whole = await queries.claim(
                    claimer, request, lease_ms=60_000, queue_caps={}, cluster_cap=None, pooled=False
                )
                rows = whole.rows
            if not rows and not hints:
                await claimed.put([])
                return
            hints = [Hint("default", rows[0]["priority"], rows[0]["since"])] if rows else []
            if rows:
                await claimed.put(list(rows))

    done = 0
    began = time.perf_counter()
    claiming = asyncio.create_task(claim())
    try:
        while rows := await claimed.get():
            now = time.time()
            ends = [
                Transition(
                    row["id"], row["claim_generation"], 1, TaskStatus.COMPLETED, '{"ok":1}', None, None, None,
                    AttemptOutcome.COMPLETED, 0, 0, now - 0.001, now, 1, "bare",
                )
                for row in rows
            ]  # fmt: skip
            done += len(await queries.finalize_own(finalizer, ends))
        return done / (time.perf_counter() - began)
    finally:
        await claiming
        await claimer.close()
        await finalizer.close()
