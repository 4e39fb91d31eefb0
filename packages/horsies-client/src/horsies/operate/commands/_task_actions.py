"""Retry, cancel and purge by ids or by filter, with a dry run, a confirmation before many, and reasons for refusals.

Every statement checks the state that it expects. A task whose state has changed since it was named or listed is left
alone and reported. A retry by filter takes only tasks that had ended when they were counted, not a task that another
operator retried during the confirmation and that failed again.
"""

import argparse
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Final

from horsies.operate import actions
from horsies.operate.broker import PostgresBroker
from horsies.operate.commands._common import OK, PROBLEMS, Desk, Refused, confirm
from horsies.operate.commands._print import complain, plural, say, say_json
from horsies.operate.commands._task_filter import chosen_filter, narrowed, searched
from horsies.operate.filters import LIVE_STATES, RETRYABLE_STATES, TaskCursor, TaskFilter
from horsies.operate.reading import COUNT_BOUND
from horsies.operate.session import SlowAnswer
from horsies.operate.views import RetryResult, TaskState
from horsies.status import TASK_TERMINAL_STATES, TaskStatus

BATCH: Final = 500
FIRST: Final = 10
"""The number of ids that a dry run prints, and of refusals that are printed one by one."""

Left = dict[str, str]
"""The ids that were left alone, each with the reason."""


class Act:
    """A verb that acts on tasks: on ids, and on a filter by listing it page by page."""

    verb: str
    past: str
    states: frozenset[TaskStatus]
    filters = "--status or --queue"
    """What to give in place of ids."""
    on_wait: Callable[[str], None] = staticmethod(complain)
    """Gets a text when the verb waits for something."""

    @property
    def note(self) -> str:
        """More about the tasks that were acted on."""
        return ""

    def scope(self, filter: TaskFilter) -> TaskFilter:
        """The filter of the options, within the tasks that the command is about."""
        return narrowed(filter, self.states, self.past)

    def narrowed(self, filter: TaskFilter) -> TaskFilter:
        """The filter for the tasks that it can act on."""
        return filter

    async def count(self, broker: PostgresBroker, filter: TaskFilter) -> int:
        """How many tasks of the filter it would act on, up to the bound."""
        return await broker.count_tasks(self.narrowed(filter))

    async def first(self, broker: PostgresBroker, filter: TaskFilter, limit: int) -> Sequence[str]:
        """The first ids of the filter that it would act on."""
        return [task.id for task in (await broker.list_tasks(self.narrowed(filter), limit)).tasks]

    def why_not(self, state: TaskState) -> str | None:
        """The reason to leave a task in this state alone; None when there is none."""
        raise NotImplementedError

    async def on_ids(self, broker: PostgresBroker, ids: Sequence[str]) -> tuple[int, Left]:
        """Act on these tasks; returns how many it acted on, and the others with reasons."""
        raise NotImplementedError

    async def on_filter(
        self, broker: PostgresBroker, filter: TaskFilter, limit: int | None
    ) -> AsyncGenerator[tuple[int, Left]]:
        """`on_ids` for each page of the filter."""
        async for ids in _pages(broker, self.narrowed(filter), limit, self.start):
            yield await self.on_ids(broker, ids)

    @property
    def start(self) -> TaskCursor | None:
        """Where the list of the filter starts."""
        return None

    async def left_out(self, broker: PostgresBroker, filter: TaskFilter) -> str | None:
        """What to know about tasks of the filter that `narrowed` leaves out; None when there are none."""
        return None


async def act(desk: Desk, how: Act) -> int:
    """Carry out a verb of `horsies tasks`."""
    options, filter = desk.options, await chosen_filter(desk)
    ids = list(dict.fromkeys(options.ids))
    wants_all = getattr(options, "all", False)
    if wants_all and (ids or not filter.is_empty):
        raise Refused("--all takes no ids and no filter: leave it out to act on some tasks")
    if not ids and filter.is_empty and not wants_all:
        raise Refused(f"name the tasks to {how.verb} by id, or by a filter such as {how.filters}")
    if ids and filter.is_empty:
        return await _by_ids(desk, how, ids[: options.limit])
    narrow = how.scope(filter)
    return await _by_filter(desk, how, replace(narrow, ids=ids) if ids else narrow)


async def _by_ids(desk: Desk, how: Act, ids: list[str]) -> int:
    broker, is_dry = desk.broker, desk.options.dry_run
    done, left, is_stopped = 0, Left(), False
    if is_dry:
        states = await broker.get_task_states(ids)
        reasons = {one: how.why_not(states[one]) if one in states else actions.NO_SUCH_TASK for one in ids}
        left = {task_id: why for task_id, why in reasons.items() if why is not None}
    else:
        with desk.progress(how.past, "task", len(ids)) as progress:
            how.on_wait = progress.note
            for at in range(0, len(ids), BATCH):
                if progress.is_stopped:
                    break
                count, refused = await how.on_ids(broker, ids[at : at + BATCH])
                progress.add(count)
                left.update(refused)
        done = progress.done
        is_stopped = progress.is_stopped
    others = [one for one in ids if one not in left]
    matched = len(others if is_dry else ids)
    _tell(desk.options, how, matched=matched, done=done, ids=others, left=left, is_stopped=is_stopped)
    return PROBLEMS if left else OK


