"""Retry, cancel and purge: by ids or by filter, with a dry run, a question before many, and a word on what was left.

Every statement is guarded by the state it expects. What is named or listed here may have moved by then; it is left
alone and told, never forced. A retry by filter takes only what had ended before it was counted: what somebody retries
while the question stands, and what fails then, is not what was asked about.
"""

import argparse
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Final, Protocol

from horsies._operations import COUNT_BOUND, SlowAnswer
from horsies.broker import PostgresBroker
from horsies.commands._common import OK, PROBLEMS, Desk, Refused, confirm
from horsies.commands._print import complain, plural, say, say_json
from horsies.commands._select import filter_of, narrowed
from horsies.filters import LIVE_STATES, RETRYABLE_STATES, TaskCursor, TaskFilter
from horsies.handle import CancelResult
from horsies.info import RetryResult, TaskState
from horsies.status import TASK_TERMINAL_STATES, TaskStatus

BATCH: Final = 500
FIRST: Final = 10
"""Ids that a dry run names, and refusals that are told one by one."""

Left = dict[str, str]
"""Ids that were not touched, and why."""


class Act(Protocol):
    """One way to act on tasks."""

    verb: str
    past: str
    states: frozenset[TaskStatus]

    @property
    def note(self) -> str:
        """What else there is to say of what was done."""
        ...

    async def count(self, broker: PostgresBroker, filter: TaskFilter) -> int:
        """How many of the filter it would touch, up to the bound."""
        ...

    async def first(self, broker: PostgresBroker, filter: TaskFilter, limit: int) -> Sequence[str]:
        """The first ids of the filter that it would touch."""
        ...

    def why_not(self, state: TaskState) -> str | None:
        """Why a task in this state would be left alone."""
        ...

    async def on_ids(self, broker: PostgresBroker, ids: Sequence[str]) -> tuple[int, Left]: ...

    def on_filter(
        self, broker: PostgresBroker, filter: TaskFilter, limit: int | None
    ) -> AsyncGenerator[tuple[int, Left]]: ...


async def act(desk: Desk, options: argparse.Namespace, how: Act) -> int:
    """Carry out a verb of `horsies tasks`."""
    broker, filter = desk.broker, filter_of(options)
    ids = list(dict.fromkeys(options.ids))
    if not ids and filter.is_empty:
        raise Refused(f"name the tasks to {how.verb} by id, or by a filter such as --status or --queue")
    if ids and filter.is_empty:
        ids = ids[: options.limit]
        return await (_dry_ids if options.dry_run else _do_ids)(broker, options, how, ids)
    narrow = narrowed(filter, how.states, how.past)
    if ids:
        narrow = replace(narrow, ids=ids)
    if options.dry_run:
        return await _dry_filter(broker, options, how, narrow)
    return await _do_filter(broker, options, how, narrow)


# -- by ids --------------------------------------------------------------------------------------


async def _dry_ids(broker: PostgresBroker, options: argparse.Namespace, how: Act, ids: list[str]) -> int:
    states = await broker.get_task_states(ids)
    left = {task_id: why for task_id in ids if (why := _why_not(how, states.get(task_id))) is not None}
    would = [task_id for task_id in ids if task_id not in left]
    _tell(options, how, matched=len(would), done=0, ids=would, left=left)
    return PROBLEMS if left else OK


async def _do_ids(broker: PostgresBroker, options: argparse.Namespace, how: Act, ids: list[str]) -> int:
    done, left = 0, Left()
    for at in range(0, len(ids), BATCH):
        count, refused = await how.on_ids(broker, ids[at : at + BATCH])
        done += count
        left.update(refused)
    _tell(options, how, matched=len(ids), done=done, ids=[one for one in ids if one not in left], left=left)
    return PROBLEMS if left else OK


def _why_not(how: Act, state: TaskState | None) -> str | None:
    return "there is no such task" if state is None else how.why_not(state)


# -- by filter -----------------------------------------------------------------------------------


async def _dry_filter(broker: PostgresBroker, options: argparse.Namespace, how: Act, filter: TaskFilter) -> int:
    count = await how.count(broker, filter)
    first = await how.first(broker, filter, min(FIRST, options.limit or FIRST)) if count else ()
    matched = min(count, options.limit or count)
    _tell(options, how, matched=matched, done=0, ids=first, left={}, at_least=_is_bound(count, options))
    return OK if matched else PROBLEMS


