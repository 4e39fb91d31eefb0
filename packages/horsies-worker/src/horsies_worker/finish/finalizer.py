"""Writes ended attempts and returns unstarted tasks, in batches: while one statement runs, the next batch gathers.

It never gives up while the worker lives. It drops a result only when its claim is lost, or when the database refuses
even the error that replaces it. A row that a trigger of the application refuses waits apart, and the others go on.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import islice
from typing import TypeAlias

from horsies._pg.locks import holder
from horsies._pg.refusals import worded
from horsies._pg.transient import is_refusal, is_transient
from horsies.config import ResilienceConfig
from horsies.errors import OperationalErrorCode
from horsies.events import ResultDropped, TaskQuarantined, TasksReturned
from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.child.outcome import error_outcome
from horsies_worker.database.session import Session
from horsies_worker.database.split_batch import is_data_error, is_row_error, write_or_split
from horsies_worker.database.transition import Transition
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.finish.decide import NO_RETRY
from horsies_worker.finish.recent_ends import Key, RecentEnds
from horsies_worker.output.log_context import about, log
from horsies_worker.service import BacklogService
from horsies_worker.syncpoints import reached

MAX_ROWS = 300
MAX_BYTES = 1_000_000
"""Ten results of 8 MB took 1.9 s in one statement; small ones must not wait behind them."""
STAGE_AFTER_S = 2.0
MIN_HOLD_S = 1.0
MAX_HOLD_S = 60.0
MIN_LOCK_WAIT_S = 0.005
MAX_LOCK_WAIT_S = 0.5
OPEN_AFTER_S = 5.0
"""A transaction of `complete()` that is still open so long after its task has returned is worth a warning."""
OPEN_LIMIT_S = 60.0
"""After so long the worker ends the session of that transaction. The task's code has returned, so it will not commit
any more, and as long as the transaction is open the task stays RUNNING."""


class Settled(StrEnum):
    """What became of an end that only the row could decide."""

    WRITTEN = "written"
    QUARANTINED = "quarantined"
    """It was the crash that reached the limit of the task's policy: the task has ended."""
    COMPLETED = "completed"
    """The task's own transaction has committed its end."""
    LOST = "lost"


OnSettled: TypeAlias = Callable[[Settled], None]