async def _by_filter(desk: Desk, how: Act, filter: TaskFilter) -> int:
    broker, options = desk.broker, desk.options
    try:
        count = await how.count(broker, filter)
    except SlowAnswer:
        if options.dry_run or not options.yes:  # the number is the answer, or the confirmation has to name it
            raise
        count = options.limit or COUNT_BOUND
    matched = min(count, options.limit or count)
    at_least = count >= COUNT_BOUND and (options.limit is None or options.limit > count)
    done, left, is_stopped = 0, Left(), False
    first: Sequence[str] = ()
    if options.dry_run and count:
        first = await how.first(broker, filter, min(FIRST, options.limit or FIRST))
    elif not options.dry_run and count:
        confirm(how.verb, matched, "task", yes=options.yes, at_least=at_least)
        with desk.progress(how.past, "task", matched, is_bounded=at_least) as progress:
            how.on_wait = progress.note
            batches = how.on_filter(broker, filter, options.limit)
            async with aclosing(batches):
                async for some, refused in batches:
                    progress.add(some)
                    left.update(refused)
                    if progress.is_stopped:
                        break
        done = progress.done
        is_stopped = progress.is_stopped
    _tell(
        options, how, matched=matched, done=done, ids=first, left=left, at_least=at_least, within=filter.window,
        is_stopped=is_stopped,
    )  # fmt: skip
    if not options.json and not is_stopped:
        if (window := searched(filter)) is not None:
            say(window)
        if (told := await how.left_out(broker, filter)) is not None:
            complain(told)
    return OK if done or (options.dry_run and matched) else PROBLEMS


def _tell(
    options: argparse.Namespace, how: Act, *, matched: int, done: int, ids: Sequence[str], left: Left,
    at_least: bool = False, within: timedelta | None = None, is_stopped: bool = False,
) -> None:  # fmt: skip
    if options.json:
        say_json(
            {
                "verb": how.verb, "dry_run": options.dry_run, "matched": matched, "matched_is_lower_bound": at_least,
                "done": done, "ids": list(ids), "not_done": [{"id": key, "why": why} for key, why in left.items()],
                "ended_within": within, "interrupted": is_stopped,
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
    """Ids in the order of the list. A task that was acted on leaves the list, and the cursor never returns to it."""
    left = limit
    while left is None or left > 0:
        page = await broker.list_tasks(filter, BATCH if left is None else min(BATCH, left), after)
        if page.tasks:
            yield [task.id for task in page.tasks]
        after = page.next
        if after is None:
            return
        left = None if left is None else left - len(page.tasks)


class Retry(Act):
    verb = "retry"
    past = "retried"
    states = RETRYABLE_STATES

    def __init__(self) -> None:
        self._seen_at: datetime | None = None
        """When the filter was counted, on the database's clock."""

    def narrowed(self, filter: TaskFilter) -> TaskFilter:
        return replace(filter, in_workflow=False)

    async def count(self, broker: PostgresBroker, filter: TaskFilter) -> int:
        self._seen_at = await broker.get_time()
        return await super().count(broker, filter)

    def why_not(self, state: TaskState) -> str | None:
        if not state.status.is_terminal:
            return f"it is {state.status}; only ended tasks are retried"
        if state.status is TaskStatus.COMPLETED:
            return actions.NOT_RETRIED[RetryResult.SUCCEEDED]
        if (why := state.why_not_alone) is not None:
            return why
        return actions.NOT_RETRIED[RetryResult.KEY_TAKEN] if state.key_is_taken else None

    async def on_ids(self, broker: PostgresBroker, ids: Sequence[str]) -> tuple[int, Left]:
        outcome = await actions.retry(broker, ids, self._seen_at)
        return outcome.done, dict(outcome.not_done)

    @property
    def start(self) -> TaskCursor | None:
        # the list is ordered by the time of the end, so a time is a cursor
        return None if self._seen_at is None else TaskCursor("", self._seen_at)

    async def left_out(self, broker: PostgresBroker, filter: TaskFilter) -> str | None:
        try:
            page = await broker.list_tasks(replace(filter, in_workflow=True), FIRST, self.start)
        except SlowAnswer:
            return None
        states = await broker.get_task_states([task.id for task in page.tasks]) if page.tasks else {}
        current = [state for state in states.values() if not state.is_replaced]
        if not current:
            return None
        found = f"{'at least ' if page.next is not None else ''}{plural(len(current), 'task')} of workflows"
        runs = dict.fromkeys(state.retried_run for state in current if state.retried_run is not None)
        if not runs:
            return f"{found} left alone: their runs are COMPLETED or gone; start new runs to repeat them"
        how = " and ".join(f"`horsies workflows retry {one}`" for one in runs)
        return f"{found} left alone; to run them again: {how}"


class Cancel(Act):
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
        outcome = await actions.cancel(broker, ids, on_wait=self.on_wait)
        self._asked += outcome.asked
        return outcome.done + outcome.asked, dict(outcome.not_done)


class Purge(Act):
    verb = "purge"
    past = "purged"
    states = TASK_TERMINAL_STATES

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
                left[one] = self.why_not(after[one]) or "another session has locked it: try again"
            elif one not in before:
                left[one] = actions.NO_SUCH_TASK
        return done, left

    async def on_filter(
        self, broker: PostgresBroker, filter: TaskFilter, limit: int | None
    ) -> AsyncGenerator[tuple[int, Left]]:
        async for count in broker.purge_in_batches(filter, limit):
            yield count, {}
