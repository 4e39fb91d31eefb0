"""Finds out that the schema was changed to a revision that this release cannot work with, while the process runs.

Every process checks the revision when it starts. An operator who upgrades across a breaking revision, or goes back to
an old one, should have stopped it first. If it still runs, it must stop before its statements do harm.
"""

from collections.abc import Callable
from typing import Final

from horsies._pg.schema_guard import Revision, revision_problem
from horsies._pg.statements import load
from horsies.config import ResilienceConfig
from horsies_worker.database.checks import Checks
from horsies_worker.database.session import Session
from horsies_worker.service import Service

EVERY_S: Final = 60.0


class RevisionWatch(Service):
    name = "revision"

    def __init__(
        self,
        session: Session,
        resilience: ResilienceConfig,
        schema: str | None,
        *,
        on_problem: Callable[[str], None],
        checks: Session | None = None,
    ) -> None:
        """`on_problem` gets what is wrong and what to do. `checks`: a session whose connection is open anyway."""
        super().__init__(session, resilience, EVERY_S)
        self._schema = schema
        self._statement = load("horsies._pg", "schema.sql", schema)["revisions"].sql
        self._checks = Checks(checks, session)
        self._on_problem = on_problem

    async def run_once(self) -> None:
        for row in await self._checks.run(lambda connection: connection.fetch(self._statement)):
            found = Revision(str(row["version_num"]), row["breaking"])
            if (problem := revision_problem(found, self._schema)) is not None:
                self._on_problem(problem)
