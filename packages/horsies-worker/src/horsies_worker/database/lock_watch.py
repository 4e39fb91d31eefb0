"""Names the session that keeps an advisory lock of horsies from the workers: every role may take one."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

from horsies._pg.locks import PURPOSES, holder
from horsies._text import span
from horsies_worker.database.session import Session
from horsies_worker.output.log_context import log

REFUSALS: Final = 3
LONG: Final = timedelta(seconds=30)


@dataclass(eq=False)
class LockWatch:
    """Counts the refusals of one lock, and reports its holder when they go on."""

    service: str
    key: int
    session: Session
    limit: int = REFUSALS
    """Ask who holds the lock after each so many refusals in a row: workers hold it for milliseconds."""
    refusals: int = field(default=0, init=False)

    def obtained(self) -> None:
        self.refusals = 0

    async def refused(self) -> None:
        """Not to be called inside an action of the session."""
        self.refusals += 1
        if self.refusals % self.limit:
            return
        try:
            rows = await self.session.run(lambda c: self.session.queries.lock_holders(c, self.key))
        except Exception as error:
            log.debug("%s: the holder of a lock could not be read", self.service, exc_info=error)
            return
        for row in rows:
            if row["is_foreign"] or (row["age"] is not None and row["age"] > LONG):
                since = f" for {span(row['age'])}" if row["age"] is not None else ""
                log.warning(
                    "%s: %s holds the lock %s%s, and nothing is done meanwhile; to end it: "
                    "SELECT pg_terminate_backend(%d)",
                    self.service, holder(row), PURPOSES[self.key], since, row["pid"],
                )  # fmt: skip
