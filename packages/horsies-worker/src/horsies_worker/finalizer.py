"""Writes ends and hand-backs, in self-clocking batches: one statement in flight, and whatever gathers meanwhile goes
into the next. Never gives up while the worker lives; a result is dropped only when its fence is gone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import TypeAlias

from horsies._pg.backoff import Backoff
from horsies._pg.transient import is_transient
from horsies.codec import encode_error
from horsies.config import ResilienceConfig
from horsies.errors import OperationalErrorCode
from horsies.result import TaskError
from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.child.logs import about
from horsies_worker.decide import NO_RETRY, Transition
from horsies_worker.queries import Queries
from horsies_worker.service import tell_trouble
from horsies_worker.session import Session
from horsies_worker.syncpoints import reached

_log = logging.getLogger("horsies.worker")

Key: TypeAlias = tuple[str, int]
"""(task id, claim generation)"""

MAX_ROWS = 300
MAX_BYTES = 1_000_000
"""Ten results of 8 MB took 1.9 s in one statement; small ones must not wait behind them."""
MIN_LOCK_WAIT_S = 0.005
MAX_LOCK_WAIT_S = 0.5


class _Pending:
    """A transition on its way. `uncertain`: an earlier try may have been committed, its answer was lost. `replaced`:
    the real one could not be stored."""

    __slots__ = ("key", "replaced", "since", "staged", "transition", "uncertain")

    def __init__(self, transition: Transition) -> None:
        self.transition = transition
        self.key: Key = (transition.task_id, transition.generation)
        self.since = time.monotonic()
        self.uncertain = False
        self.staged = False
        self.replaced = False


class Finalizer:
    """`add` ends and `give_back` tasks that never started; `run` writes them."""

    def __init__(
        self,
        session: Session,
        queries: Queries,
        resilience: ResilienceConfig,
        *,
        on_done: Callable[[Sequence[Key]], None],
    ) -> None:
        self._session = session
        self._queries = queries
        self._backoff = Backoff(resilience)
        self._on_done = on_done
        # Two lines, first come first served. An attempt ends once: a second report of it is the first one's twin.
        self._ends: dict[Key, _Pending] = {}
        self._returns: dict[Key, int] = {}
        self._wake = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._settled = 0
        self.written = 0
        self.lost = 0

    @property
    def backlog(self) -> int:
        """Ends that are not in the database yet."""
        return len(self._ends)

    def add(self, transition: Transition) -> None:
        item = _Pending(transition)
        self._ends.setdefault(item.key, item)
        self._idle.clear()
        self._wake.set()

    def give_back(self, tasks: Sequence[Key], *, delay_ms: int = 0) -> None:
        """(id, generation) of tasks whose user code never ran."""
        self._returns |= dict.fromkeys(tasks, delay_ms)
        if tasks:
            self._idle.clear()
            self._wake.set()

    def waiting_longer_than(self, seconds: float) -> list[Transition]:
        """Ends that could not be written for that long and are not staged yet, as many as one statement may carry; the
        upkeep stages them."""
        oldest = time.monotonic() - seconds
        late = (item for item in self._ends.values() if item.since < oldest and not item.staged)
        return [item.transition for item in _one_statement(late)]

    def staged(self, task_ids: Collection[str]) -> None:
        """These are marked in the database: one mark is enough."""
        for item in self._ends.values():
            if item.transition.task_id in task_ids:
                item.staged = True

    def unwritten(self) -> list[Transition]:
        return [item.transition for item in self._ends.values()]

    def returning(self) -> set[str]:
        """Ids of the tasks that are on their way back."""
        return {task_id for task_id, _ in self._returns}

    async def drained(self) -> None:
        """Wait until everything is written."""
        await self._idle.wait()

    async def run(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            blocked_s = 0.0
            while self._ends or self._returns:
                try:
                    settled = self._settled
                    if self._ends:
                        await self._write(_one_statement(self._ends.values()))
                    if self._returns:
                        await self._hand_back()
                    self._backoff.reset()
                    if self._settled > settled:
                        blocked_s = 0.0
                    else:
                        # all of these rows are locked by others: come again, sooner for whatever comes meanwhile
                        blocked_s = await self._wait_for_locks(blocked_s)
                except Exception as error:
                    # never let one failed batch end this loop: results are kept and tried again
                    delay = self._backoff.next()
                    tell_trouble("finalize", error, delay)
                    await asyncio.sleep(delay)
            self._idle.set()

    async def _wait_for_locks(self, last_s: float) -> float:
        wait_s = min(MAX_LOCK_WAIT_S, 2 * last_s or MIN_LOCK_WAIT_S)
        self._wake.clear()
        try:
            async with asyncio.timeout(wait_s):
                await self._wake.wait()
        except TimeoutError:
            return wait_s
        return 0.0

    async def _write(self, batch: Sequence[_Pending]) -> None:
        transitions = [item.transition for item in batch]
        await reached("before_finalize")
        try:
            written = await self._session.run(lambda connection: self._queries.finalize_own(connection, transitions))
        except Exception as error:
            if is_data_error(error):
                return await self._isolate(batch, error)
            if is_transient(error):
                for item in batch:
                    item.uncertain = True
            raise
        await reached("after_finalize")
        self.written += len(written)
        # before anything else can fail: what is written must not be taken for lost by the next try
        self._forget([item.key for item in batch if item.transition.task_id in written])
        if missing := [item for item in batch if item.transition.task_id not in written]:
            await self._explain(missing)
        return None

    async def _isolate(self, batch: Sequence[_Pending], error: Exception) -> None:
        """One row that the database cannot take must not hold the others back: split, and replace the culprit."""
        if len(batch) > 1:
            half = len(batch) // 2
            await self._write(batch[:half])
            await self._write(batch[half:])
            return
        (item,) = batch
        task_id, attempt = item.transition.task_id, item.transition.attempt
        if item.replaced:
            # then it is not the result: the row itself takes no end, and would not take the reaper's either
            _log.critical(
                "task %s attempt %d: it cannot be ended, and is left as it is: %s", task_id, attempt, error,
                extra=about(task_id, attempt=attempt),
            )  # fmt: skip
            self.lost += 1
            self._forget([item.key])
            return
        _log.error(
            "task %s attempt %d: its result cannot be stored: %s", task_id, attempt, error,
            extra=about(task_id, attempt=attempt),
        )  # fmt: skip
        item.transition, item.replaced = unstorable(item.transition), True
        await self._write(batch)

    async def _explain(self, missing: Sequence[_Pending]) -> None:
        """Not written: locked by somebody just now, written by a try whose answer was lost, or lost to somebody."""
        keys = [item.key for item in missing]
        held = await self._session.run(lambda connection: self._queries.read_held(connection, keys))
        locked = {key for key in keys if held.get(key[0]) == TaskStatus.RUNNING}
        uncertain = [item.transition for item in missing if item.uncertain and item.key not in locked]
        mine: set[str] = set()
        if uncertain:
            mine = await self._session.run(lambda connection: self._queries.find_written(connection, uncertain))
            # one that never started leaves no attempt to be found by
            mine |= {transition.task_id for transition in uncertain if transition.outcome is None}
        for item in missing:
            if item.key in locked:  # to the end of the line, so that it keeps nobody from being tried
                self._ends[item.key] = self._ends.pop(item.key)
            elif item.transition.task_id not in mine:
                self.lost += 1
                task_id, attempt = item.transition.task_id, item.transition.attempt
                _log.warning(
                    "task %s attempt %d: CLAIM_LOST, its result is dropped", task_id, attempt,
                    extra=about(task_id, attempt=attempt),
                )  # fmt: skip
        self._forget([key for key in keys if key not in locked])

    def _forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            del self._ends[key]
        self._settle(keys)

    async def _hand_back(self) -> None:
        delay = next(iter(self._returns.values()))
        keys = [key for key, delay_ms in self._returns.items() if delay_ms == delay][:MAX_ROWS]
        await reached("before_hand_back")
        moved = await self._session.run(lambda connection: self._queries.hand_back(connection, keys, delay))
        missing = [key for key in keys if key[0] not in moved]
        locked: Collection[str] = ()
        if missing:
            # whatever is not ours any more needs no word: it never ran here
            locked = await self._session.run(lambda connection: self._queries.read_held(connection, missing))
        done = [key for key in keys if key[0] not in locked]
        for key in done:
            del self._returns[key]
        self._settle(done)

    def _settle(self, keys: Sequence[Key]) -> None:
        self._settled += len(keys)
        if keys:
            self._on_done(keys)


def _one_statement(items: Iterable[_Pending]) -> list[_Pending]:
    """The first ones, as many as fit, and of one kind: those that are ok have a leaner statement than the others."""
    batch: list[_Pending] = []
    size = 0
    for item in items:
        if batch and item.transition.is_ok is not batch[0].transition.is_ok:
            continue
        size += item.transition.size
        if batch and (len(batch) >= MAX_ROWS or size > MAX_BYTES):
            break
        batch.append(item)
    return batch


def unstorable(transition: Transition) -> Transition:
    """The end of a task whose real one cannot be stored: a constant text that always can."""
    message = "the database could not store the result"
    return Transition(
        task_id=transition.task_id,
        generation=transition.generation,
        attempt=transition.attempt,
        status=TaskStatus.FAILED,
        result=encode_error(TaskError(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)),
        error_code=OperationalErrorCode.WORKER_SERIALIZATION_ERROR.value,
        error_message=message,
        failed_reason=None,
        outcome=AttemptOutcome.FAILED,
        retry_delay_ms=NO_RETRY,
        budget=transition.budget,
        started=transition.started,
        finished=transition.finished,
        pid=transition.pid,
        process_name=transition.process_name,
    )


def is_data_error(error: Exception) -> bool:
    """A value that does not fit. Lone surrogates are refused by the driver itself, under the same SQLSTATE."""
    sqlstate = getattr(error, "sqlstate", None)
    return isinstance(sqlstate, str) and sqlstate[:2] in ("22", "23", "54")
