"""How queues share the places of a worker: by weights, and with a part for tasks that have waited long. Pure.

Without a weight and an ageing time, the claim takes tasks by priority over all queues, and nothing here is used.

Weights: while there are more tasks than places, each claim asks one queue. The queue that is furthest behind its share
comes first, and gets as many places as bring it level with the others. A queue without tasks collects no credit.

Ageing: of every ten tasks that a worker takes, one may be a task that has waited for longer than its queue's ageing
time, the oldest first, regardless of priority.
"""

from collections.abc import Collection, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from horsies_worker.database.queries import Head

AGED_SHARE: Final = 0.1
"""The part of all starts that tasks may get which have waited for long."""
ASK_S: Final = 1.0
"""Ask at most this long after the last time whether a task has waited for long, and not more often than..."""
ASK_OFTEN_S: Final = 0.1

_EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})


class Shares(NamedTuple):
    """The policies that workers keep in memory."""

    weights: Mapping[str, int] = _EMPTY
    """Of every queue of the worker; empty when none of them has a weight."""
    ageing: Mapping[str, float] = _EMPTY
    """Seconds by queue, of those that have an ageing time."""

    @classmethod
    def of(cls, queues: Sequence[str], policies: Mapping[str, Mapping[str, Any]]) -> Self:
        """From the policies of the database. As soon as one queue has a weight, those without one have weight 1."""
        given = {name: policies.get(name, {}) for name in queues}
        weights = {name: int(policy.get("weight") or 1) for name, policy in given.items()}
        ageing = {name: float(seconds) for name, policy in given.items() if (seconds := policy.get("ageing_seconds"))}
        has_weights = any(policy.get("weight") for policy in given.values())
        return cls(weights if has_weights else {}, ageing)


class Sharing(NamedTuple):
    """The turns of the queues, and of tasks that have waited for long. Immutable; every method returns a copy."""

    shares: Shares = Shares()
    served: Mapping[str, float] = _EMPTY
    """What each queue got, divided by its weight."""
    dry: frozenset[str] = frozenset()
    """Queues that had fewer tasks than there were places, when they were last asked."""
    unscanned: frozenset[str] = frozenset()
    """Queues in which tasks may be that no hint tells of."""
    no_sync: frozenset[str] = frozenset()
    """Queues in which the last scan had room for more synchronous tasks than it found."""
    no_async: frozenset[str] = frozenset()
    passed: frozenset[str] = frozenset()
    """Queues that had less than was asked for in this round: their turn comes in the next one."""
    is_quiet: bool = False
    """No queue had more: claims take what comes, from all of them."""
    credit: float = 0.0
    """How many tasks that have waited for long may be taken."""
    ask_at: float = -inf
    """When to ask for such tasks again."""

    @property
    def is_split(self) -> bool:
        """Whether each claim asks one queue."""
        return bool(self.shares.weights) and not self.is_quiet

    def with_shares(self, shares: Shares) -> Self:
        return self if shares == self.shares else type(self)(shares, unscanned=frozenset(shares.weights))

    def with_scan(self) -> Self:
        """All queues are to be scanned, each when it has its turn."""
        return self._replace(unscanned=frozenset(self.shares.weights), no_sync=frozenset(), no_async=frozenset())

    def without_kinds(self, queue: str, *, sync: bool, asynchronous: bool) -> Self:
        """A scan of this queue had room for more tasks of these kinds than it found."""
        return self._replace(
            no_sync=self.no_sync | {queue} if sync else self.no_sync,
            no_async=self.no_async | {queue} if asynchronous else self.no_async,
        )

    def lacks_everywhere(self, lacking: frozenset[str]) -> bool:
        return lacking >= set(self.shares.weights)

    def next_round(self) -> Self:
        """A round ended because there is no place: every queue has its turn in the next one."""
        return self._replace(passed=frozenset(), is_quiet=False)

    # -- weights ---------------------------------------------------------------------------------

    def level(self, queue: str) -> float:
        """What a queue counts as having got. One that was dry is level with the others: it has missed nothing."""
        got = self.served.get(queue, 0.0)
        if queue not in self.dry:
            return got
        others = [self.served.get(name, 0.0) for name in self.shares.weights if name not in self.dry]
        return max(got, min(others, default=got))

    def order(self, queues: Collection[str]) -> list[str]:
        """The queues, those that are furthest behind first; of equals, one that may have tasks again."""
        return sorted(queues, key=lambda queue: (self.level(queue), queue not in self.dry))

    def turn(self, queues: Collection[str], limit: int) -> tuple[str, int]:
        """The queue that is asked next, and for how many of `limit` tasks: so many that all are level afterwards."""
        ordered = self.order(queues)
        levels = [self.level(name) for name in ordered]
        weights = [self.shares.weights[name] for name in ordered]
        # The water level after `limit` tasks: the first queues are filled up to it, those above it get nothing.
        height, below = inf, 0
        for count in range(1, len(ordered) + 1):
            below += weights[count - 1]
            filled = sum(level * weight for level, weight in zip(levels[:count], weights[:count], strict=True))
            height = (limit + filled) / below
            if count == len(ordered) or height <= levels[count]:
                break
        return ordered[0], min(limit, max(1, round(weights[0] * (height - levels[0]))))

    def charged(self, taken: Mapping[str, int], dry: Collection[str] = ()) -> Self:
        """Tasks of these queues were taken. `dry`: the queues that had fewer than there were places."""
        weights = self.shares.weights
        served = {
            **self.served,
            **{name: self.level(name) + n / weights[name] for name, n in taken.items() if name in weights},
        }
        still_dry = self.dry - {name for name, n in taken.items() if n}
        return self._replace(served=served, dry=still_dry | frozenset(dry))

    # -- ageing ----------------------------------------------------------------------------------

    def wants_aged(self, now: float) -> bool:
        return self.credit >= 1 and bool(self.shares.ageing) and now >= self.ask_at

    def credited(self, taken: int, max_batch: int) -> Self:
        """So many tasks were taken by priority or weight."""
        if not self.shares.ageing:
            return self
        return self._replace(credit=min(self.credit + AGED_SHARE * taken, max(1.0, AGED_SHARE * max_batch)))

    def oldest(self, heads: Sequence[Head]) -> Head | None:
        """The oldest of the tasks that have waited for long."""
        aged = [head for head in heads if head.waited_s >= self.shares.ageing.get(head.queue_name, inf)]
        return max(aged, key=lambda head: head.waited_s, default=None)

    def after_none(self, heads: Sequence[Head], now: float) -> Self:
        """None has waited for long: ask again when the first one may have."""
        left = [self.shares.ageing.get(head.queue_name, inf) - head.waited_s for head in heads]
        return self._replace(ask_at=now + max(ASK_OFTEN_S, min([ASK_S, *left])))
