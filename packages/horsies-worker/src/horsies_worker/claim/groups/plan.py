"""What the claimer of grouped tasks does next. Pure: time, free places and a random number are passed in."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, Final, NamedTuple

from horsies_worker.claim.groups.state import (
    MAX_TIMERS,
    Answer,
    Claim,
    Claimed,
    Failed,
    LeaveDuty,
    Move,
    State,
    Stop,
    TellLimited,
    TellOthers,
    Told,
    Wait,
)
from horsies_worker.claim.settings import ClaimSettings, TaskKinds
from horsies_worker.claim.state import Places
from horsies_worker.database.grouped_claim import Group, GroupedRequest

MAX_GROUPS: Final = 100
"""How many groups a claim walks through, and how many tasks it takes at most: the queue is locked meanwhile, and a
statement of a hundred groups takes a few milliseconds."""
MAX_LOOKS: Final = 100
DRAINED_S: Final = 60.0
"""A drained worker waits for this long at a time; a resume wakes it."""
BUSY_S: Final = 0.004
"""Wait about this long when another worker claims from the same queue."""
FULL_S: Final = 0.1
"""A worker without room tells others of its groups this often."""
SHARE: Final = 10
"""After a walk through all groups that took nothing, wait for this many times its duration before the next."""
TOKEN_S: Final = 0.0005
"""Added to the time of a token, for the rounding of times."""

Decision = tuple[State, Move]


class _Now(NamedTuple):
    time: float
    places: Callable[[], Places]
    jitter: float


@dataclass(frozen=True, slots=True)
class GroupedPlan:
    settings: ClaimSettings
    kinds: TaskKinds

    def next_move(
        self, state: State, answer: Answer, *, now: float, places: Callable[[], Places], jitter: float
    ) -> Decision:
        """The state after this answer, and what to do next. `jitter`: a random number from 0 to 1."""
        state, move = self._decide(state, answer, _Now(now, places, jitter))
        return state._replace(move=move), move

    def _decide(self, state: State, answer: Answer, now: _Now) -> Decision:
        if state.is_stopped:
            return state, Stop()
        match answer:
            case Claimed():
                state = self._learn(state, answer, now)
                if state.place_left and not state.wants_claim:
                    return state._replace(place_left=False), TellLimited(self.settings.queues)
            case Failed():
                if isinstance(state.move, Claim):
                    state = state.with_looks(state.move.request.looks)
                state = state._replace(rest_until=now.time + answer.delay_s, is_walk=True, in_round=False)
            case Told() | None:
                pass
        return self._next(state, now)

    def _drained(self, state: State, now: _Now) -> Decision:
        """Claim nothing, and tell other workers of the places that come free here."""
        if now.time < state.rest_until:
            return state, Wait(state.rest_until)
        if state.looks:
            told = tuple(islice(state.looks, MAX_LOOKS))
            looks = {group: None for group in state.looks if group not in told}
            return state._replace(looks=looks), TellOthers(told)
        if state.place_left:
            return state._replace(place_left=False), TellLimited(self.settings.queues)
        return state, Wait(now.time + DRAINED_S)

    def _next(self, state: State, now: _Now) -> Decision:
        if state.is_drained:
            return self._drained(state, now)
        state = _with_due_looks(state, now.time)
        if now.time >= state.poll_at:
            # the poll is the safety net for everything that was not announced
            poll_at = now.time + self.settings.poll_s * (0.8 + 0.4 * now.jitter)
            state = state._replace(poll_at=poll_at, is_walk=True)
        may_walk = state.in_round or (state.is_walk and now.time >= state.walk_after)
        if not (may_walk or state.looks) or now.time < state.rest_until:
            return state, self._wait(state, now)
        places, limit = self._room(now.places())
        if limit <= 0:
            return self._without_room(state, now)
        request = self._request(state, places, limit, is_walk=may_walk, now=now)
        # What is wanted from here on, this claim may not see.
        looks = {group: None for group in state.looks if group not in request.looks} if request.looks else state.looks
        if may_walk and not state.in_round:
            state = state._replace(in_round=True, is_walk=False, walk_after=now.time)
        return state._replace(looks=looks, lacked_room=False, has_new_room=False, turn=state.turn + 1), Claim(request)

    def _wait(self, state: State, now: _Now) -> Wait:
        until = min(state.poll_at, state.next_timer)
        if state.looks or state.in_round:
            until = min(until, state.rest_until)
        elif state.is_walk:
            until = min(until, max(state.rest_until, state.walk_after))
        return Wait(max(until, state.rest_until, now.time))

    def _without_room(self, state: State, now: _Now) -> Decision:
        """A place that comes free leads to a claim; until then another worker may have room."""
        if now.time >= state.told_full_at + FULL_S:
            state = state._replace(told_full_at=now.time)
            if state.on_duty:
                return state, LeaveDuty()
            if state.looks:
                return state, TellOthers(tuple(islice(state.looks, MAX_LOOKS)))
        return state, Wait(state.poll_at)

    def _room(self, places: Places) -> tuple[Places, int]:
        """The places that may be filled, and how many tasks may be claimed in all."""
        settings, kinds = self.settings, self.kinds
        has_sync = bool(kinds.sync) and not places.buffered  # buffered tasks are older claims: free places are theirs
        has_async = bool(kinds.asynchronous) and not places.buffered
        places = places._replace(
            sync=places.sync if has_sync else 0,
            ahead=places.ahead if has_sync and settings.run_ahead else 0,
            asynchronous=places.asynchronous if has_async else 0,
        )
        limit = min(settings.max_batch, MAX_GROUPS, places.sync + places.ahead + places.asynchronous)
        if settings.max_per_worker is not None:
            limit = min(limit, settings.max_per_worker - places.owned)
        if places.unwritten >= 2 * settings.max_batch:
            limit = 0
        return places, limit

    def _request(self, state: State, places: Places, limit: int, *, is_walk: bool, now: _Now) -> GroupedRequest:
        sync, queues = self.kinds.sync, self.settings.queues
        first = state.turn % len(queues)
        turns = (*queues[first:], *queues[:first])
        return GroupedRequest(
            # with weights, the queue comes first that is furthest behind its share
            queues=tuple(state.sharing.order(turns)) if state.sharing.shares.weights else turns,
            # A walk finds them when it is their turn. If they came first, groups with many tasks, of which one ends or
            # is sent at any moment, would leave no places to the others.
            looks=() if is_walk else tuple(islice(state.looks, MAX_LOOKS)),
            is_walk=is_walk,
            cursors=state.cursors,
            max_groups=MAX_GROUPS,
            limit=limit,
            room_async=places.asynchronous,
            room_sync=places.sync,
            room_ahead=places.ahead,
            async_names=self.kinds.asynchronous,
            short_names=[name for name in sync if name in places.short] if places.ahead else (),
            sync_names=sync,
            expected_at=state.clock[0] + now.time - state.clock[1],
        )

    # -- what a claim taught -----------------------------------------------------------------------

    def _learn(self, state: State, answer: Claimed, now: _Now) -> State:
        rows, report = answer.rows, answer.report
        claim = state.move
        if not isinstance(claim, Claim):
            raise AssertionError(f"{claim} is no claim")
        request = claim.request
        is_full = len(rows) >= request.limit
        if state.sharing.shares.weights:
            taken = Counter(row["queue_name"] for row in rows)
            dry = () if is_full else [queue for queue in request.queues if not taken[queue]]
            state = state._replace(sharing=state.sharing.charged(taken, dry))
        state = state._replace(
            clock=(report.now, answer.sent_at),
            limited=frozenset(report.limited),
            lacked_room=not is_full and self._lacked_room(rows, request),
            duty_taken=state.duty_taken + len(rows),
            place_left=state.place_left and not rows,
        )
        state = _with_unanswered(state, answer, request, is_full=is_full)
        if state.lacked_room and state.has_new_room:
            state = state._replace(is_walk=True, lacked_room=False)
        state = self._with_timers(state, answer, now)
        if report.busy:
            state = state._replace(rest_until=now.time + BUSY_S * (0.5 + now.jitter))
        if request.is_walk:
            return self._after_walk(state, answer, now)
        if report.cursors:
            cursors = {(queue, priority): cursor.next_round() for queue, priority, cursor in report.cursors}
            state = state._replace(cursors={**state.cursors, **cursors})
        return state

    def _lacked_room(self, rows: Sequence[Mapping[str, Any]], request: GroupedRequest) -> bool:
        """Whether tasks of one kind may have been left because it had no place for them."""
        of_async = sum(row["task_name"] in self.kinds.async_set for row in rows)
        of_sync, room_sync = len(rows) - of_async, request.room_sync
        if len(request.short_names) == len(request.sync_names):
            room_sync += request.room_ahead
        return (bool(self.kinds.asynchronous) and of_async >= request.room_async) or (
            bool(self.kinds.sync) and of_sync >= room_sync
        )

    def _with_timers(self, state: State, answer: Claimed, now: _Now) -> State:
        """Wait for groups without a token, and for delayed tasks. A worker that is not on duty waits for the groups
        that it looked at itself: the one on duty finds all others in its walk."""
        looked: Mapping[Group, None] = dict.fromkeys(state.move.request.looks) if isinstance(state.move, Claim) else {}
        added = {
            (wait.queue, wait.key): now.time + max(0.0, wait.seconds) + TOKEN_S
            for wait in answer.report.waits
            if state.on_duty or (wait.queue, wait.key) in looked
        }
        if not added:
            return state
        timers = {**state.timers, **added}
        if len(timers) > MAX_TIMERS:
            timers = dict(sorted(timers.items(), key=lambda timer: timer[1])[:MAX_TIMERS])
        return state._replace(timers=timers, next_timer=min(state.next_timer, *added.values()))

    def _after_walk(self, state: State, answer: Claimed, now: _Now) -> State:
        """Go on, or end the walk: all groups were looked at since the last task was taken."""
        rows, report = answer.rows, answer.report
        cursors = dict(state.cursors)
        cursors.update({(queue, priority): cursor for queue, priority, cursor in report.cursors})
        round_s = state.round_s + answer.took_s
        is_over = report.is_over and not report.busy
        if is_over or rows:
            cursors = {pair: cursor.next_round() for pair, cursor in cursors.items()}
        state = state._replace(cursors=cursors, round_s=0.0 if is_over or rows else round_s, in_round=not is_over)
        if not is_over or rows:
            return state
        # (queue, priority) pairs of which nothing was reported have no tasks any more: forget them
        seen = {(queue, priority) for queue, priority, _ in report.cursors}
        state = state._replace(cursors={pair: cursor for pair, cursor in cursors.items() if pair in seen})
        return state if state.walk_after == -inf else state._replace(walk_after=now.time + SHARE * round_s)


def _with_unanswered(state: State, answer: Claimed, request: GroupedRequest, *, is_full: bool) -> State:
    """Look again at groups that were not looked at: the queue was busy, or there was no room for more. Those that got
    places come last."""
    again = [group for group in request.looks if is_full or group[0] in answer.report.busy]
    if not again:
        return state
    served = {(row["queue_name"], row["group_key"]) for row in answer.rows}
    first = dict.fromkeys(group for group in again if group not in served)
    return state._replace(looks={**first, **state.looks}).with_looks(again)


def _with_due_looks(state: State, now: float) -> State:
    """Look at the groups whose time has come."""
    if now < state.next_timer:
        return state
    due = [group for group, at in state.timers.items() if at <= now]
    timers = {group: at for group, at in state.timers.items() if at > now}
    state = state._replace(timers=timers, next_timer=min(timers.values(), default=inf))
    if any(key is None for _, key in due):  # a token of a shared limit is there, for any group of the queue
        state = state._replace(is_walk=True, walk_after=-inf)
    return state.with_looks(due)
