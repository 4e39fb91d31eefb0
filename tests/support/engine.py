"""The workflow engine without processes: claims and ends by statements, steps by the real `Advancer`, in one loop.

What a worker's death leaves behind is made here by dropping what it knew (a hint, a half-made step), which is all
that a death can do to rows; the e2e tests kill real ones.
"""

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, Self

from horsies import AppConfig, Continue, PostgresConfig, ResilienceConfig, TaskError
from horsies.codec import encode_error
from horsies.envelopes import Envelopes
from horsies.status import AttemptOutcome, TaskStatus
from horsies.workflow.continuing import continue_text
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.workflows import step
from horsies_worker.workflows.advance import LEASE, Advancer
from tests.support.hands import Hands, end_of
from tests.support.postgres import Database

Answer = Callable[[str, Mapping[str, Any]], int | str | list[Any] | TaskError | Continue[Any]]
"""(task name, arguments) -> the value that the task returns, its error, or the workflow that goes on in its place."""


class Killed(Exception):
    """The worker died here."""


class Engine:
    def __init__(
        self, db: Database, hands: Hands, config: AppConfig, sessions: Sequence[Session], names: Sequence[str]
    ) -> None:
        self.db = db
        self.hands = hands
        self._config = config
        self._envelopes = Envelopes(config.payload_codec)
        self._sessions = sessions
        self._names = list(names)
        self.advancers = [Advancer(session, config) for session in sessions]

    @classmethod
    @asynccontextmanager
    async def on(cls, db: Database, names: Sequence[str], *, workers: int = 2, **config: Any) -> AsyncIterator[Self]:
        settings = AppConfig(PostgresConfig(db.url), resilience=ResilienceConfig(), **config)
        queries = Queries(None, Identity())
        sessions = [Session(settings.broker, f"workflows {at}", queries) for at in range(workers)]
        async with Hands.on(db) as hands:
            try:
                yield cls(db, hands, settings, sessions, names)
            finally:
                for session in sessions:
                    await session.close()

    async def claim(self, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        rows = await self.hands.claim(limit, sync_names=self._names)
        return [row for row in rows if row["status"] == "RUNNING"]

    async def end(self, rows: Sequence[Mapping[str, Any]], answer: Answer) -> list[str]:
        """End these tasks; returns the ids, which are a worker's hints."""
        ends = []
        for row in rows:
            name = row["task_name"]
            _, kwargs = self._envelopes.unwrap_call(None, row["kwargs"], name)
            given = answer(name, json.loads(kwargs or "{}"))
            if isinstance(given, TaskError):
                ends.append(
                    end_of(row, TaskStatus.FAILED, error_code=str(given.error_code),
                           result=self._envelopes.wrap_error(encode_error(given), name), recorded=AttemptOutcome.FAILED)
                )  # fmt: skip
            elif isinstance(given, Continue):
                text, problem = continue_text(given.workflow, given.workflow.codec.signature.result)
                assert problem is None, problem
                ends.append(end_of(row, result=text))
            else:
                text = json.dumps({"ok": given}, separators=(",", ":"))
                ends.append(end_of(row, result=self._envelopes.wrap_result(text, name)))
        written: set[str] = set()
        while ends:  # as the finalizer does: a locked row is tried again
            written |= (await self.hands.finalize(ends)).keys()
            left = [(end.task_id, end.generation) for end in ends if end.task_id not in written]
            held = await self.hands.queries.read_owned(self.hands.connection, left)
            ends = [end for end in ends if end.task_id in held]
        return [row["id"] for row in rows if row["id"] in written]

    async def advance(self) -> None:
        """Every worker makes steps until it knows of nothing more; a step that dies takes what it knew along."""
        await asyncio.gather(*(self._advance(worker) for worker in range(len(self.advancers))))

    async def _advance(self, worker: int) -> None:
        while self.advancers[worker].has_backlog():
            try:
                await self.advancers[worker].run_once()
            except Killed:
                self.forget(worker)

    def forget(self, worker: int) -> None:
        """The worker dies; the one that takes its place knows nothing."""
        self.advancers[worker] = Advancer(self._sessions[worker], self._config)

    async def recover(self) -> int:
        """What the reaper does, without its grace; how many workflows it found."""
        found: set[str] = set()
        for name in ("unadvanced_workflows", "unsettled_stopped_workflows"):
            rows = await self.hands.connection.fetch(self.hands.queries.sql(name), timedelta(0), 1000)
            found |= {row["id"] for row in rows}
        # clocks that a dead worker had taken, without their lease; one that has not come is set again by the step.
        # It waits for no lock: it takes rows in no order, and steps lock a run and the one around it.
        due = await self.hands.connection.fetch(
            "UPDATE horsies_workflows SET wake_at = statement_timestamp() WHERE id = ANY (ARRAY("
            "SELECT id FROM horsies_workflows WHERE wake_at <= statement_timestamp() + $1::interval"
            " FOR UPDATE SKIP LOCKED)) RETURNING id", LEASE,
        )  # fmt: skip
        chosen = random.choice(self.advancers)
        chosen.check(found)
        if due:
            chosen.look_at_clocks()
        await self.advance()
        return len(found | {row["id"] for row in due})

    async def drain(self, answer: Answer) -> int:
        """Work until nothing changes any more, as recovery would; returns how many tasks were run."""
        ran = 0
        while True:
            rows = await self.claim(500)
            ran += len(rows)
            if rows:
                random.choice(self.advancers).tasks_ended(await self.end(rows, answer))
            await self.advance()
            if not rows and not await self.recover():
                return ran


@asynccontextmanager
async def dying_at(points: Mapping[str, float], chance: random.Random) -> AsyncIterator[None]:
    """Inside the block a step dies at these points, so often."""
    before = step.reached

    async def reached(name: str) -> None:
        if chance.random() < points.get(name, 0.0):
            raise Killed(name)

    step.reached = reached  # type: ignore[assignment]
    try:
        yield
    finally:
        step.reached = before