async def _do_filter(broker: PostgresBroker, options: argparse.Namespace, how: Act, filter: TaskFilter) -> int:
    try:
        count = await how.count(broker, filter)
    except SlowAnswer:
        if not options.yes:  # there would be nothing to ask about
            raise
        count = options.limit or COUNT_BOUND
    matched = min(count, options.limit or count)
    at_least = _is_bound(count, options)
    confirm(how.verb, matched, "task", yes=options.yes, at_least=at_least)
    done, left = 0, Left()
    if count:
        async for some, refused in how.on_filter(broker, filter, options.limit):
            done += some
            left.update(refused)
    _tell(options, how, matched=matched, done=done, ids=[], left=left, at_least=at_least)
    return OK if done else PROBLEMS


def _is_bound(count: int, options: argparse.Namespace) -> bool:
    return count >= COUNT_BOUND and (options.limit is None or options.limit > count)


def _tell(
    options: argparse.Namespace, how: Act, *, matched: int, done: int, ids: Sequence[str], left: Left,
    at_least: bool = False,
) -> None:  # fmt: skip
    if options.json:
        say_json(
            {
                "verb": how.verb, "dry_run": options.dry_run, "matched": matched, "matched_is_lower_bound": at_least,
                "done": done, "ids": list(ids), "not_done": [{"id": key, "why": why} for key, why in left.items()],
            }
        )  # fmt: skip
        return
    if options.dry_run:
        say(f"would {how.verb} {'at least ' if at_least else ''}{plural(matched, 'task')}")
        for task_id in ids[:FIRST]:
            say(f"  {task_id}")
        if matched > min(len(ids), FIRST):
            say("  ...")
    elif not matched:
        say("no task matches")
    else:
        say(f"{how.past} {plural(done, 'task')}{how.note}")
    for task_id, why in list(left.items())[:FIRST]:
        complain(f"task {task_id} {'would not be' if options.dry_run else 'was not'} {how.past}: {why}")
    if len(left) > FIRST:
        complain(f"and {len(left) - FIRST:,} more")


# -- the verbs -----------------------------------------------------------------------------------


async def _pages(
    broker: PostgresBroker, filter: TaskFilter, limit: int | None, after: TaskCursor | None = None
) -> AsyncGenerator[list[str]]:
    """Ids in the order of the list. A row that is acted on leaves the list, and the key never comes back to it."""
    left = limit
    while left is None or left > 0:
        page = await broker.list_tasks(filter, BATCH if left is None else min(BATCH, left), after)
        if page.tasks:
            yield [task.id for task in page.tasks]
        after = page.next
        if after is None:
            return
        left = None if left is None else left - len(page.tasks)


class _Listed:
    """Acts on ids, and on a filter by listing it page by page."""

    verb: str
    past: str
    states: frozenset[TaskStatus]
    note = ""

    def _filter(self, filter: TaskFilter) -> TaskFilter:
        return filter

    async def count(self, broker: PostgresBroker, filter: TaskFilter) -> int:
        return await broker.count_tasks(self._filter(filter))

    async def first(self, broker: PostgresBroker, filter: TaskFilter, limit: int) -> Sequence[str]:
        return [task.id for task in (await broker.list_tasks(self._filter(filter), limit)).tasks]

    async def on_ids(self, broker: PostgresBroker, ids: Sequence[str]) -> tuple[int, Left]:
        raise NotImplementedError

    async def on_filter(
        self, broker: PostgresBroker, filter: TaskFilter, limit: int | None
    ) -> AsyncGenerator[tuple[int, Left]]:
        async for ids in _pages(broker, self._filter(filter), limit):
            yield await self.on_ids(broker, ids)


