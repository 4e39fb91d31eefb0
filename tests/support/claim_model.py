"""A small model of a queue and a pool in simulated time, against which the claimer's plan is played.

Each statement takes a moment and sees the tasks as they were at its beginning, so that what happens meanwhile reaches
the plan as a wake-up beside a move in flight. Every change is announced as the database and the pool announce it.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from horsies_worker.claim.hints import Scan
from horsies_worker.claim.plan import Decision, Plan
from horsies_worker.claim.settings import ClaimSettings, TaskKinds
from horsies_worker.claim.sharing import Shares
from horsies_worker.claim.state import (
    Aged,
    Answer,
    AskAged,
    AskDue,
    Claim,
    Claimed,
    Drain,
    DutyOffered,
    Failed,
    GoToSleep,
    IsAsleep,
    IsAwake,
    LeaveDuty,
    Move,
    Places,
    Rest,
    StartBuffer,
    Started,
    State,
    StayAwake,
    Stop,
    Wait,
)  # fmt: skip
from horsies_worker.database.queries import ClaimRequest, Head, Hint, NextRequest, Outlook

BASE = datetime(2024, 1, 1, tzinfo=UTC)
STATEMENT_S = 0.004
SLOW_SCAN_S = 0.2
WRITE_S = 0.002
QUEUES = ("mail", "video")


@dataclass
class Task:
    id: int
    name: str
    queue: str
    priority: int
    ready_at: float
    status: str = "PENDING"
    claimable_s: float = 0.0
    """How long it could have been claimed or started, and was not."""

    @property
    def row(self) -> dict[str, Any]:
        return {
            "id": self.id, "task_name": self.name, "queue_name": self.queue, "priority": self.priority,
            "enqueued_at": BASE + timedelta(seconds=self.ready_at), "status": self.status, "is_workflow_task": False,
        }  # fmt: skip


@dataclass
class World:
    settings: ClaimSettings
    sync: int = 0
    asynchronous: int = 0
    task_s: float = 0.02
    jitter: Callable[[], float] = lambda: 0.5
    now: float = 0.0
    state: State = field(default_factory=lambda: State(duty_since=0.0))
    tasks: list[Task] = field(default_factory=list)
    owned: set[int] = field(default_factory=set)
    paused: set[str] = field(default_factory=set)
    failures: int = 0
    """So many of the next statements fail."""
    slow_scans: int = 0
    """So many of the next scans take `SLOW_SCAN_S`."""
    others_wait: bool = False
    """Another worker waits for the duty; it takes all ready tasks, and leaves after a while."""
    is_awake: bool = False
    """Tasks are sent without notifications."""
    shares: Shares = field(default_factory=Shares)
    started_in: list[str] = field(default_factory=list)
    """The queues of the tasks that were taken, in order."""
    offers: int = 0
    statements: int = 0
    wakeups: int = 0
    latest_s: float = 0.0
    """The longest time for which a task could have been claimed or started, and was not."""
    moves: list[Move] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.plan = Plan(self.settings, TaskKinds.of(["add"] * bool(self.sync), ["poll"] * bool(self.asynchronous)))
        self.state = self.state.with_shares(self.shares)
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._answer: Answer = None
        self._started: set[int] = set()

    # -- what happens outside ------------------------------------------------------------------------

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (time, next(self._numbers), action))

    def change(self, state: State) -> None:
        self.wakeups += 1
        self.state = state

    def send(
        self, name: str, queue: str = "mail", priority: int = 100, delay_s: float = 0.0, *, copies: int = 1
    ) -> None:
        """Tasks of one transaction, of which one notification tells."""
        for _ in range(copies):
            self.tasks.append(Task(next(self._numbers), name, queue, priority, self.now + delay_s))
        self.wakeups += delay_s > 0  # it wakes the claimer a second time
        if not self.state.on_duty:
            self.at(self.now + delay_s, self._other_takes_all)
        elif self.is_awake:
            self.wakeups += 1
        else:
            self.change(self.state.with_news())

    def set_paused(self, queue: str, paused: bool) -> None:
        (self.paused.add if paused else self.paused.discard)(queue)
        if self.state.on_duty:
            self.change(self.state.with_queue_state())
        else:
            self._other_takes_all()

    def _other_takes_all(self) -> None:
        """Another worker is on duty and has room for everything."""
        for task in self._ready() if not self.state.on_duty else ():
            if task.queue not in self.paused and task.name != "ghost":
                task.status = "ENDED"

    def _other_leaves(self) -> None:
        self._other_takes_all()
        self.change(self.state.with_duty(self.now))

    def rival_takes(self) -> None:
        """Another worker takes the first ready task, which ends there a little later."""
        if ready := self._ready():
            ready[0].status = "ELSEWHERE"
            self.at(self.now + self.task_s, lambda: self._rival_ends(ready[0]))

    def _rival_ends(self, task: Task) -> None:
        task.status = "ENDED"
        if self.settings.has_caps:
            self.change(self.state.with_place_freed())

    def _ends(self, task: Task) -> None:
        task.status = "WRITING"
        self.change(self.state.with_room(buffered=bool(self._buffered())))
        self.at(self.now + WRITE_S, lambda: self._written(task))

    def _written(self, task: Task) -> None:
        task.status = "ENDED"
        self.owned.discard(task.id)
        if self.settings.has_caps:
            self.change(self.state.with_scan_wanted())
        else:
            self.change(self.state.with_room(buffered=bool(self._buffered())))

    # -- what there is -------------------------------------------------------------------------------

    def _ready(self) -> list[Task]:
        found = [task for task in self.tasks if task.status == "PENDING" and task.ready_at <= self.now]
        return sorted(found, key=lambda task: (task.priority, task.ready_at, task.id))

    def _buffered(self) -> list[Task]:
        return [task for task in self.tasks if task.status == "CLAIMED"]

    def _free(self, name: str) -> int:
        return self.places().sync if name == "add" else self.places().asynchronous

    def places(self) -> Places:
        running = [task.name for task in self.tasks if task.status == "RUNNING"]
        sync, asynchronous = self.sync - running.count("add"), self.asynchronous - running.count("poll")
        return Places(sync, 0, asynchronous, len(self._buffered()), len(self.owned), 0, frozenset())

    def _has_room(self) -> bool:
        places, limit = self.places(), self.settings.max_per_worker
        is_below = limit is None or places.owned < limit
        return places.sync + places.asynchronous > 0 and not places.buffered and is_below

    def is_capped(self) -> bool:
        cap = self.settings.cluster_cap
        busy = sum(task.status in ("CLAIMED", "RUNNING", "WRITING", "ELSEWHERE") for task in self.tasks)
        return cap is not None and busy >= cap

    def is_claimable(self, task: Task) -> bool:
        if task.status == "CLAIMED":
            return self._free(task.name) > 0
        limit = self.settings.max_per_worker
        return (
            task.status == "PENDING"
            and task.name in self.plan.kinds.known
            and task.ready_at <= self.now
            and task.queue not in self.paused
            and self.state.on_duty  # else another worker takes it
            and not self.is_capped()
            and not self._buffered()
            and self._free(task.name) > 0
            and (limit is None or len(self.owned) < limit)
        )

    # -- the claimer ---------------------------------------------------------------------------------

    def run(self, until: float) -> None:
        """Play the plan until this time, or until it ends."""
        while self.now < until and not isinstance(self.state.move, Stop):
            jitter = self.jitter()
            decided = self._decide(self.state, jitter)
            if self.state.on_duty:
                _check_news(decided, self._decide(self.state.with_news(), jitter))
                _check_queue_state(*self._decide(self.state.with_queue_state(), jitter))
            self.state, move = decided
            self.moves.append(move)
            self._answer = self._carry_out(move, until)

    def _decide(self, state: State, jitter: float) -> Decision:
        return self.plan.next_move(state, self._answer, now=self.now, places=self.places, jitter=jitter)

    def _carry_out(self, move: Move, until: float) -> Answer:
        if isinstance(move, Stop):
            return None
        assert not isinstance(move, Drain)
        if isinstance(move, LeaveDuty | StayAwake | GoToSleep):
            return self._change_duty(move)
        if isinstance(move, Wait | Rest):
            before = self.state
            while self.state is before and self.now < min(move.until, until):
                began, has_room = self.now, self._has_room()
                self._pass(min(move.until, until), one=True)
                if self.state is before and has_room and before.full_since is not None:
                    assert self.now - began < MAX_LATE_S, "it has room, and waits for no turn on duty"
            return None
        self.statements += 1
        if self.failures:
            self.failures -= 1
            self.wakeups += 1
            self._pass(self.now + STATEMENT_S)
            return Failed(0.05)
        answer = self._snapshot(move)
        if isinstance(answer, Claimed) and isinstance(move, Claim) and move.scan is not Scan.HINTED and self.slow_scans:
            self.slow_scans -= 1
            answer = answer._replace(took_s=SLOW_SCAN_S)
        self._pass(self.now + (answer.took_s if isinstance(answer, Claimed) else STATEMENT_S))
        if isinstance(answer, Claimed | Started):
            self._start()
        return answer

    def _change_duty(self, move: LeaveDuty | StayAwake | GoToSleep) -> Answer:
        """On another connection. Notifications stop at the earliest and begin at the latest moment that is possible."""
        self.is_awake = self.is_awake or isinstance(move, StayAwake)
        self._pass(self.now + STATEMENT_S)
        match move:
            case LeaveDuty():
                self.offers += 1
                if self.others_wait and self.state.on_duty:
                    self.is_awake = False
                    self.at(self.now, self._other_takes_all)
                    self.at(self.now + 0.3, self._other_leaves)
                return DutyOffered(self.others_wait)
            case StayAwake():
                return IsAwake()
            case GoToSleep():
                self.is_awake = False
                return IsAsleep()

    def _snapshot(self, move: Claim | StartBuffer | AskDue | AskAged) -> Answer:
        match move:
            case AskAged():
                heads: dict[tuple[str, int], Head] = {}
                for task in self._ready():
                    if task.queue in move.queues and task.queue not in self.paused:
                        head = Head(task.queue, task.priority, task.row["enqueued_at"], self.now - task.ready_at)
                        heads.setdefault((task.queue, task.priority), head)
                return Aged(sorted(heads.values(), key=lambda head: head.since))
            case StartBuffer():
                for task in self._buffered():
                    if self._free(task.name) > 0:
                        task.status = "RUNNING"
                return Started(is_blocked=False)
            case AskDue():
                coming = [
                    task.ready_at - self.now
                    for task in self.tasks
                    if task.status == "PENDING" and task.ready_at > self.now - move.since_s
                    and task.queue in move.queues and task.queue not in self.paused and task.name in move.names
                ]  # fmt: skip
                return Outlook(min(coming, default=None), BASE + timedelta(seconds=self.now), False)
            case Claim():
                rows = [] if self.is_capped() else self._take(move.request)
                return Claimed(rows, not rows and self.is_capped(), self.now, STATEMENT_S)

    def _take(self, request: ClaimRequest | NextRequest) -> Sequence[dict[str, Any]]:
        hints: Sequence[Hint]
        if isinstance(request, NextRequest):
            assert self.places().sync + self.places().asynchronous >= request.limit > 0
            hints, room = (request.hint,), dict.fromkeys(request.names or request.known, request.limit)
            ready = [task for task in self._ready() if task.name in request.known and task.queue not in self.paused]
            prefetch, seen = 0, [task for task in ready if _is_at(task, hints)][: request.limit]
        else:
            self._check_room(request)
            room = {"add": request.room_sync, "poll": request.room_async}
            floor, discover = request.floor or datetime.min.replace(tzinfo=UTC), request.discover
            ready = [task for task in self._ready() if task.name in (*request.sync_names, *request.async_names)]
            seen = [
                task
                for task in ready
                if task.queue not in self.paused
                if _is_at(task, request.hints) or (task.queue in discover and task.row["enqueued_at"] >= floor)
            ]
            prefetch = request.prefetch
        cap = self.settings.cluster_cap
        busy = sum(task.status in ("CLAIMED", "RUNNING", "WRITING", "ELSEWHERE") for task in self.tasks)
        limit = request.limit if cap is None else min(request.limit, cap - busy)
        taken: list[Task] = []
        for task in seen:
            if len(taken) == limit:
                break
            if room.get(task.name, 0) > 0:
                room[task.name] -= 1
                task.status = "RUNNING"
            elif prefetch:
                prefetch -= 1
                task.status = "CLAIMED"
            else:
                continue
            taken.append(task)
        since = {(task.queue, task.priority): task.row["enqueued_at"] for task in reversed(seen)}
        self.owned |= {task.id for task in taken}
        self.started_in += [task.queue for task in taken]
        return [{**task.row, "since": since[task.queue, task.priority]} for task in taken]

    def _check_room(self, request: ClaimRequest) -> None:
        free, settings = self.places(), self.settings
        assert request.room_sync <= free.sync
        assert request.room_async <= free.asynchronous
        assert request.prefetch <= max(0, settings.prefetch - free.buffered)
        assert not free.buffered or request.room_sync == request.room_async == 0, "buffered tasks come first"
        assert 0 < request.limit <= request.room_sync + request.room_async + request.prefetch
        assert settings.max_per_worker is None or request.limit <= settings.max_per_worker - free.owned
        assert request.discover or request.hints

    def _start(self) -> None:
        """Tasks that were claimed or started now run, and end after a while."""
        running = [task for task in self.tasks if task.status == "RUNNING"]
        for task in running:
            if task.id not in self._started:
                self._started.add(task.id)
                self.at(self.now + self.task_s, lambda task=task: self._ends(task))

    # -- time ----------------------------------------------------------------------------------------

    def _pass(self, until: float, *, one: bool = False) -> None:
        """Let time pass, and events happen, until then; with `one`, only until the next moment at which any happens."""
        while True:
            coming = min(self._later[0][0] if self._later else until, until)
            coming = min([coming, *(task.ready_at for task in self.tasks if self.now < task.ready_at < coming)])
            for task in self.tasks:
                task.claimable_s = task.claimable_s + coming - self.now if self.is_claimable(task) else 0.0
                self.latest_s = max(self.latest_s, task.claimable_s)
                assert task.claimable_s < MAX_LATE_S, f"{task} could have been claimed since {task.claimable_s} s"
            self.now = max(self.now, coming)
            while self._later and self._later[0][0] <= self.now:
                heapq.heappop(self._later)[2]()
            if self.now >= until or one:
                return


# -- what each decision must keep --------------------------------------------------------------------------------


def _check_news(without: Decision, decided: Decision) -> None:
    """A notification that came just before this decision is either still to be answered, or answered by this move: by a
    scan, or by a claim of one task more than `without` it."""
    (state, move), (other, other_move) = decided, without
    if isinstance(move, Stop) or not state.on_duty:  # the worker on duty has heard it too
        return
    is_scan = isinstance(move, Claim) and move.scan is not Scan.HINTED
    if state.is_woken:  # the round goes on
        assert state.has_news, move
        assert is_scan or state.hints.scan_wanted or state.announced > other.announced, move
    else:  # a new one has begun
        assert state.by_news, move
        assert is_scan or state.hints.scan_wanted or _announced(move) > _announced(other_move), move


def _announced(move: Move) -> int:
    return move.announced if isinstance(move, Claim) else 0


def _check_queue_state(state: State, move: Move) -> None:
    """Queues that were paused or resumed just before this decision are scanned now, or will be."""
    if not isinstance(move, Stop) and state.on_duty:
        is_scan = isinstance(move, Claim) and move.scan is Scan.FULL
        assert is_scan or state.hints.scan_wanted, move


MAX_LATE_S = 0.5
"""A forgotten wake-up makes a task late by the poll interval, which is a minute in the tests. Allowed are a calm wait,
the herd delay, the wait before the next question for a due time, and the delay after a failure."""


def _is_at(task: Task, hints: Sequence[Hint]) -> bool:
    row = task.row
    return any(
        (task.queue, task.priority) == (hint.queue_name, hint.priority) and row["enqueued_at"] >= hint.since
        for hint in hints
    )
