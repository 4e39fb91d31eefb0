"""How many tasks of batch tasks a claim may take: one place of a child is enough for many of them.

The claim knows places (`Places.sync`) and short tasks, of which several may be taken for one place (`Places.ahead`).
It claims `def` batch tasks as short ones. Tasks that are really short have another number of places, so a claim offers
these to either of them: to batch tasks when the last claim met one, and never twice in a row while short tasks run. Any
other claim finds a batch task all the same, as one that needs a place.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Final

from horsies.registry import TaskDefinition
from horsies_worker.child.jobs import Job, Room
from horsies_worker.claim.state import Places

_REMEMBERED: Final = 4
"""So many claims. With one alone, names that come in turn would each be claimed by the size of the other."""


class BatchRoom:
    def __init__(self, definitions: Iterable[TaskDefinition]) -> None:
        tasks = [task for task in definitions if not task.is_stub]
        self._sizes = {task.name: task.batch.max_size for task in tasks if task.batch is not None}
        self._sync = frozenset(task.name for task in tasks if task.batch is not None and not task.is_async)
        self._is_async_only_batches = all(task.batch is not None for task in tasks if task.is_async)
        self._met: deque[frozenset[str]] = deque(maxlen=_REMEMBERED)
        """The batch tasks of the last claims that brought some; empty before the first of them."""
        self._is_turn = False

    @property
    def has_tasks(self) -> bool:
        return bool(self._sizes)

    def claimed(self, members: Iterable[Job]) -> None:
        """A claim brought these tasks of batch tasks."""
        if met := frozenset(job.task_name for job in members):
            self._met.append(met)
        self._is_turn = bool(met) and not self._is_turn

    def places(self, places: Places, room: Room, open_sync: Mapping[str, int], open_async: Mapping[str, int]) -> Places:
        """The places with those of batch tasks. `open_sync`, `open_async`: how many tasks the calls that are being
        gathered still take, by name."""
        if self._is_async_only_batches and open_async:
            places = places._replace(asynchronous=places.asynchronous + sum(open_async.values()))
        if not self._sync or (room.ahead and not self._is_turn):
            return places
        ahead, names = sum(open_sync.values()), frozenset(open_sync)
        if places.sync:
            # Of several names, the smallest call decides: what does not fit would go back.
            met = frozenset[str]().union(*self._met) if self._met else self._sync
            size = min((self._sizes[name] for name in met & self._sync), default=1)
            ahead, names = ahead + places.sync * (size - 1), self._sync
        return places._replace(ahead=ahead, short=names) if ahead else places