class Finalizer(BacklogService):
    """`add` takes ended attempts, `give_back` tasks that never started; `run` writes both."""

    name = "finalize"

    def __init__(
        self,
        session: Session,
        resilience: ResilienceConfig,
        bus: EventBus = SILENT,
        *,
        on_done: Callable[[Sequence[Key]], None],
    ) -> None:
        super().__init__(session, resilience)
        self._bus = bus
        self._on_done = on_done
        self._ends: dict[Key, Transition] = {}
        """Ended attempts that are not written yet, oldest first."""
        self._uncertain: set[Key] = set()
        """Those that an earlier statement may have written: its answer was lost."""
        self._staged: set[Key] = set()
        self._replaced: set[Key] = set()
        """Those whose real result the database refused."""
        self._held: dict[Key, tuple[float, float]] = {}
        """Those whose rows take no end for now: when to try again, and after how long once more."""
        self._on_settled: dict[Key, OnSettled] = {}
        """What is called when these are written, or are found to be lost."""
        self._may_be_completed: set[Key] = set()
        """Those whose tasks have called `complete()`: its transaction may have committed, or may be open."""
        self._open: dict[Key, float] = {}
        """Those whose transaction is still open, each with the age at which to look at it next."""
        self._returns: dict[Key, None] = {}
        self.recent = RecentEnds()
        self._settled = 0
        self._blocked_s = 0.0
        self.written = 0
        self.lost = 0

    @property
    def backlog(self) -> int:
        """Ended attempts that are not in the database yet."""
        return len(self._ends)

    def add(
        self, transition: Transition, on_settled: OnSettled | None = None, *, may_be_completed: bool = False
    ) -> None:
        """Write this end. Ignores a duplicate report of the same attempt. `on_settled` is called with what happened.
        `may_be_completed`: write it only if the task has not completed itself."""
        key = (transition.task_id, transition.generation)
        self._ends.setdefault(key, transition)
        if on_settled is not None:
            self._on_settled.setdefault(key, on_settled)
        if may_be_completed:
            self._may_be_completed.add(key)
        self.backlog_added()

    def write_again(self, end: Transition, on_settled: OnSettled) -> None:
        """Write an end of `recent` that the database has forgotten. If it has it after all, that counts as written."""
        key = (end.task_id, end.generation)
        if key not in self._ends:
            self._uncertain.add(key)
            self.add(end, on_settled)

    def give_back(self, tasks: Sequence[Key]) -> None:
        """Return tasks whose user code never ran to the queue."""
        if tasks:
            self._returns |= dict.fromkeys(tasks)
            self._bus.emit(TasksReturned(len(tasks)))
            self.backlog_added()

    async def stage_late(self, session: Session, after_s: float = STAGE_AFTER_S) -> None:
        """Keep results that could not be written for so long in their tasks' rows, for the reaper if this worker dies;
        as many as fit one statement."""
        oldest = time.monotonic() - after_s
        late = _one_statement(
            end for key, end in self._ends.items()
            if end.outcome.finished_mono < oldest and key not in self._staged and key not in self._held
        )  # fmt: skip
        if late:
            await reached("before_stage")
            staged = await session.run(lambda connection: self._queries.stage(connection, late))
            self._staged.update(key for key in self._ends if key[0] in staged)
            await reached("after_stage")

    def unwritten(self) -> list[Transition]:
        return list(self._ends.values())

    def returning(self) -> set[str]:
        """Return the ids of the tasks that `give_back` took and that are not written yet."""
        return {task_id for task_id, _ in self._returns}

    def has_backlog(self) -> bool:
        return bool(self._ends or self._returns)

    async def run_once(self) -> None:
        settled = self._settled
        if self._held:
            await self._write_held()
        elif self._ends:
            await self._write(_one_statement(self._ends.values()))
        if self._returns:
            await self._hand_back()
        self._blocked_s = 0.0 if self._settled > settled else await self._wait_for_locks(self._blocked_s)

    async def _wait_for_locks(self, last_s: float) -> float:
        """Other sessions have locked all of these rows: wait before the next try, but not when new work arrives."""
        wait_s = min(MAX_LOCK_WAIT_S, 2 * last_s or MIN_LOCK_WAIT_S)
        self._wake.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return wait_s
        return 0.0

    async def _write(self, batch: Sequence[Transition]) -> None:
        await write_or_split(batch, self._write_once, self._refused, splits=is_row_error)

    async def _write_held(self) -> None:
        """Write what is not held, then one that is due again, by itself."""
        if free := _one_statement(end for key, end in self._ends.items() if key not in self._held):
            await self._write(free)
        now = time.monotonic()
        due = next((key for key, (again, _) in self._held.items() if again <= now), None)
        if due is not None:
            await self._write([self._ends[due]])

    def _refused(self, end: Transition, error: Exception) -> None:
        """The database refuses this end, also alone."""
        if is_data_error(error):
            self._replace(end, error)
        else:
            self._hold(end, error)

    def _hold(self, end: Transition, error: Exception) -> None:
        """Its value is not at fault, so it is kept: the trigger or the damage that refuses it may be mended."""
        key = (end.task_id, end.generation)
        _, hold_s = self._held.pop(key, (0.0, MIN_HOLD_S))  # behind the others that are held
        self._held[key] = (time.monotonic() + hold_s, min(2 * hold_s, MAX_HOLD_S))
        log.error(
            "task %s attempt %d: the database refuses its end: %s; trying again in %.0f s",
            end.task_id, end.attempt, worded(error), hold_s, extra=about(end.task_id, attempt=end.attempt),
        )  # fmt: skip

    async def _write_once(self, batch: Sequence[Transition]) -> None:
        await reached("before_finalize")
        try:
            written = await self._session.run(lambda connection: self._queries.finalize_own(connection, batch))
        except Exception as error:
            if is_transient(error) and not is_data_error(error):
                self._uncertain.update(_keys(batch))
            raise
        await reached("after_finalize")
        self.written += len(written)
        # Before the next statement can fail: the next try must not take written results for lost.
        ended = [end for end in batch if end.task_id in written]
        done = _keys(ended)
        self._tell([key for key in done if key[0] in written.quarantined], Settled.QUARANTINED)
        self._tell(done, Settled.WRITTEN)
        for event in quarantined(batch, written.quarantined):
            self._bus.emit(event)
        self.recent.keep(ended)
        self._forget(done)
        if missing := [end for end in batch if end.task_id not in written]:
            await self._explain(missing)

    def _replace(self, end: Transition, error: Exception) -> None:
        """The database refused this result: write an error in its place with the next statement."""
        key = (end.task_id, end.generation)
        extra = about(end.task_id, attempt=end.attempt)
        if key in self._replaced:
            # The result is not at fault: the row itself accepts no end, not even one from the reaper.
            log.critical(
                "task %s attempt %d cannot be ended, and stays RUNNING: %s",
                end.task_id,
                end.attempt,
                worded(error),
                extra=extra,
            )
            self.lost += 1
            self.recent.was_stopped(key)  # it has run: the row must not be taken for one that never started
            self._bus.emit(ResultDropped(end.task_id, end.attempt, "refused"))
            self._tell([key], Settled.LOST)
            self._forget([key])
            return
        told = worded(error)
        log.error("task %s attempt %d: its result cannot be stored: %s", end.task_id, end.attempt, told, extra=extra)
        self._ends[key] = _unstorable(end)
        self._replaced.add(key)
        self._settled += 1

    async def _explain(self, missing: Sequence[Transition]) -> None:
        """Find out why these were not written: another session has locked the row, an earlier statement whose answer
        was lost has written it, the task has completed itself, or the claim is lost."""
        await reached("before_explain")
        keys = _keys(missing)
        owned = await self._session.run(lambda connection: self._queries.read_owned(connection, keys))
        locked = {key for key in keys if owned.get(key[0]) == TaskStatus.RUNNING}
        doubtful = self._uncertain - locked
        uncertain = [end for key, end in zip(keys, missing, strict=True) if key in doubtful]
        mine: set[str] = set()
        if uncertain:
            mine = await self._session.run(lambda connection: self._queries.find_written(connection, uncertain))
            # An attempt that never started leaves no row to find it by.
            mine |= {end.task_id for end in uncertain if end.recorded is None}
        completed = await self._find_completed(
            [end for key, end in zip(keys, missing, strict=True) if key not in locked]
        )
        lost = [key for key in keys if key not in locked | completed and key[0] not in mine]
        if lost:
            sure = await self._session.run(lambda connection: self._queries.confirm_lost(connection, lost))
            locked |= {key for key in lost if key[0] not in sure}
        for key, end in zip(keys, missing, strict=True):
            if key in locked:  # to the end of the line, behind the rows that can be written
                self._ends[key] = self._ends.pop(key)
                if key in self._may_be_completed:
                    await self._look_at_open(key, end)
            elif key in completed:
                self.recent.ran(key)
                self._tell([key], Settled.COMPLETED)
            elif end.task_id in mine:
                self.recent.keep([end])
                self._tell([key], Settled.WRITTEN)
            else:
                if key in self._may_be_completed:
                    self.recent.ran(key)
                else:
                    self.recent.keep([end])
                self._tell([key], Settled.LOST)
                self.lost += 1
                self._bus.emit(ResultDropped(end.task_id, end.attempt, "claim_lost"))
                log.warning(
                    "task %s attempt %d: CLAIM_LOST, its result is dropped", end.task_id, end.attempt,
                    extra=about(end.task_id, attempt=end.attempt),
                )  # fmt: skip
        self._forget([key for key in keys if key not in locked])

    async def _find_completed(self, ends: Sequence[Transition]) -> set[Key]:
        """Return those whose tasks have completed themselves."""
        asked = [end for end in ends if (end.task_id, end.generation) in self._may_be_completed]
        if not asked:
            return set()
        attempts = [(end.task_id, end.attempt) for end in asked]
        found = await self._session.run(lambda connection: self._queries.find_completed(connection, attempts))
        if found:
            await reached("completed_found")
        return {(end.task_id, end.generation) for end in asked if end.task_id in found}

    async def _look_at_open(self, key: Key, end: Transition) -> None:
        """The transaction in which this task called `complete()` is open, although the task has returned."""
        age = time.monotonic() - end.outcome.finished_mono
        if age < self._open.get(key, OPEN_AFTER_S):
            return
        is_over = age >= OPEN_LIMIT_S
        self._open[key] = age + OPEN_LIMIT_S if is_over else OPEN_LIMIT_S
        found = await self._session.run(lambda connection: self._queries.task_holder(connection, end.task_id))
        where = "" if found is None else f" in {holder(found)}"
        if is_over:
            what = await self._end_open(end.task_id, age)
        else:
            what = (
                f"its end waits for that, for {OPEN_LIMIT_S:.0f} s at most; commit, roll back or close the connection "
                "before the task returns"
            )
        log.warning(
            "task %s attempt %d has returned %.0f s ago, and the transaction in which it called complete() is still "
            "open%s: %s", end.task_id, end.attempt, age, where, what, extra=about(end.task_id, attempt=end.attempt),
        )  # fmt: skip

    async def _end_open(self, task_id: str, age: float) -> str:
        """End the session that has held this row since before the task returned; what became of it."""
        try:
            pid = await self._session.run(lambda connection: self._queries.end_holder(connection, task_id, age))
        except Exception as error:
            if not is_refusal(error):
                raise
            return "this role may not end it; pg_terminate_backend() does, or a restart of this worker"
        return "its end waits for that" if pid is None else f"ended session {pid}, which rolls it back"

    def _tell(self, keys: Iterable[Key], settled: Settled) -> None:
        if self._on_settled:
            for key in keys:
                if (tell := self._on_settled.pop(key, None)) is not None:
                    tell(settled)

    def _forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del self._ends[key]
        for marks in (self._uncertain, self._staged, self._replaced, self._may_be_completed):
            if marks:  # nearly always empty, and the update looks at every key
                marks.difference_update(keys)
        for places in (self._open, self._held):
            for key in keys if places else ():
                places.pop(key, None)
        self._settle(keys)

    async def _hand_back(self) -> None:
        keys = list(islice(self._returns, MAX_ROWS))
        await reached("before_hand_back")
        moved = await self._session.run(lambda connection: self._queries.hand_back(connection, keys))
        missing = [key for key in keys if key[0] not in moved]
        locked: Collection[str] = ()
        if missing:
            # Tasks that this worker no longer owns are done: they never ran here.
            locked = await self._session.run(lambda connection: self._queries.read_owned(connection, missing))
        done = [key for key in keys if key[0] not in locked]
        for key in done:
            del self._returns[key]
        self._settle(done)

    def _settle(self, keys: Sequence[Key]) -> None:
        self._settled += len(keys)
        if keys:
            self._on_done(keys)


