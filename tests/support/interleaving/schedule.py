"""Runs actors on sessions of their own, one statement at a time, in a given order; enumerates all orders.

A statement that waits for a lock of another actor is found by pg_blocking_pids, and goes on when that actor lets go.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import asyncpg

from horsies_worker.database.settings import CLAIM_SETTINGS
from tests.support.interleaving import gates
from tests.support.postgres import Database

STUCK_S = 30.0
"""A schedule in which no actor can go on for so long has failed."""


class State(Enum):
    READY = "ready"
    """It waits for its turn."""
    ACTIVE = "active"
    BLOCKED = "blocked"
    """Its statement waits for a lock of another actor."""
    AT_GATE = "at the gate"
    """Its statement has its snapshot, and no lock yet."""
    DONE = "done"


class Actor:
    """One session. To a program it is the connection: each statement and each commit waits for its turn."""

    def __init__(self, number: int, connection: Any, pid: int) -> None:
        self.number = number
        self.real = connection
        self.pid = pid
        self.is_gated = False
        self.state = State.DONE
        self.steps = 0
        self.began_at = 0
        """The number of the choice with which its last statement began."""
        self.now = 0
        """The number of the last choice."""
        self.has_to_wait = False
        """Its next step makes sense only after one of another actor."""
        self.next_step = ""
        self.is_given_up = False
        """The schedule has failed: only the transaction is still rolled back."""
        self._turn = asyncio.Event()
        self.progress = asyncio.Event()

    async def fetch(self, sql: str, *values: Any) -> Any:
        return await self.step(sql, lambda: self.real.fetch(sql, *values))

    async def fetchrow(self, sql: str, *values: Any) -> Any:
        return await self.step(sql, lambda: self.real.fetchrow(sql, *values))

    async def fetchval(self, sql: str, *values: Any) -> Any:
        return await self.step(sql, lambda: self.real.fetchval(sql, *values))

    async def prepare(self, sql: str) -> "Prepared":
        """No step: it takes no snapshot and no lock on rows."""
        return Prepared(self, sql, await self.real.prepare(sql))

    async def execute(self, sql: str, *values: Any) -> Any:
        if sql.startswith("SET LOCAL"):  # no step: it touches no row
            return await self.real.execute(sql, *values)
        return await self.step(sql, lambda: self.real.execute(sql, *values))

    @asynccontextmanager
    async def transaction(self, **options: Any) -> AsyncIterator[None]:
        """BEGIN takes neither snapshot nor lock, so it is no step; a savepoint is none either."""
        is_outer = not self.real.is_in_transaction()
        transaction = self.real.transaction(**options) if is_outer else self.real.transaction()
        await transaction.start()
        try:
            yield
        except BaseException:
            await (self.step("ROLLBACK", transaction.rollback) if is_outer else transaction.rollback())
            raise
        await (self.step("COMMIT", transaction.commit) if is_outer else transaction.commit())

    def after_others(self) -> None:
        """The next step makes sense only after one of another actor: a row was locked."""
        self.has_to_wait = True

    async def step(self, sql: str, action: Callable[[], Awaitable[Any]]) -> Any:
        if self.is_given_up:
            return await action()
        self.next_step = sql
        self.state = State.READY
        self.progress.set()
        await self._turn.wait()
        self._turn.clear()
        self.steps += 1
        if self.is_gated and sql not in ("COMMIT", "ROLLBACK"):
            await gates.arm(self.real)
        return await action()

    def go(self) -> None:
        self.state = State.ACTIVE
        self._turn.set()

    async def run(self, program: Callable[[], Awaitable[None]]) -> None:
        try:
            await program()
        finally:
            self.state = State.DONE
            self.progress.set()


@dataclass
class Trace:
    """What happened in one schedule."""

    choices: list[int] = field(default_factory=list)
    options: list[list[int]] = field(default_factory=list)
    """The actors that could have gone on, at each choice."""
    steps: list[str] = field(default_factory=list)

    @property
    def name(self) -> str:
        """How a failure names it, and `replay` takes it."""
        return "".join(map(str, self.choices))

    def preemptions(self, upto: int) -> int:
        """How often an actor that could have gone on had to wait."""
        return sum(
            self.choices[at] != self.choices[at - 1] and self.choices[at - 1] in self.options[at]
            for at in range(1, upto)
        )


class Schedules:
    """Sessions for up to `actors` actors on one database."""

    def __init__(self, actors: Sequence[Actor], controller: Any, monitor: Any, controller_pid: int) -> None:
        self.actors = actors
        self._controller = controller
        self._monitor = monitor
        self._controller_pid = controller_pid

    @classmethod
    @asynccontextmanager
    async def on(cls, db: Database, actors: int) -> AsyncIterator["Schedules"]:
        gates.build(db)
        opened = [
            await asyncpg.connect(
                db.url, server_settings={**CLAIM_SETTINGS, **gates.settings(number), "deadlock_timeout": "100ms"}
            )
            for number in range(actors)
        ]
        plain = [await asyncpg.connect(db.url) for _ in range(2)]
        pid = await plain[0].fetchval("SELECT pg_backend_pid()")
        for number in range(actors):
            await gates.close(plain[0], number)
        made = [Actor(number, one, await one.fetchval("SELECT pg_backend_pid()")) for number, one in enumerate(opened)]
        try:
            yield cls(made, plain[0], plain[1], pid)
        finally:
            for connection in (*opened, *plain):
                await connection.close()

    async def run(
        self, programs: Sequence[Callable[[Actor], Awaitable[None]]], choices: Sequence[int], *, gated: bool
    ) -> Trace:
        """Run the programs; the first steps in this order, the rest each to its end, the first actor first."""
        trace = Trace()
        actors = self.actors[: len(programs)]
        for actor in actors:
            actor.is_gated, actor.steps, actor.has_to_wait = gated, 0, False
            actor.state, actor.is_given_up = State.ACTIVE, False
            await gates.disarm(actor.real)
        tasks = [
            asyncio.create_task(actor.run(lambda actor=actor, program=program: program(actor)))
            for actor, program in zip(actors, programs, strict=True)
        ]
        try:
            async with asyncio.timeout(STUCK_S):
                while True:
                    await self._come_to_rest(actors)
                    for task in tasks:
                        if task.done():
                            task.result()
                    if not (options := _options(actors)):
                        if all(actor.state is State.DONE for actor in actors):
                            break
                        await asyncio.sleep(0.01)  # a deadlock: the server ends it
                        self._look_again(actors)
                        continue
                    at = len(trace.choices)
                    chosen = choices[at] if at < len(choices) else _next(trace, options)
                    assert chosen in options, f"schedule {trace.name}: actor {chosen} cannot go on, only {options}"
                    await self._grant(actors, chosen, options, trace)
        except TimeoutError:
            states = {actor.number: actor.state.value for actor in actors}
            raise AssertionError(f"stuck after {trace.name[:60]}: {states}") from None
        finally:
            for actor in actors:
                actor.is_given_up = True
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return trace

    async def _grant(self, actors: Sequence[Actor], chosen: int, options: list[int], trace: Trace) -> None:
        actor = actors[chosen]
        trace.choices.append(chosen)
        trace.options.append(options)
        self._look_again(actors)
        for other in actors:
            other.has_to_wait, other.now = False, len(trace.choices)
        if actor.state is State.READY:
            trace.steps.append(f"{chosen}: {_short(actor.next_step)}")
            if actor.next_step not in ("COMMIT", "ROLLBACK"):
                actor.began_at = len(trace.choices)
            actor.go()
        else:
            trace.steps.append(f"{chosen}: ... goes on")
            actor.state = State.ACTIVE
            await gates.let_through(self._controller, actor.number)
            await gates.close(self._controller, actor.number)

    def _look_again(self, actors: Sequence[Actor]) -> None:
        for actor in actors:
            if actor.state is State.BLOCKED:
                actor.state = State.ACTIVE

    async def _come_to_rest(self, actors: Sequence[Actor]) -> None:
        own = {self._controller_pid, *(actor.pid for actor in actors)}
        while active := [actor for actor in actors if actor.state is State.ACTIVE]:
            for actor in active:
                actor.progress.clear()
                if actor.state is State.ACTIVE:
                    try:
                        async with asyncio.timeout(0.002):
                            await actor.progress.wait()
                    except TimeoutError:
                        pass
            active = [actor for actor in active if actor.state is State.ACTIVE]
            if not active:
                continue
            found = await self._monitor.fetch(
                "SELECT pid, pg_blocking_pids(pid) AS blockers FROM unnest($1::int[]) AS p (pid)",
                [actor.pid for actor in active],
            )
            # a lock of another process, such as autovacuum, is waited for
            blockers = [own.intersection(row["blockers"]) for row in found]
            if any(actor.state is not State.ACTIVE or not pids for actor, pids in zip(active, blockers, strict=True)):
                continue  # one of them is still running, and may be about to let go of a lock
            for actor, pids in zip(active, blockers, strict=True):
                actor.state = State.AT_GATE if pids == {self._controller_pid} else State.BLOCKED


async def explore(
    run: Callable[[Sequence[int]], Awaitable[Trace]], *, preemptions: int | None = None
) -> AsyncIterator[Trace]:
    """Every order of the steps, depth first; with `preemptions` those in which no more than so many actors that could
    have gone on had to wait."""
    prefix: list[int] | None = []
    while prefix is not None:
        trace = await run(prefix)
        yield trace
        prefix = _next_prefix(trace, preemptions)


def _next_prefix(trace: Trace, preemptions: int | None) -> list[int] | None:
    for at in reversed(range(len(trace.choices))):
        # the choice that `_next` takes first comes first, the others follow in their order
        first = _next(trace, trace.options[at], at)
        order = [first, *(one for one in trace.options[at] if one != first)]
        for candidate in order[order.index(trace.choices[at]) + 1 :]:
            spent = trace.preemptions(at) + (at > 0 and trace.choices[at - 1] in trace.options[at])
            if preemptions is None or spent <= preemptions:
                return [*trace.choices[:at], candidate]
    return None


def _next(trace: Trace, options: Sequence[int], at: int | None = None) -> int:
    """The actor that made the last step goes on, if it can."""
    at = len(trace.choices) if at is None else at
    return trace.choices[at - 1] if at and trace.choices[at - 1] in options else options[0]


def _options(actors: Sequence[Actor]) -> list[int]:
    able = [actor for actor in actors if actor.state in (State.READY, State.AT_GATE)]
    if fresh := [actor.number for actor in able if not actor.has_to_wait]:
        return fresh
    is_alone = all(actor.state is not State.BLOCKED for actor in actors)
    return [actor.number for actor in able] if is_alone else []


def _short(sql: str) -> str:
    words = " ".join(sql.split())
    return words[:70]


class Prepared:
    """A prepared statement of an actor. Each use of it is a step."""

    def __init__(self, actor: Actor, sql: str, statement: Any) -> None:
        self._actor, self._sql, self._statement = actor, sql, statement

    async def fetch(self, *values: Any) -> Any:
        return await self._actor.step(self._sql, lambda: self._statement.fetch(*values))