class Retry(_Listed):
    verb = "retry"
    past = "retried"
    states = RETRYABLE_STATES
    _WHY: Final = {
        RetryResult.NOT_ENDED: "it has not ended",
        RetryResult.SUCCEEDED: "it is COMPLETED; send a new one to repeat it",
        RetryResult.IN_WORKFLOW: "it belongs to a workflow: retry that",
        RetryResult.REPLACED: "it belongs to a workflow, as a former task of one of its nodes: retry the workflow",
        RetryResult.KEY_TAKEN: "a live task holds its unique key: cancel or await that one first",
        RetryResult.CHANGED: "it changed meanwhile: look again",
        RetryResult.NOT_FOUND: "there is no such task",
    }

    def __init__(self) -> None:
        self._seen_at: datetime | None = None
        """When the filter was counted, on the database's clock."""

    def _filter(self, filter: TaskFilter) -> TaskFilter:
        return replace(filter, in_workflow=False)

    async def count(self, broker: PostgresBroker, filter: TaskFilter) -> int:
        self._seen_at = await broker.get_time()
        return await super().count(broker, filter)

    def why_not(self, state: TaskState) -> str | None:
        if not state.status.is_terminal:
            return f"it is {state.status}; only ended tasks are retried"
        if state.status is TaskStatus.COMPLETED:
            return self._WHY[RetryResult.SUCCEEDED]
        if (why := state.why_not_alone) is not None:
            return why
        return self._WHY[RetryResult.KEY_TAKEN] if state.key_is_taken else None

    async def on_ids(self, broker: PostgresBroker, ids: Sequence[str]) -> tuple[int, Left]:
        results = await broker.retry_tasks(ids, ended_before=self._seen_at)
        left = {one: self._WHY[results[one]] for one in ids if results[one] is not RetryResult.RETRIED}
        of_workflows = [one for one in left if results[one] in (RetryResult.IN_WORKFLOW, RetryResult.REPLACED)]
        for one, state in (await broker.get_task_states(of_workflows) if of_workflows else {}).items():
            left[one] = state.why_not_alone or left[one]
        return len(ids) - len(left), left

    async def on_filter(
        self, broker: PostgresBroker, filter: TaskFilter, limit: int | None
    ) -> AsyncGenerator[tuple[int, Left]]:
        # the last ended come first in the list: a place in it is a time
        seen = None if self._seen_at is None else TaskCursor("", self._seen_at)
        async for ids in _pages(broker, self._filter(filter), limit, seen):
            yield await self.on_ids(broker, ids)


class Cancel(_Listed):
    verb = "cancel"
    past = "cancelled"
    states = LIVE_STATES

    def __init__(self) -> None:
        self._asked = 0

    @property
    def note(self) -> str:
        return f", {self._asked:,} of them by asking the worker that runs it" if self._asked else ""

    def why_not(self, state: TaskState) -> str | None:
        return f"it is {state.status}" if state.status.is_terminal else None

    async def on_ids(self, broker: PostgresBroker, ids: Sequence[str]) -> tuple[int, Left]:
        results = await broker.cancel_many(ids)
        self._asked += sum(result is CancelResult.REQUESTED for result in results.values())
        why = {CancelResult.ALREADY_ENDED: "it has ended already", CancelResult.NOT_FOUND: "there is no such task"}
        left = {one: why[result] for one, result in results.items() if result in why}
        return len(results) - len(left), left


class Purge:
    verb = "purge"
    past = "purged"
    states = TASK_TERMINAL_STATES
    note = ""

    async def count(self, broker: PostgresBroker, filter: TaskFilter) -> int:
        return await broker.count_purgeable(filter)

    async def first(self, broker: PostgresBroker, filter: TaskFilter, limit: int) -> Sequence[str]:
        return [task.id for task in await broker.list_purgeable(filter, limit)]

    def why_not(self, state: TaskState) -> str | None:
        if not state.status.is_terminal:
            return f"it is {state.status}; only ended tasks are purged"
        return f"its workflow {state.workflow_id} has not ended" if state.workflow_is_live else None

    async def on_ids(self, broker: PostgresBroker, ids: Sequence[str]) -> tuple[int, Left]:
        before = await broker.get_task_states(ids)
        done = await broker.purge_tasks(TaskFilter(ids=ids))
        after = await broker.get_task_states(ids)
        left: Left = {}
        for one in ids:
            if one in after:
                left[one] = self.why_not(after[one]) or "somebody else holds it just now: try again"
            elif one not in before:
                left[one] = "there is no such task"
        return done, left

    async def on_filter(
        self, broker: PostgresBroker, filter: TaskFilter, limit: int | None
    ) -> AsyncGenerator[tuple[int, Left]]:
        async for count in broker.purge_in_batches(filter, limit):
            yield count, {}
