"""Cancels tasks; with a bound for tasks that another transaction holds.

A cancel waits for the lock of its row. A task that completes itself holds that lock until its transaction ends, which
may take as long as user code likes. An operator wants to know that, and wants the other tasks cancelled meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from horsies._checks import Checks
from horsies._pg.locks import holder
from horsies._text import plural
from horsies.errors import BrokerError
from horsies.operate.filters import id_list
from horsies.operate.session import Fetch, OperatorSession, SlowAnswer, is_denied
from horsies.status import CancelResult, TaskStatus

WAIT_S: Final = 10.0
"""So long a bounded cancel waits for tasks that another transaction holds."""
_PATIENCE_MS: Final = 1_000
"""A statement that takes longer waits for a lock, most probably."""
_LOOK_S: Final = 0.25
_ROUNDS: Final = 5
"""A task can change between the two statements of a cancel (another operator retries it), so each round tries again."""

Results = dict[str, CancelResult]
Ask = Callable[..., Any]


class Cancelling:
    def __init__(self, session: OperatorSession) -> None:
        self._session = session

    async def cancel(self, task_ids: Iterable[str]) -> Results:
        """Cancel tasks. BrokerError for those that another transaction holds all the time; the others are cancelled."""
        done, held = await self.cancel_within(task_ids, WAIT_S, lambda _: None)
        if held:
            first = next(iter(held))
            others = f"; {plural(len(held) - 1, 'more task')} likewise" if len(held) > 1 else ""
            raise BrokerError(f"not cancelled: task {first}{others}: {held[first]}")
        return done

    async def cancel_within(
        self, task_ids: Iterable[str], wait_s: float, on_wait: Callable[[str], None]
    ) -> tuple[Results, dict[str, str]]:
        """Cancel tasks, and wait for those that another transaction holds for `wait_s` at most. Returns the results,
        and the tasks that are still held, each with the reason. `on_wait` is called once, with what it waits for."""
        checks = Checks("cancel")
        checks.seconds("wait_s", wait_s, 0, 10**9)
        checks.finish()
        left, until = set(id_list(task_ids)), time.monotonic() + wait_s
        done: Results = {}
        try:
            return await self._cancel_soon(left), {}
        except SlowAnswer:
            pass
        is_told = False
        while left:
            holders = await self._holders(left)
            if free := left - holders.keys():
                try:
                    done |= await self._cancel_soon(free)
                    left -= done.keys()
                except SlowAnswer:
                    pass  # the lock is new, or of a kind that does not name its holder
            if not left or time.monotonic() >= until:
                return done, {one: _reason(holders.get(one)) for one in left}
            if not is_told:
                is_told = True
                first = next(iter(holders.values()), None)
                on_wait(f"waiting up to {wait_s:g} s for {plural(len(left), 'task')}: {_reason(first)}")
            await asyncio.sleep(_LOOK_S)
        return done, {}

    async def _cancel_soon(self, ids: Collection[str]) -> Results:
        async def ask(name: str, *values: Any) -> Any:
            def action(fetch: Fetch) -> Any:
                return fetch(name, *values)

            return await self._session.bounded(action, _PATIENCE_MS)

        return await _cancel(ask, ids)

    async def _holders(self, ids: Collection[str]) -> dict[str, Mapping[str, Any]]:
        """The sessions that hold these tasks, by task id; none for a role that may not see that."""
        try:
            rows = await self._session.read(lambda fetch: fetch("task_holders", sorted(ids)))
        except BrokerError as error:
            if not is_denied(error):
                raise
            return {}
        return {row["id"]: row for row in rows}


async def _cancel(ask: Ask, ids: Iterable[str]) -> Results:
    left = set(ids)
    done: Results = {}
    for _ in range(_ROUNDS):
        rows = await ask("cancel_tasks", sorted(left))
        done.update({row["id"]: CancelResult(row["outcome"]) for row in rows})
        left.difference_update(done)
        if not left:
            break
        rows = await ask("read_ended_batch", sorted(left))
        found = {row["id"]: TaskStatus(row["status"]) for row in rows}
        for task_id in list(left):
            status = found.get(task_id)
            if status is None or status.is_terminal:
                done[task_id] = CancelResult.NOT_FOUND if status is None else CancelResult.ALREADY_ENDED
                left.discard(task_id)
    for task_id in left:  # it changed in every round; its worker may find the mark of an earlier one
        done[task_id] = CancelResult.REQUESTED
    return done


def _reason(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "another session has locked it; try again when that transaction has ended"
    age = row["age"]
    since = "" if age is None else f", open for {age.total_seconds():.0f} s"
    return (
        f"{holder(row)} holds it in a transaction{since}. A task that completes itself does that until its transaction "
        "commits, which ends the task; after a rollback it can be cancelled"
    )
