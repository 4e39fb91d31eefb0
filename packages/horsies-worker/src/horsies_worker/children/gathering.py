"""Gathers tasks of batch tasks into calls: up to `max_size` of them, or what has come `max_wait_ms` after the first.

A task here is RUNNING in the database and has not started: the death of a child does not touch it, and it goes back to
the queue when the worker stops or is drained. A call keeps one place of a child from its first task on, if one is free;
a call that began later does not take it, however soon that is complete.
Repeated attempts run alone: a task that kills its process, or that fails because of the others, is found that way.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Final

from horsies_worker.child.jobs import Job, call_of

HOLD_S: Final = 0.1
"""A complete call waits this long for a child. Its tasks then go back to the queue, for a worker that has one."""
MAX_CHARS: Final = 16_000_000
"""A call is complete when the arguments of its tasks have this many characters: all of them are in memory at once."""


@dataclass(slots=True, eq=False)
class _Call:
    """A call on its way to a child."""

    is_async: bool
    max_size: int
    number: int
    """Calls are numbered as they begin."""
    members: list[Job] = field(default_factory=list[Job])
    chars: int = 0
    timer: asyncio.TimerHandle | None = None

    @property
    def room(self) -> int:
        return self.max_size - len(self.members) if self.chars < MAX_CHARS else 0


class Gathering:
    """`start` gives a call to a child, and leaves so many places free; it returns False when there are no more.
    `give_back` returns tasks to the queue."""

    def __init__(self, start: Callable[[Job, int], bool], give_back: Callable[[Sequence[Job]], None]) -> None:
        self._start = start
        self._numbers = count()
        self._give_back = give_back
        self._open: dict[str, _Call] = {}
        """By task name: calls that take more tasks."""
        self._complete: deque[_Call] = deque()
        """Calls that wait for a child."""
        self.reserved_sync = self.reserved_async = 0
        """The places that these calls keep."""

    def __iter__(self) -> Iterator[Job]:
        for call in (*self._open.values(), *self._complete):
            yield from call.members

    @property
    def waits_for_child(self) -> bool:
        """Whether a call of a `def` task waits for an idle child. No child gets another job before that."""
        return any(not call.is_async for call in self._complete)

    def room(self, *, is_async: bool) -> Mapping[str, int]:
        """How many more tasks the open calls take, by task name."""
        return {name: call.room for name, call in self._open.items() if call.is_async is is_async}

    def add(self, jobs: Sequence[Job]) -> None:
        for job in jobs:
            self._add(job)
        self.start_calls()

    def _add(self, job: Job) -> None:
        limits = job.gather
        assert limits is not None, job
        # A job with a rate must start within its token's time, so it does not wait for others.
        if job.attempt > 1 or job.start_by is not None or limits.max_size == 1:
            call = _Call(job.is_async, 1, next(self._numbers), [job])
            self._reserve(call, 1)
            self._put(call)
            return
        call = self._open.get(job.task_name)
        if call is None:
            call = self._open[job.task_name] = _Call(job.is_async, limits.max_size, next(self._numbers))
            self._reserve(call, 1)
            loop = asyncio.get_running_loop()
            call.timer = loop.call_later(limits.max_wait_ms / 1000, self._due, job.task_name, call)
        call.members.append(job)
        call.chars += len(job.args or "") + len(job.kwargs or "")
        if not call.room:
            self._close(job.task_name, call)

    def _reserve(self, call: _Call, count: int) -> None:
        if call.is_async:
            self.reserved_async += count
        else:
            self.reserved_sync += count

    def _due(self, name: str, call: _Call) -> None:
        if self._open.get(name) is call:
            self._close(name, call)
            self.start_calls()

    def _close(self, name: str, call: _Call) -> None:
        del self._open[name]
        if call.timer is not None:
            call.timer.cancel()
        self._put(call)

    def _put(self, call: _Call) -> None:
        call.timer = asyncio.get_running_loop().call_later(HOLD_S, self._too_late, call)
        self._complete.append(call)

    def _too_late(self, call: _Call) -> None:
        if call in self._complete:
            self._complete.remove(call)
            self._reserve(call, -1)
            self._give_back(call.members)

    def start_calls(self) -> None:
        """Give complete calls to children, in order; those of a kind without a place wait."""
        for call in list(self._complete):
            self._reserve(call, -1)
            if not self._start(call_of(tuple(call.members)), self._kept_before(call)):
                self._reserve(call, 1)
                continue
            self._complete.remove(call)
            if call.timer is not None:
                call.timer.cancel()

    def _kept_before(self, call: _Call) -> int:
        """The places of calls that began earlier and still take tasks. Without them, a name whose calls are complete
        sooner would take every place, and the tasks of the other name would go back again and again."""
        return sum(one.number < call.number and one.is_async is call.is_async for one in self._open.values())

    def withdraw(self, task_id: str, generation: int) -> bool:
        """Return this task to the queue, where a cancel request ends it. False when it is not here."""
        for name, call in (*self._open.items(), *((None, call) for call in self._complete)):
            for job in call.members:
                if job.task_id != task_id or job.generation != generation:
                    continue
                call.members.remove(job)
                if not call.members:
                    self._forget(name, call)
                self._give_back([job])
                return True
        return False

    def _forget(self, name: str | None, call: _Call) -> None:
        if call.timer is not None:
            call.timer.cancel()
        self._reserve(call, -1)
        if name is None:
            self._complete.remove(call)
        else:
            del self._open[name]

    def clear(self) -> None:
        """Return all tasks to the queue."""
        jobs = list(self)
        for name, call in list(self._open.items()):
            self._forget(name, call)
        for call in list(self._complete):
            self._forget(None, call)
        if jobs:
            self._give_back(jobs)
