"""Repairs waiting tasks that no claim can take because their claim generation is at the end of its type.

A claim raises the generation, so one such row fails every claim that meets it, and with it the tasks behind it.
No claim gets there by itself: the row was written by hand or is damaged.
"""

import logging
from typing import Final

from horsies_worker.database.session import Session
from horsies_worker.service import TroubleLog

_OUT_OF_RANGE: Final = "22003"
_log = logging.getLogger("horsies.worker.claim")


async def restart_generations(session: Session, error: Exception, trouble: TroubleLog) -> None:
    """After a claim that failed: if a number was out of range, set those generations to 0."""
    if getattr(error, "sqlstate", None) != _OUT_OF_RANGE:
        return
    try:
        rows = await session.ask("restart_generations")
    except Exception as problem:
        trouble.tell("repair of claim generations", problem, 0)
        return
    if rows:
        named = ", ".join(row["id"] for row in rows[:5])
        _log.error(
            "%d waiting tasks had the highest claim generation, at which every claim failed; it is 0 now: %s",
            len(rows), named,
        )  # fmt: skip