def quarantined(ends: Iterable[Transition], ids: Collection[str]) -> list[TaskQuarantined]:
    """The events of the tasks among these that crashed as often as their policy allows."""
    return [
        TaskQuarantined(
            end.task_id, end.attempt, end.crash.limit, end.outcome.failed_reason or end.outcome.error_message or ""
        )
        for end in (ends if ids else ())
        if end.crash is not None and end.task_id in ids
    ]  # fmt: skip


def _keys(ends: Iterable[Transition]) -> list[Key]:
    return [(end.task_id, end.generation) for end in ends]


def _one_statement(ends: Iterable[Transition]) -> list[Transition]:
    """Return the first ends, as many as fit, and of one kind: ok results have a leaner statement."""
    batch: list[Transition] = []
    size = 0
    for end in ends:
        if batch and end.is_ok is not batch[0].is_ok:
            continue
        size += end.size
        if batch and (len(batch) >= MAX_ROWS or size > MAX_BYTES):
            break
        batch.append(end)
    return batch


def _unstorable(end: Transition) -> Transition:
    """Return the end of a task whose result the database refuses: a constant text that it can store."""
    outcome = error_outcome(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, "the database could not store the result")
    outcome.finished_mono = end.outcome.finished_mono
    outcome.pid, outcome.process_name = end.outcome.pid, end.outcome.process_name
    return replace(
        end, status=TaskStatus.FAILED, outcome=outcome, recorded=AttemptOutcome.FAILED, retry_delay_ms=NO_RETRY,
        drops_value=False,
    )  # fmt: skip
