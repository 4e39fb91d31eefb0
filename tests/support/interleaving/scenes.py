"""Which programs meet, on tasks in which state; and how one such scene is played in all orders."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from typing import Any, Final

import asyncpg

from horsies.registry import Registry
from tests.support import invariants
from tests.support.interleaving.plays import Play, app
from tests.support.interleaving.programs import PROGRAMS
from tests.support.interleaving.schedule import Actor, Schedules, Trace, explore
from tests.support.postgres import Database

BATCH: Final = 200
"""So many schedules are judged by one look at the invariants."""

# Programs that make sense for tasks in a state. Every pair of them meets, also in the middle of statements; every three
# of them meet between statements.
_CAST: Final[Mapping[str, Sequence[str]]] = {
    "PENDING": ("claim", "claim3", "claim_retry", "claim_snooze", "claim_next", "claim_capped", "prefetch", "cancel",
                "cancel_undone", "pause", "resume", "hold"),
    "OVERDUE": ("claim", "claim_next", "prefetch", "reap", "cancel", "retry"),
    "CLAIMED": ("start", "claim", "cancel", "cancel_tx", "requeue", "hand_back", "beat", "dead", "hold"),
    "CLAIMED_STALE": ("start", "claim", "prefetch", "cancel_tx", "requeue_stale", "reap", "dead"),
    "RUNNING": ("finish", "finish_batch", "cancel", "cancel_tx", "stage", "dead", "beat", "hold", "prune"),
    "RUNNING_STALE": ("finish", "finish_retry", "complete", "claim", "claim_retry", "reap", "dead", "fail_stale",
                      "cancel_tx", "stage", "retry", "beat", "hand_back"),
    "STAGED_STALE": ("finish", "claim", "reap", "dead", "fail_stale", "cancel", "complete"),
    "FAILED": ("retry", "retry2", "claim", "claim_error", "prune", "purge", "cancel", "hold"),
}  # fmt: skip
# Ends of the first owner: only one of them can happen.
_ENDS: Final = ("finish", "finish_batch", "finish_retry", "finish_error", "finish_snooze", "finish_crash", "complete",
                "complete_undone", "hand_back")  # fmt: skip


@dataclass(frozen=True)
class Scene:
    state: str
    programs: tuple[str, ...]
    tasks: int = 1
    gated: bool = True
    """Statements are stopped between their snapshot and their locks as well."""
    preemptions: int | None = None
    mutants: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)

    def __str__(self) -> str:
        kind = "" if self.gated else " between statements"
        return f"{self.tasks if self.tasks > 1 else ''}{self.state}: {' | '.join(self.programs)}{kind}"


SUITE: Final = (
    # pairs, in the middle of statements too
    Scene("PENDING", ("claim", "claim_next")),
    Scene("PENDING", ("claim_capped", "claim_capped3"), tasks=2, preemptions=2),
    Scene("PENDING", ("prefetch", "cancel_tx")),
    Scene("PENDING", ("claim", "pause")),
    Scene("CLAIMED", ("start", "cancel_tx")),
    Scene("CLAIMED_STALE", ("start", "reap"), preemptions=2),
    Scene("RUNNING", ("finish", "cancel_tx")),
    Scene("RUNNING", ("finish", "stage")),
    Scene("RUNNING_STALE", ("finish", "reap"), preemptions=2),
    Scene("RUNNING_STALE", ("complete", "reap"), preemptions=2),
    Scene("RUNNING_STALE", ("complete", "fail_stale")),
    Scene("RUNNING_STALE", ("finish_retry", "dead"), preemptions=2),
    Scene("STAGED_STALE", ("finish", "reap"), preemptions=2),
    Scene("FAILED", ("retry", "prune")),
    Scene("FAILED", ("retry", "claim_error")),
    # three
    Scene("RUNNING_STALE", ("finish", "fail_stale", "claim"), gated=False),
    Scene("RUNNING_STALE", ("finish_retry", "cancel_tx", "claim"), gated=False),
    Scene("RUNNING_STALE", ("complete_undone", "cancel", "reap"), gated=False, preemptions=2),
    Scene("RUNNING_STALE", ("finish", "dead", "claim"), gated=False, preemptions=2),
    Scene("CLAIMED_STALE", ("start", "requeue_stale", "claim"), gated=False),
    Scene("CLAIMED_STALE", ("start", "dead", "claim"), gated=False, preemptions=2),
    Scene("PENDING", ("claim_retry", "claim3", "cancel"), gated=False, preemptions=2),
    Scene("FAILED", ("retry", "claim_error", "retry2"), gated=False, preemptions=2),
    Scene("FAILED", ("hold", "retry", "retry_last", "claim_error"), tasks=2, gated=False, preemptions=2),
)


def everything() -> Iterator[Scene]:
    """All pairs in the middle of statements, all threes between them, and two tasks in each pair that locks rows."""
    for state, cast in _CAST.items():
        for pair in combinations(cast, 2):
            if _fits(state, pair):
                yield Scene(state, pair, preemptions=4)
                yield Scene(state, pair, tasks=2, gated=False)
        for three in combinations(cast, 3):
            if _fits(state, three):
                yield Scene(state, three, gated=False, preemptions=2)


def _fits(state: str, programs: Sequence[str]) -> bool:
    ends = [one for one in programs if one in _ENDS or one == "start"]
    return len(ends) <= 1


@dataclass
class Played:
    """A schedule that has ended."""

    trace: Trace
    play: Play


class Stage:
    """Plays scenes on one database."""

    def __init__(self, db: Database, schedules: Schedules, judge: Any) -> None:
        self._db = db
        self._schedules = schedules
        self._judge = judge
        self._registry: Registry = app().registry
        self.played = 0

    @classmethod
    @asynccontextmanager
    async def on(cls, db: Database) -> AsyncIterator["Stage"]:
        judge = await asyncpg.connect(db.url)
        # a schedule has to go the same way each time that it is played
        await judge.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = false)")
        try:
            async with Schedules.on(db, 4) as schedules:
                yield cls(db, schedules, judge)
        finally:
            await judge.close()

    async def play(self, scene: Scene) -> int:
        """Play every order; raises AssertionError with the first one that ends badly. Returns how many there were."""
        batch: list[Played] = []
        count = 0
        latest: list[Play] = []

        before = Trace()

        async def once(choices: Sequence[int]) -> Trace:
            nonlocal before
            try:
                before, play = await self.once(scene, choices)
            except AssertionError as error:
                raise AssertionError(f"{error}\nThe schedule before it: {before.name} {before.steps}") from error
            latest[:] = [play]
            return before

        await once(())  # the statements are planned now, so that no gate stops the planner
        async for trace in explore(once, preemptions=scene.preemptions):
            batch.append(Played(trace, latest[0]))
            count += 1
            if len(batch) == BATCH:
                self._judge_all(scene, batch)
                batch = []
        self._judge_all(scene, batch)
        self.played += count
        return count

    async def once(self, scene: Scene, choices: Sequence[int]) -> tuple[Trace, Play]:
        """Play one order, and check what its actors saw."""
        play = Play(scene.state, self._registry, scene.tasks, scene.mutants)
        await play.set_up(self._judge)
        programs: list[Callable[[Actor], Awaitable[None]]] = [partial(PROGRAMS[name], play) for name in scene.programs]
        try:
            trace = await self._schedules.run(programs, choices, gated=scene.gated)
            await play.settle(self._judge)
        except Exception as error:
            raise AssertionError(f"{scene}, schedule {_text(choices)}: {type(error).__name__}: {error}") from error
        if problems := await play.judge(self._judge):
            raise AssertionError(_story(scene, trace, problems))
        return trace, play

    def _judge_all(self, scene: Scene, batch: Sequence[Played]) -> None:
        for violation in invariants.check(self._db):
            for one in batch:
                if violation.id in one.play.ids:
                    raise AssertionError(_story(scene, one.trace, [str(violation)]))
            raise AssertionError(f"{scene}: {violation}")


def _text(choices: Sequence[int]) -> str:
    return "".join(map(str, choices)) or "(first)"


def _story(scene: Scene, trace: Trace, problems: Sequence[str]) -> str:
    steps = "\n  ".join(trace.steps)
    return f"{scene}, schedule {trace.name}:\n  {steps}\n" + "\n".join(problems)
