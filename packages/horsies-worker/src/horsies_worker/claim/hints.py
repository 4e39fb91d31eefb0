"""What earlier claims taught: where the next claim looks, and how much of the table it scans. Pure.

A full scan finds everything that is ready. It also walks rows that stand at the front of a (queue, priority) and cannot
be taken: dead entries that a long transaction keeps from being vacuumed (200 ms for 250,000), and tasks of names that
this process does not know (60 ms for 100,000). Full scans that stay slow therefore get at most a twentieth of the time;
one that was slow because the server was busy for a moment is repeated soon. Between them a claim scans all pairs from
the floor: the time before which the last empty scan left nothing. That misses only rows that come back with an old
`enqueued_at` (returned tasks, late commits); the next full scan finds them.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, Self

from horsies_worker.claim.settings import TaskKinds
from horsies_worker.database.queries import Hint, NextRequest

EVERY_S: Final = 1.0
"""A full scan is made this often, for rows that came back with an old enqueued_at or at another priority."""
SHARE: Final = 20
"""After a slow scan, wait for its duration, after the next slow one for twice its duration, and so on: at most for this
many times its duration."""
SLOW_S: Final = 0.020
"""A scan that takes longer is slow."""
QUICK_S: Final = 0.005
"""The same limit while many tasks of other names are ready: a floor scan then finds new tasks all the same."""
ROW_S: Final = 0.000_2
"""Each claimed row may add this much to a statement before the scan itself counts as slow."""
LATE_S: Final = 1.0
"""The floor lies this far back, for a transaction that commits later than its `enqueued_at`."""


class Scan(Enum):
    HINTED = "the (queue, priority) pairs of the last claims"
    FLOOR = "all pairs, from the floor"
    FULL = "all pairs, from their beginning"


class Repeat(NamedTuple):
    """The last claim took tasks of one (queue, priority) and one kind, so a simpler statement can ask for more."""

    hint: Hint
    names: frozenset[str]
    is_async: bool


class Pace(NamedTuple):
    """How often scans of one kind are made."""

    allowed_at: float = 0.0
    """The next one."""
    slow: int = 0
    """So many in a row were slow."""

    def after(self, scan_s: float, *, is_slow: bool, now: float) -> Self:
        if not is_slow:
            return self._replace(allowed_at=now, slow=0)
        return self._replace(allowed_at=now + min(SHARE, 2**self.slow) * scan_s, slow=min(self.slow + 1, SHARE))


class Hints(NamedTuple):
    """Immutable; every method returns a changed copy. `_replace` takes 1.4 µs, that of a frozen dataclass 7 µs."""

    pairs: Mapping[tuple[str, int], Hint] = MappingProxyType({})
    repeat: Repeat | None = None
    scan_wanted: bool = True
    """There may be tasks where no hint points."""
    owes_full_scan: bool = False
    """The last scan began at the floor."""
    no_sync: bool = False
    """The last scan had room for more synchronous tasks than it found."""
    no_async: bool = False
    floor: datetime | None = None
    is_crowded: bool = False
    """Many tasks of unknown names are ready, and every full scan walks them."""
    is_first: bool = True
    """The first scan on a connection also plans the statement, so its duration is ignored."""
    full_due_at: float = 0.0
    full: Pace = Pace()
    from_floor: Pace = Pace()
    put_off_at: float | None = None
    """When the first claim since the last scan took only announced tasks."""

    def want_scan(self) -> Self:
        return self if self.scan_wanted else self._replace(scan_wanted=True)

    def forget(self) -> Self:
        """After an outage, or when queues were paused or resumed. The clock of the next server may differ."""
        return self._replace(pairs={}, repeat=None, floor=None, is_crowded=False, is_first=True, scan_wanted=True)

    def next_scan(self, now: float) -> Scan:
        if not self.scan_wanted and self.pairs and now < self.full_due_at:
            return Scan.HINTED
        if not self._must_wait(now):
            return Scan.FULL
        return Scan.FLOOR if self.floor is not None and now >= self.from_floor.allowed_at else Scan.HINTED

    def begin(self, scan: Scan) -> Self:
        """A claim with this scan is sent now; what is announced from here on wants another."""
        if scan is Scan.HINTED:
            return self
        return self._replace(scan_wanted=False, owes_full_scan=scan is Scan.FLOOR, put_off_at=None)

    def are_fresh(self, now: float) -> bool:
        return not self.scan_wanted and now < self.full_due_at

    def may_put_off(self, now: float) -> bool:
        """Whether a claim of the announced tasks may replace a scan: for a second after the first such claim."""
        return not self.scan_wanted and (self.put_off_at is None or now < self.put_off_at + EVERY_S)

    def wait_s(self, now: float) -> float | None:
        """The time until the wanted scan is allowed; None when no scan is wanted, or it is allowed now."""
        if not (self.scan_wanted or self.owes_full_scan) or not self._must_wait(now):
            return None
        if self.scan_wanted and self.floor is not None:
            return max(0.0, min(self.full.allowed_at, self.from_floor.allowed_at) - now)
        return self.full.allowed_at - now

    def _must_wait(self, now: float) -> bool:
        # Without a crowd, a scan that took long was waiting for a processor, and the next one may be quick.
        return now < self.full.allowed_at and (bool(self.pairs) or (self.floor is not None and self.is_crowded))

    def learn(
        self, rows: Sequence[Mapping[str, Any]], scan: Scan, kinds: TaskKinds, *, took_s: float, now: float
    ) -> Self:
        """From the rows of a claim: their pairs, whether they can be repeated, and how long the next scan must wait."""
        oldest = {(row["queue_name"], row["priority"]): row["since"] for row in rows}
        found = {pair: Hint(*pair, since) for pair, since in oldest.items()}
        # a claim without rows changes nothing here: the next tasks are probably like the last ones
        repeat = _repeat_of(rows, list(found.values()), kinds) if rows else self.repeat
        if scan is Scan.HINTED:
            return self._replace(pairs={**self.pairs, **found}, repeat=repeat) if rows else self
        scan_s = took_s - ROW_S * len(rows)
        is_slow = scan_s > (QUICK_S if self.is_crowded else SLOW_S) and not self.is_first
        if scan is Scan.FLOOR:
            pace, pairs = self.from_floor.after(scan_s, is_slow=is_slow, now=now), {**self.pairs, **found}
            return self._replace(is_first=False, from_floor=pace, pairs=pairs, repeat=repeat)
        pace = self.full.after(scan_s, is_slow=is_slow, now=now)
        return self._replace(
            is_first=False,
            full=pace,
            full_due_at=max(now + EVERY_S, pace.allowed_at),
            # hints outlive a slow scan that found nothing, or the next task would need another one
            pairs={**self.pairs, **found} if is_slow else found,
            repeat=repeat,
        )

    def learn_next(self, rows: Sequence[Mapping[str, Any]]) -> Self:
        """From a repeated claim, whose rows are alike by its own conditions: the one with `since` stands for all."""
        if self.repeat is None:  # forgotten meanwhile
            return self
        row = next(row for row in rows if row["since"] is not None)
        hint = Hint(row["queue_name"], row["priority"], row["since"])
        repeat = Repeat(hint, frozenset((row["task_name"],)), self.repeat.is_async)
        return self._replace(pairs={**self.pairs, hint[:2]: hint}, repeat=repeat)

    def found_nothing(self, until: datetime, *, is_crowded: bool) -> Self:
        """A scan of all pairs left nothing that was ready at this time and of a known name."""
        floor = until - timedelta(seconds=LATE_S)
        repeat = self.repeat
        if repeat is not None:
            repeat = repeat._replace(hint=_not_before(repeat.hint, floor))
        pairs = {pair: _not_before(hint, floor) for pair, hint in self.pairs.items()}
        return self._replace(is_crowded=is_crowded, floor=floor, repeat=repeat, pairs=pairs)

    def repeat_request(
        self, kinds: TaskKinds, *, sync: int, ahead: int, asynchronous: int, most: int, short: frozenset[str]
    ) -> NextRequest | None:
        """For more tasks like the last ones, as far as there is room; None when only a full claim will do."""
        if self.repeat is None:
            return None
        hint, last_names, is_async = self.repeat
        if is_async:
            names, places = kinds.asynchronous, asynchronous
        elif ahead and last_names <= short:
            names, places = [name for name in kinds.sync if name in short], sync + ahead
        else:
            names, places = kinds.sync, sync
        limit = min(most, places)
        # a thousand names need not be sent twice
        taken = None if len(names) == len(kinds.known) else names
        return NextRequest(hint, limit, taken, kinds.known) if limit > 0 else None


def _repeat_of(rows: Sequence[Mapping[str, Any]], hints: Sequence[Hint], kinds: TaskKinds) -> Repeat | None:
    names = frozenset(row["task_name"] for row in rows)
    is_async = names <= kinds.async_set
    is_alike = len(hints) == 1 and (is_async or names.isdisjoint(kinds.async_set))
    if not is_alike or any(row["status"] != "RUNNING" or row["is_workflow_task"] for row in rows):
        return None
    return Repeat(hints[0], names, is_async)


def _not_before(hint: Hint, floor: datetime) -> Hint:
    return hint._replace(since=floor) if hint.since < floor else hint
