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

from horsies import AppConfig, PostgresConfig, ResilienceConfig, TaskError
from horsies.codec import encode_error
from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.session import CLAIM_SETTINGS, Session
from horsies_worker.workflows import step
from horsies_worker.workflows.advance import Advancer
from tests.support.hands import Hands, end_of
from tests.support.postgres import Database

Answer = Callable[[str, Mapping[str, Any]], int | str | list[Any] | TaskError]
"""(task name, arguments) -> the value that the task returns, or its error."""


class Killed(Exception):
    """The worker died here."""


class Engine:
    def __init__(self, db: Database, hands: Hands, advancers: Sequence[Advancer], names: Sequence[str]) -> None:
        self.db = db
        self.hands = hands
        self.advancers = advancers
        self._names = list(names)

    @classmethod
    @asynccontextmanager
    async def on(cls, db: Database, names: Sequence[str], *, workers: int = 2, **config: Any) -> AsyncIterator[Self]:
        settings = AppConfig(PostgresConfig(db.url), resilience=ResilienceConfig(), **config)
        sessions = [Session(settings.broker, f"workflows {at}", settings=CLAIM_SETTINGS) for at in range(workers)]
        async with Hands.on(db) as hands:
            try:
                yield cls(db, hands, [Advancer(settings, session) for session in sessions], names)
            finally:
                for session in sessions:
                    await session.close()

    async def claim(self, limit: int = 100) -> Sequence[Mapping[str, Any]]:
        rows = await self.hands.claim(limit, other_names=self._names)
        return [row for row in rows if row["status"] == "RUNNING"]

    async def end(self, rows: Sequence[Mapping[str, Any]], answer: Answer) -> list[str]:
        """End these tasks; returns the ids, which are a worker's hints."""
        ends = []
        for row in rows:
            given = answer(row["task_name"], json.loads(row["kwargs"] or "{}"))
            if isinstance(given, TaskError):
                ends.append(
                    end_of(row, TaskStatus.FAILED, error_code=str(given.error_code), result=encode_error(given),
                           outcome=AttemptOutcome.FAILED)
                )  # fmt: skip
            else:
                ends.append(end_of(row, result=json.dumps({"ok": given}, separators=(",", ":"))))
        written: set[str] = set()
        while ends:  # as the finalizer does: a row that somebody holds is tried again
            written |= (await self.hands.finalize(ends)).keys()
            left = [(end.task_id, end.generation) for end in ends if end.task_id not in written]
            held = await self.hands.queries.read_held(self.hands.connection, left)
            ends = [end for end in ends if end.task_id in held]
        return [row["id"] for row in rows if row["id"] in written]

    async def advance(self) -> None:
        """Every worker makes steps until it knows of nothing more; a step that dies takes what it knew along."""
        await asyncio.gather(*(self._advance(advancer) for advancer in self.advancers))

    async def _advance(self, advancer: Advancer) -> None:
        while advancer._tasks or advancer._workflows:
            try:
                await advancer.run_once()
            except Killed:
                advancer._tasks.clear()
                advancer._workflows.clear()

    async def recover(self) -> int:
        """What the reaper does, without its grace; how many workflows it found."""
        found: set[str] = set()
        for name in ("unadvanced_workflows", "unsettled_stopped_workflows"):
            rows = await self.hands.connection.fetch(self.hands.queries.sql(name), timedelta(0), 1000)
            found |= {row["id"] for row in rows}
        random.choice(self.advancers).look_at(found)
        await self.advance()
        return len(found)

    async def drain(self, answer: Answer) -> int:
        """Until nothing moves any more, whatever was forgotten on the way; how many tasks were run."""
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
