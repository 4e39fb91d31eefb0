"""What the claimer does next. Pure: time, free places and a random number are passed in.

The claimer works in rounds. A wake-up, or the end of a wait, begins one; it claims until there is no room or the queues
are empty, and ends in a wait: until the next delayed task is due, or at most for the poll interval.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from math import inf
from typing import Any, Final, NamedTuple

from horsies_worker.claim.hints import Hints, Scan
from horsies_worker.claim.requests import Requests
from horsies_worker.claim.settings import ClaimSettings, TaskKinds
from horsies_worker.claim.sharing import ASK_OFTEN_S
from horsies_worker.claim.state import (
    Aged,
    Answer,
    AskAged,
    AskDue,
    Claim,
    Claimed,
    Drain,
    Drained,
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
)
from horsies_worker.claim.turns import Turns
from horsies_worker.database.queries import ClaimRequest, Hint, NextRequest, Outlook

CALM_S: Final = 0.050
"""After taking the announced tasks, wait this long before scanning for more. A worker that is sent one task at a time
saves two statements for each. At 5 ms, a round trip that took longer was made slower still by those two."""
FRUITLESS: Final = 3
"""After this many notifications without a task for this worker, wait a few random milliseconds: others are faster."""
HERD_S: Final = 0.010
DUE_EVERY_S: Final = 0.25
"""A worker whose notifications are fruitless asks this often when its next delayed task is due."""
SEEN_S: Final = 0.020
"""Added to the time since the last scan was sent: the question may reach the server later than the scan did."""
BLOCKED_S: Final = 0.1
"""Wait this long when another session holds the row of a buffered task."""
TURN_S: Final = 10.0
"""A worker that took tasks offers the duty to the next one after this time: otherwise one would get all the work. It
hands over sooner when it has no room. A turn of 1 s kept no worker warm: 32 of them opened a connection for each."""
FULL_S: Final = 0.020
"""A worker without room keeps the duty for this long, unless it hears of another task: short tasks end sooner."""
OFFER_EVERY_S: Final = 0.1
"""A worker without room offers the duty this often, while no other worker waits for it; one that has room for some
kinds of task ten times less often."""
DRAINED_S: Final = 60.0
"""A drained worker waits for this long at a time; a resume wakes it."""
STREAK: Final = 3
"""After this many claims in a row that took several tasks, the worker stays awake: producers leave out notifications,
which cost them more than the three statements cost this worker."""


class _Now(NamedTuple):
    time: float
    places: Callable[[], Places]
    jitter: float


Decision = tuple[State, Move]


@dataclass(frozen=True, slots=True)
class Plan:
    settings: ClaimSettings
    kinds: TaskKinds
    _requests: Requests = field(init=False)
    _turns: Turns = field(init=False)

    def __post_init__(self) -> None:
        requests = Requests(self.settings, self.kinds)
        object.__setattr__(self, "_requests", requests)
        object.__setattr__(self, "_turns", Turns(requests))

    def next_move(
        self, state: State, answer: Answer, *, now: float, places: Callable[[], Places], jitter: float
    ) -> Decision:
        """The state after this answer, and what to do next. `places` is called only by a decision that needs it: the
        pool counts them anew each time. `jitter`: a random number from 0 to 1."""
        state, move = self._decide(state, answer, _Now(now, places, jitter))
        return (state if state.move is move else state._replace(move=move)), move

    def _decide(self, state: State, answer: Answer, now: _Now) -> Decision:
        if state.is_stopped:
            return state, Stop()
        if state.is_drained or isinstance(answer, Drained):
            return self._drained(state, answer, now)
        match answer:
            case None:
                return self._after_wait(state, now)
            case Claimed():
                return self._after_claim(state, answer, now)
            case Outlook():
                return self._after_outlook(state, answer, now)
            case Aged():
                return self._after_aged(state, answer, now)
            case DutyOffered():
                return self._after_offer(state, answer, now)
            case IsAwake():
                return self._claim(state._replace(is_awake=True), now)
            case IsAsleep():
                return self._prepare(state._replace(is_awake=False, streak=0, hints=state.hints.want_scan()), now)
            case Started():
                return self._claim(state._replace(is_blocked=answer.is_blocked), now)
            case Failed():
                state = state._replace(hints=state.hints.forget())
                return state, Rest(now.time + answer.delay_s)

    def _drained(self, state: State, answer: Answer, now: _Now) -> Decision:
        """Leave once, then claim nothing until the worker is resumed."""
        if isinstance(answer, Drained):
            state = state._replace(has_left=answer.has_resigned)
            state = state.without_duty() if answer.in_line else state
        if isinstance(answer, Failed):
            return state, Rest(now.time + answer.delay_s)
        if isinstance(state.move, Rest) and now.time < state.move.until:
            return state, state.move
        if not state.is_drained:  # resumed while it left
            return self._begin(state._replace(has_left=False), now)
        if not state.has_left:
            return state, Drain()
        return state, Wait(now.time + DRAINED_S)

    def _after_wait(self, state: State, now: _Now) -> Decision:
        move = state.move
        if isinstance(move, Rest):
            return (state, move) if now.time < move.until else self._begin(state, now)
        if not isinstance(move, Wait):
            raise AssertionError(f"{move} needs an answer")
        if state.place_freed and state.capped_until is not None:
            if now.time < state.capped_until:
                move = move._replace(until=min(move.until, state.capped_until))
            else:
                state = state._replace(place_freed=False).with_scan_wanted()
        if not state.is_woken:
            if now.time < move.until:
                return state, move
            # the poll is the safety net for everything that was not announced
            state = state._replace(hints=state.hints.want_scan())
        if state.fruitless >= FRUITLESS:
            return state, Rest(now.time + HERD_S * (1 + now.jitter) / 2)
        return self._begin(state, now)

    def _begin(self, state: State, now: _Now) -> Decision:
        """Begin a round: with a claim of the announced tasks where that may be enough, else with everything."""
        announced, hints, move = state.announced, state.hints, state.move
        if announced:
            request = None
            if state.is_idle and state.fruitless < FRUITLESS and hints.may_put_off(now.time):
                # The queues were empty, and each notification stands for one task, probably where the last one was.
                places, limit = self._requests.room(hints, now.places(), is_fresh=False)
                request = self._requests.repeat(hints, places, min(limit, announced + 1))
            if request is None:
                hints = hints.want_scan()
            else:
                move = Claim(request, announced=announced)
                if hints.put_off_at is None:
                    hints = hints._replace(put_off_at=now.time)
        state = state._replace(
            move=move, hints=hints, is_woken=False, has_news=False, announced=0, has_new_room=False,
            taken=0, by_news=state.has_news, is_blocked=False,
        )  # fmt: skip
        return (state, move) if isinstance(move, Claim) else self._prepare(state, now)

    def _prepare(self, state: State, now: _Now) -> Decision:
        if self._has_buffered(now):
            return state, StartBuffer()
        return self._claim(state, now)

    def _has_buffered(self, now: _Now) -> bool:
        return self.settings.prefetch > 0 and now.places().buffered > 0

    def _claim(self, state: State, now: _Now) -> Decision:
        """Claim as much as there is room for; without room, end the round."""
        hints = state.hints
        if not hints.are_fresh(now.time) and (hints.no_sync or hints.no_async):
            hints = hints._replace(no_sync=False, no_async=False)
            state = state._replace(hints=hints)
        places, limit = self._room(state, now)
        if limit <= 0:
            full_since = now.time if state.full_since is None else state.full_since
            if self._found_nothing(hints, now):
                full_since = None  # the limit is 0 because no task is there: this worker can take a turn on duty
            return self._end(state._replace(full_since=full_since), now)
        if state.full_since is not None:
            state = state._replace(full_since=None)
        if state.sharing.wants_aged(now.time):
            return state, AskAged(tuple(state.sharing.shares.ageing))
        if state.sharing.is_split:
            state, move = self._turns.next_claim(state, places, limit, now.time)
            return (state, move) if move is not None else self._claim(state, now)
        scan = hints.next_scan(now.time)
        state = state.without_place_freed()
        if scan is Scan.HINTED:
            repeated = self._requests.repeat(hints, places, limit) if len(hints.pairs) == 1 else None
            return state, Claim(repeated or self._request(state, places, limit, hints=tuple(hints.pairs.values())))
        state = state._replace(hints=hints.begin(scan))
        floor = hints.floor if scan is Scan.FLOOR else None
        return state, Claim(self._request(state, places, limit, discover=self.settings.queues, floor=floor), scan)

    def _found_nothing(self, hints: Hints, now: _Now) -> bool:
        """Whether the last scan found no task of any kind, and still holds."""
        has_none = (hints.no_sync or not self.kinds.sync) and (hints.no_async or not self.kinds.asynchronous)
        return has_none and hints.are_fresh(now.time)

    def _after_aged(self, state: State, answer: Aged, now: _Now) -> Decision:
        """Claim the tasks that have waited for long, if there are any."""
        sharing = state.sharing
        places, limit = self._room(state, now)
        head = sharing.oldest(answer.heads)
        if head is None or limit <= 0:
            return self._claim(state._replace(sharing=sharing.after_none(answer.heads, now.time)), now)
        hint = Hint(head.queue_name, head.priority, head.since)
        request = self._request(state, places, min(limit, int(sharing.credit)), hints=(hint,))
        return state, Claim(request, is_aged=True)

    def _after_aged_claim(self, state: State, answer: Claimed, now: _Now) -> Decision:
        """These tasks say nothing of where the next ones by priority are."""
        taken = len(answer.rows)
        sharing = state.sharing.charged(Counter(row["queue_name"] for row in answer.rows))
        # without a task, it may need a place of another kind, or other workers lock it
        ask_at = now.time + ASK_OFTEN_S if not taken else sharing.ask_at
        sharing = sharing._replace(credit=max(0.0, sharing.credit - taken), ask_at=ask_at)
        return self._claim(state._replace(sharing=sharing, taken=state.taken + taken), now)

    def _room(self, state: State, now: _Now) -> tuple[Places, int]:
        return self._requests.room(state.hints, now.places(), is_fresh=state.hints.are_fresh(now.time))

    def _request(self, state: State, places: Places, limit: int, **where: Any) -> ClaimRequest:
        return self._requests.build(places, limit, was_full=state.was_full, **where)

    def _after_claim(self, state: State, answer: Claimed, now: _Now) -> Decision:
        claim, rows = state.move, answer.rows
        if not isinstance(claim, Claim):
            raise AssertionError(f"{claim} is no claim")
        request = claim.request
        state = state._replace(duty_taken=state.duty_taken + len(rows), streak=state.streak + 1 if len(rows) > 1 else 0)
        if claim.is_aged:
            return self._after_aged_claim(state, answer, now)
        if claim.queue is not None:
            state = self._turns.learn(state, claim, answer, now.time)
            return (state, StayAwake()) if self._should_stay_awake(state) else self._claim(state, now)
        if isinstance(request, NextRequest):
            hints = state.hints.learn_next(rows) if rows else state.hints
        else:
            hints = state.hints.learn(rows, claim.scan, self.kinds, took_s=answer.took_s, now=now.time)
        if state.sharing.shares.weights or state.sharing.shares.ageing:
            state = self._with_taken(state, rows)
        if claim.announced:
            # only without caps, hence no place to look for
            state = state._replace(hints=hints, taken=len(rows), sent_at=answer.sent_at)
            if self._should_stay_awake(state):
                return state._replace(hints=hints.want_scan()), StayAwake()
            if len(rows) == claim.announced < request.limit and not state.is_awake:
                until = min(now.time + CALM_S, max(now.time, state.due_at))
                return self._wait(state, Wait(until, is_calm=True), now)
            return self._prepare(state._replace(hints=hints.want_scan()), now)
        state = state.with_claimed(answer)._replace(hints=hints)
        wanted = request.limit
        if isinstance(request, ClaimRequest) and claim.scan is not Scan.HINTED and not state.was_full:
            hints = self._learn_kinds(hints, request, rows)
            state = state._replace(hints=hints)
            if not rows:
                return self._end(state, now, scanned=request)
            # Another scan for the kind that is not there would take as little again, and so would all after it: each
            # costs the server twice as much as a claim of more tasks like these.
            if hints.no_sync is not hints.no_async:
                wanted = min(wanted, request.room_async if hints.no_sync else request.room_sync + request.room_ahead)
        was_full = len(rows) == wanted
        state = state._replace(was_full=was_full)
        if was_full and state.sharing.is_quiet:
            state = state._replace(sharing=state.sharing.next_round())
        if not was_full:
            # A short answer does not mean empty queues: the hinted pairs may be empty, or others may hold rows.
            state = state._replace(hints=state.hints.want_scan())
            if not rows and (wait_s := state.hints.wait_s(now.time)) is not None:
                return self._end(state, now, wait_s=wait_s)
        if self._should_stay_awake(state):
            return state, StayAwake()
        return self._claim(state, now)

    def _with_taken(self, state: State, rows: Sequence[Mapping[str, Any]]) -> State:
        taken = Counter(row["queue_name"] for row in rows)
        return state._replace(sharing=state.sharing.charged(taken).credited(len(rows), self.settings.max_batch))

    def _should_stay_awake(self, state: State) -> bool:
        return state.streak >= STREAK and state.on_duty and not (state.is_awake or state.needs_news)

    def _learn_kinds(self, hints: Hints, request: ClaimRequest, rows: Sequence[Mapping[str, Any]]) -> Hints:
        """Of which kinds there is nothing: the scan could have taken more than it found. A kind without room was not
        looked for, and a cap holds tasks back that are there all the same."""
        is_short = len(rows) < request.limit and self._requests.may_repeat
        of_async = sum(row["task_name"] in self.kinds.async_set for row in rows)
        no_sync, no_async = hints.no_sync, hints.no_async
        if request.room_async:
            no_async = is_short and of_async < request.room_async
        if request.room_sync:
            no_sync = is_short and len(rows) - of_async < request.room_sync
        return hints._replace(no_sync=no_sync, no_async=no_async)

    # -- the end of a round ----------------------------------------------------------------------

    def _end(
        self, state: State, now: _Now, *, scanned: ClaimRequest | None = None, wait_s: float | None = None
    ) -> Decision:
        """`scanned`: the scan of all pairs that found nothing. `wait_s`: the time until a wanted scan is allowed; the
        pairs of the last tasks had none."""
        hints, kinds = state.hints, self.kinds
        is_known = scanned is not None or hints.are_fresh(now.time)
        has_sync = not kinds.sync or (is_known and hints.no_sync)
        has_async = not kinds.asynchronous or (is_known and hints.no_async)
        if scanned is not None:
            has_sync = has_sync or scanned.room_sync + scanned.prefetch > 0
            has_async = has_async or scanned.room_async + scanned.prefetch > 0
        is_idle = has_sync and has_async
        state = state._replace(is_idle=is_idle)
        if state.sharing.shares.weights and not is_idle:
            state = state._replace(sharing=state.sharing.next_round())
        if state.is_blocked:
            return self._wait(state, Wait(now.time + BLOCKED_S), now)
        if state.is_awake and state.full_since is None:
            return state, GoToSleep()
        names = [*(kinds.sync if has_sync else ()), *(kinds.asynchronous if has_async else ())]
        if wait_s is not None:
            # the scan may be seconds away: what is delayed, such as a retry, is due sooner, and probably of these pairs
            names = [*kinds.sync, *kinds.asynchronous]
        elif scanned is None:
            names = []
        if not names or not state.on_duty:
            return self._wait(state, Wait(self._poll(state, now, wait_s)), now)
        asked_until = state.due_asked_at + DUE_EVERY_S
        if (state.fruitless >= FRUITLESS or not is_idle) and now.time < min(state.due_at, asked_until):
            return self._wait(state, Wait(min(state.due_at, asked_until)), now)
        # tasks that wait for a place under a cap were seen, and must not lead to one claim after the other
        since_s = now.time - state.sent_at + SEEN_S if state.capped_until is None else 0.0
        is_partial = scanned is None or not is_idle
        return state._replace(due_asked_at=now.time), AskDue(self.settings.queues, names, since_s, is_partial)

    def _after_outlook(self, state: State, answer: Outlook, now: _Now) -> Decision:
        if not isinstance(state.move, AskDue):
            raise AssertionError(f"{state.move} asks for no due time")
        hints = state.hints
        if not state.move.is_partial and state.capped_until is None:
            # else tasks that wait for a place would be left behind the floor
            scanned_at = answer.asked_at - timedelta(seconds=now.time - state.sent_at)
            hints = hints.found_nothing(scanned_at, is_crowded=answer.is_crowded)
        due_at = inf if answer.due_s is None else now.time + max(0.0, answer.due_s)
        state = state._replace(hints=hints, due_at=due_at)
        until = self._poll(state, now, hints.wait_s(now.time))
        if due_at < until:
            state = state._replace(hints=hints.want_scan())  # it may be of another pair than the hinted ones
        return self._wait(state, Wait(until), now)

    def _poll(self, state: State, now: _Now, wait_s: float | None) -> float:
        """The end of a wait without wake-ups."""
        until = now.time + self.settings.poll_s * (0.8 + 0.4 * now.jitter)
        if wait_s is not None:
            until = min(until, now.time + wait_s)
        if state.due_at >= now.time:
            # a few random milliseconds later, or every worker of the fleet wakes for the same task
            until = min(until, state.due_at + 0.001 + 0.003 * now.jitter)
        return until

    def _wait(self, state: State, wait: Wait, now: _Now) -> Decision:
        """End the round. Room that came meanwhile matters where tasks may be left, or wait in the buffer."""
        needs_room = state.has_new_room and (not state.is_idle or self._has_buffered(now))
        if state.on_duty and not (needs_room or wait.is_calm or state.is_blocked):
            offer_at = self._offer_at(state)
            if now.time >= offer_at:
                return state, LeaveDuty()
            if state.full_since is not None:
                wait = Wait(min(wait.until, offer_at))
        fruitless = 0 if state.taken else state.fruitless + state.by_news
        is_woken = state.is_woken or needs_room
        state = state._replace(move=wait, is_woken=is_woken, has_new_room=False, fruitless=fruitless)
        return self._after_wait(state, now)

    def _offer_at(self, state: State) -> float:
        """When to offer the duty to another worker: it may have room where this one has none."""
        is_fruitless = state.by_news and not state.taken
        if state.full_since is not None:
            # another task is there, or probably is
            is_pressing = is_fruitless or state.is_woken or state.was_full
            at = state.full_since + (0.0 if is_pressing else FULL_S)
        elif is_fruitless and not state.is_idle:
            at = -inf  # what was announced is probably of a kind that has no room here
        else:
            at = state.duty_since + TURN_S if state.duty_taken else inf
        return max(at, state.leave_after)

    def _after_offer(self, state: State, answer: DutyOffered, now: _Now) -> Decision:
        if answer.is_taken:
            state = state.without_duty()
        else:
            is_full = state.full_since is not None
            pause_s = OFFER_EVERY_S if is_full else 10 * OFFER_EVERY_S
            state = state._replace(leave_after=now.time + pause_s, duty_since=now.time, duty_taken=0)
            if is_full and not (state.is_awake or state.needs_news):
                return state, StayAwake()  # it cannot take what would be announced
        if state.due_at <= now.time:  # a delayed task became ready meanwhile
            return self._prepare(state._replace(hints=state.hints.want_scan()), now)
        return self._wait(state, Wait(self._poll(state, now, state.hints.wait_s(now.time))), now)
