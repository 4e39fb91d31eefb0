"""A queue with groups and limits in simulated time, and one worker that the plan of grouped claims drives.

The model answers a claim as `horsies_claim_grouped` does. While it runs, it checks that no claim is made without room,
and that no task waits longer than `LATE_S` while its group, its limits and this worker have room for it.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from math import inf, isclose
from typing import Any

from horsies_worker.claim.groups import state as s
from horsies_worker.claim.groups.plan import GroupedPlan
from horsies_worker.claim.settings import ClaimSettings, TaskKinds
from horsies_worker.claim.state import Places
from horsies_worker.database.grouped_claim import Cursor, GroupedRequest, Report, Wait

QUEUE = "mail"
POLL_S = 60.0
STATEMENT_S = 0.002
LATE_S = 0.2
SETTINGS = ClaimSettings(
    queues=(QUEUE,), queue_caps={}, cluster_cap=None, max_batch=100, max_per_worker=None, prefetch=0, lease_ms=60_000,
    run_ahead=True, poll_s=POLL_S,
)  # fmt: skip


@dataclass
class World:
    places: int
    most: int | None = None
    """Tasks of one group at once."""
    spacing: float | None = None
    """Seconds between two starts of a group."""
    lasts: float = 0.05
    now: float = 0.0
    waiting: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    running: list[tuple[float, str]] = field(default_factory=list)
    free_at: dict[str, float] = field(default_factory=dict)
    claims: list[float] = field(default_factory=list)
    started: list[tuple[float, str]] = field(default_factory=list)
    failures: int = 0
    told: list[type] = field(default_factory=list)
    in_flight: tuple[s.Answer, float] | None = None
    """The answer of a claim, and when it arrives."""
    is_sent: bool = False
    counts: Counter[str] = field(default_factory=Counter)
    """Running tasks by group."""

    def __post_init__(self) -> None:
        self.plan = GroupedPlan(SETTINGS, TaskKinds.of(["work"]))
        self.state = s.State()
        self.eligible_since: dict[str, float] = {}

    # -- what happens ----------------------------------------------------------------------------

    def send(self, group: str, delay: float = 0.0, *, named: bool = True) -> None:
        self.waiting[group].append(self.now + delay)
        self.waiting[group].sort()
        self.state = self.state.with_news(QUEUE, group if named else None)

    def change_policy(self, most: int | None) -> None:
        self.most = most
        self.state = self.state.with_policies()

    def fail(self) -> None:
        self.failures += 1

    def _end_tasks(self) -> None:
        ended = [group for at, group in self.running if at <= self.now]
        if ended:
            self.counts.subtract(ended)
            self.running = [one for one in self.running if one[0] > self.now]
            if self.most is not None:
                self.state = self.state.with_freed([(QUEUE, group) for group in ended], shared=False)
            if self.state.wants_claim or self.state.lacked_room or not self.state.is_waiting:
                self.state = self.state.with_room()

    # -- the database ----------------------------------------------------------------------------

    def _room(self, group: str) -> int:
        room = 100
        if self.most is not None:
            room = self.most - self.counts[group]
        if self.spacing is not None and self.free_at.get(group, -inf) > self.now + 1e-9:
            room = 0
        elif self.spacing is not None:
            room = min(room, 1)
        return room

    def _claim(self, request: GroupedRequest) -> tuple[list[dict[str, Any]], Report]:
        assert request.limit <= self.places - len(self.running), "a claim without room"
        self.claims.append(self.now)
        keys = sorted(group for group, times in self.waiting.items() if times)
        cursor = request.cursors.get((QUEUE, 100), None)
        start, wrapped, stop = cursor or ("", False, "")
        order = [(key, False) for key in keys[bisect_left(keys, start) :]]
        order = [(key, wrapped) for key, _ in order] + ([] if wrapped else [(key, True) for key in keys])
        visited: list[tuple[str, bool]] = []
        eligible: list[str] = []
        waits: list[Wait] = []
        over, throttled = True, False

        def visit(key: str) -> None:
            nonlocal throttled
            room, first = self._room(key), self.waiting[key][0] if self.waiting[key] else None
            if first is None:
                return
            if first > self.now:
                waits.append(Wait(QUEUE, key, first - self.now))
            elif room > 0:
                eligible.append(key)
            else:
                throttled = True
                if self.spacing is not None and self.free_at.get(key, -inf) > self.now:
                    waits.append(Wait(QUEUE, key, self.free_at[key] - self.now))

        for _, key in request.looks:
            assert key is not None
            if len(eligible) < request.limit:
                visit(key)
        if request.is_walk:
            for key, again in order:
                if again and key >= stop:
                    break
                if len(visited) >= request.max_groups or len(eligible) >= request.limit:
                    over = False
                    break
                visited.append((key, again))
                visit(key)
        rows: list[dict[str, Any]] = []
        share = -(-request.limit // max(1, len(eligible)))
        rooms = {key: min(share, self._room(key)) for key in eligible}
        while len(rows) < request.limit and any(rooms.values()):
            for key in rooms:
                if rooms[key] and len(rows) < request.limit:
                    rooms[key] -= 1
                    if self.waiting[key] and self.waiting[key][0] <= self.now:
                        self.waiting[key].pop(0)
                        rows.append({"task_name": "work", "queue_name": QUEUE, "group_key": key})
                        self.running.append((self.now + self.lasts, key))
                        self.counts[key] += 1
                        self.started.append((self.now, key))
                        if self.spacing is not None:
                            self.free_at[key] = max(self.now, self.free_at.get(key, -inf)) + self.spacing
                    else:
                        rooms[key] = 0
        for key in eligible:
            if times := self.waiting[key]:
                if times[0] > self.now:
                    waits.append(Wait(QUEUE, key, times[0] - self.now))
                elif self.spacing is not None:
                    waits.append(Wait(QUEUE, key, self.free_at[key] - self.now))
                elif self._room(key) > 0 and request.is_walk:
                    over = False
                elif self._room(key) > 0:
                    waits.append(Wait(QUEUE, key, 0.0))
        over = over and len(rows) < request.limit
        last, again = visited[-1] if visited else (None, wrapped)
        ends = Cursor(start if last is None else last + "\x01", again, stop)
        cursors = [(QUEUE, 100, ends)] if request.is_walk else []
        return rows, Report(self.now, over, throttled, [], [], cursors, waits)

    # -- the worker ------------------------------------------------------------------------------

    def _places(self) -> Places:
        return Places(self.places - len(self.running), 0, 0, 0, len(self.running), 0, frozenset())

    def run(self, until: float) -> None:
        """Let the worker work up to this time; a claim may be in flight then."""
        while True:
            self._end_tasks()
            ends = max(self.now, min((at for at, _ in self.running), default=inf))
            answer, move = None, self.state.move
            if self.in_flight is not None:
                answer, at = self.in_flight
                if min(ends, at) > until:
                    self.now = max(self.now, until)
                    return
                if self.now < ends < at:
                    self.now = ends
                    continue
                self.now, self.in_flight = max(self.now, at), None
            elif isinstance(move, s.Claim) and not self.is_sent:
                if self.failures:
                    self.failures -= 1
                    self.eligible_since.clear()  # a task waits longer by each failure, which is not the plan's fault
                    answer = s.Failed(0.02)
                else:
                    rows, report = self._claim(move.request)
                    answer = s.Claimed(rows, report, self.now, STATEMENT_S)
                self.in_flight, self.is_sent = (answer, self.now + STATEMENT_S), True
                continue
            elif not isinstance(move, s.Wait):
                self.told.append(type(move))
                answer = s.Told()
            self.is_sent = False
            self.state, move = self.plan.next_move(self.state, answer, now=self.now, places=self._places, jitter=0.5)
            self._check_late()
            if isinstance(move, s.Wait):
                ends = max(self.now, min((at for at, _ in self.running), default=inf))
                wake = min(max(move.until, self.now), ends)
                if wake > until:
                    self.now = max(self.now, until)
                    return
                self.now = wake if not isclose(wake, self.now) else self.now + 1e-6

    def _check_late(self) -> None:
        has_room = len(self.running) < self.places
        for group, times in self.waiting.items():
            if has_room and times and times[0] <= self.now and self._room(group) > 0:
                since = self.eligible_since.setdefault(group, self.now)
                assert self.now - since < LATE_S, f"{group} has waited since {since}, it is {self.now}: {self.state}"
            else:
                self.eligible_since.pop(group, None)

    @property
    def left(self) -> int:
        return sum(map(len, self.waiting.values()))
