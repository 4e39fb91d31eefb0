"""What the claimer of grouped tasks knows, the moves it can make, and the wake-ups that change its state. Pure.

It asks about single groups (`looks`) wherever it knows of one: a task was announced, a place came free here, a token or
a delayed task is due. Only where it cannot know does it walk through all groups: when it goes on duty, at a poll, when
a policy changed.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, NamedTuple, Self

from horsies_worker.claim.sharing import Shares, Sharing
from horsies_worker.database.grouped_claim import Cursor, Group, GroupedRequest, Pair, Report

MAX_TIMERS = 50_000
"""Groups that this worker waits for; of more it remembers those that are due first, and finds the others by a walk."""


# -- moves -----------------------------------------------------------------------------------------------------


class Wait(NamedTuple):
    """Wait until this time or the next wake-up."""

    until: float


class Claim(NamedTuple):
    request: GroupedRequest


class TellOthers(NamedTuple):
    """Have another worker look at these groups: this one has no room."""

    groups: Sequence[Group]


class LeaveDuty(NamedTuple):
    """Tasks may wait that this worker, which hears of all of them, has no room for."""


class TellLimited(NamedTuple):
    """Have workers of other queues look that share a limit with ours: a place under it stays free."""

    queues: Sequence[str]


class Stop(NamedTuple):
    """End the loop."""


Move = Wait | Claim | TellOthers | LeaveDuty | TellLimited | Stop


# -- answers ---------------------------------------------------------------------------------------------------


class Claimed(NamedTuple):
    rows: Sequence[Mapping[str, Any]]
    report: Report
    sent_at: float
    took_s: float


class Failed(NamedTuple):
    """A statement failed; whether it was carried out is unknown."""

    delay_s: float


class Told(NamedTuple):
    """Another worker was told, or the duty was left."""


Answer = Claimed | Failed | Told | None
"""The result of the last move. None after a wait, and at the beginning."""


# -- state -----------------------------------------------------------------------------------------------------


class State(NamedTuple):
    """Everything that the next decision depends on. Immutable."""

    move: Move = Wait(-inf)
    is_stopped: bool = False
    is_drained: bool = False
    """An operator wants this worker to claim nothing until it is resumed."""
    on_duty: bool = True
    """True without a line to wait in, too: then every worker acts for itself."""

    # what to look at
    looks: Mapping[Group, None] = MappingProxyType({})
    """A set in the order in which the groups came."""
    is_walk: bool = True
    """A walk through all groups is wanted. One that is under way may have passed what is wanted."""
    timers: Mapping[Group, float] = MappingProxyType({})
    """When to look at a group again: its token, or its delayed task, is due then."""
    next_timer: float = inf
    """The earliest of them."""

    # the walk
    in_round: bool = False
    """It is under way."""
    cursors: Mapping[Pair, Cursor] = MappingProxyType({})
    round_s: float = 0.0
    """How long the statements took that have found nothing since the last task was taken."""
    poll_at: float = -inf

    sharing: Sharing = Sharing()
    turn: int = 0
    """Counts claims: the queues take turns in being the first."""

    # what keeps it from claiming
    rest_until: float = -inf
    walk_after: float = -inf
    """A round that took nothing is not repeated before this time; -inf: the next one is urgent."""
    lacked_room: bool = False
    """The last claim may have left tasks because there was no place for their kind."""
    has_new_room: bool = False
    """A place came free while a claim was in flight."""
    told_full_at: float = -inf

    # what earlier claims told
    limited: frozenset[str] = frozenset()
    """Queues that share a limit: their tasks without a group are claimed here, too."""
    clock: tuple[float, float] = (inf, 0.0)
    """The server's time of the last claim, in seconds since 1970, and the monotonic time when it was sent."""
    place_left: bool = False
    """A place under a shared limit came free here, and no task has taken it."""
    duty_taken: int = 0
    """Tasks that were taken since the duty began."""

    @property
    def is_waiting(self) -> bool:
        return isinstance(self.move, Wait)

    @property
    def wants_claim(self) -> bool:
        return self.is_walk or self.in_round or bool(self.looks)

    def with_looks(self, groups: Iterable[Group]) -> Self:
        added = {group: None for group in groups if group not in self.looks}
        return self._replace(looks={**self.looks, **added}) if added else self

    def with_walk(self) -> Self:
        return self if self.is_walk else self._replace(is_walk=True)

    # -- wake-ups --------------------------------------------------------------------------------

    def with_news(self, queue: str, key: str | None) -> Self:
        """Tasks of this group became ready or were sent with a delay; None: of several groups."""
        if self.is_drained or not self.on_duty:
            return self  # the worker on duty hears it too
        return self.with_walk() if key is None else self.with_looks([(queue, key)])

    def with_ungrouped_news(self) -> Self:
        """A task without a group was announced. It concerns this claimer where it may be in a queue with a limit."""
        return self.with_looks((queue, None) for queue in self.limited) if self.on_duty and self.limited else self

    def with_freed(self, groups: Iterable[Group], *, shared: bool) -> Self:
        """Tasks of these groups ended here: there is a place for another one of the group, or, of a shared limit, for
        any task."""
        state = self.with_looks(groups)
        return state._replace(is_walk=True, place_left=True, walk_after=-inf) if shared else state

    def with_room(self) -> Self:
        """There are free places. They matter if the last claim had too few of them for a kind of task, or the one in
        flight may have."""
        if isinstance(self.move, Claim):
            return self if self.has_new_room else self._replace(has_new_room=True)
        return self._replace(is_walk=self.is_walk or self.lacked_room, lacked_room=False)

    def with_policies(self) -> Self:
        """A queue was paused or resumed, or a policy changed: what was throttled may not be any more."""
        return self._replace(is_walk=True, timers={}, next_timer=inf, walk_after=-inf)

    def with_duty(self) -> Self:
        """This worker hears of new tasks from now on. What was sent before that was announced to another one."""
        return self._replace(on_duty=True, is_walk=True, duty_taken=0, walk_after=-inf)

    def without_duty(self) -> Self:
        """Another worker is on duty. It walks through all groups, and waits for their tokens and delayed tasks."""
        return self._replace(on_duty=False, timers={}, next_timer=inf)

    def with_shares(self, shares: Shares) -> Self:
        sharing = self.sharing.with_shares(shares)
        return self if sharing is self.sharing else self._replace(sharing=sharing)

    def with_drain(self) -> Self:
        return self._replace(is_drained=True, timers={}, next_timer=inf)

    def with_resume(self) -> Self:
        return self._replace(is_drained=False, is_walk=True, in_round=False, walk_after=-inf, poll_at=-inf)

    def with_stop(self) -> Self:
        return self._replace(is_stopped=True)
