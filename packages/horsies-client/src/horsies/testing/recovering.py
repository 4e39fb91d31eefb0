"""Recovers an attempt whose process was killed, with the statements and the decision of the worker's reaper."""

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from horsies._pg.statements import load
from horsies.app import Horsies
from horsies.errors import UsageError
from horsies.status import TaskStatus
from horsies_worker.database.session import Session
from horsies_worker.liveness.recovery import Recovery

_AT_ONCE: Final = timedelta(0)
_MANY: Final = 10_000
_PATIENCE_S: Final = 10.0
"""Until the server has noticed that the connections of the killed process are gone, and has rolled them back."""


async def recover(app: Horsies, session: Session, ids: Sequence[str]) -> dict[str, tuple[TaskStatus, str | None]]:
    """End these attempts as crashed, unless they completed themselves, and let what is tried again be due. Returns the
    state and the result of each task."""
    recovery, wanted = Recovery(session.queries, app.registry), set(ids)

    async def end(connection: Any) -> None:
        async with session.transaction(connection):
            stale = await connection.fetch(session.queries.sql("stale_running"), _AT_ONCE, _AT_ONCE, _MANY)
            await recovery.end(connection, [row for row in stale if row["id"] in wanted], "its process was killed")

    give_up = time.monotonic() + _PATIENCE_S
    while True:
        await session.run(end)
        found = await read_states(app, session, ids)
        if all(status is not TaskStatus.RUNNING for status, _ in found.values()):
            break
        if time.monotonic() > give_up:
            raise UsageError(
                f"the killed attempt of task {ids[0]} cannot be recovered: another session locks its row. Does the "
                "test itself hold a transaction that has written it?"
            )
        await asyncio.sleep(0.01)
    sql = load("horsies.testing", "real.sql", app.schema)["make_due"].sql
    for task_id in ids:
        await session.run(lambda connection, task_id=task_id: connection.fetch(sql, task_id))
    return found


async def read_states(app: Horsies, session: Session, ids: Sequence[str]) -> dict[str, tuple[TaskStatus, str | None]]:
    sql = load("horsies.testing", "real.sql", app.schema)["states_of_tasks"].sql
    rows = await session.run(lambda connection: connection.fetch(sql, list(ids)))
    return {row["id"]: (TaskStatus(row["status"]), row["result"]) for row in rows}
