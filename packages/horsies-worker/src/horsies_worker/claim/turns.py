"""Claims of one queue at a time, where queues share the places of a worker by weights (`sharing.py`). Pure."""

from dataclasses import dataclass

from horsies_worker.claim.hints import Scan
from horsies_worker.claim.requests import Requests
from horsies_worker.claim.state import Claim, Claimed, Places, StartBuffer, State
from horsies_worker.database.queries import ClaimRequest


@dataclass(frozen=True, slots=True)
class Turns:
    requests: Requests

    def next_claim(
        self, state: State, places: Places, limit: int, now: float
    ) -> tuple[State, Claim | StartBuffer | None]:
        """Claim from the queue that is furthest behind its share, at the hinted pairs or in all of the queue. None:
        nothing is known to be there, so look into all queues at once."""
        hints, sharing = state.hints, state.sharing
        if sharing.passed and state.has_new_room:  # a place came free since they were asked
            state, sharing = state._replace(has_new_room=False), sharing.next_round()
            if (
                places.buffered and self.requests.settings.prefetch
            ):  # the place is theirs, and no other wake-up would tell of it
                return state._replace(sharing=sharing), StartBuffer()
        scan = hints.next_scan(now)
        if scan is not Scan.HINTED:
            hints = hints.begin(scan)._replace(no_sync=False, no_async=False)
            sharing = sharing.with_scan()
        hinted = {queue for queue, _ in hints.pairs if queue in sharing.shares.weights}
        if not (candidates := (hinted | sharing.unscanned) - sharing.passed):
            return state._replace(hints=hints.want_scan(), sharing=sharing._replace(is_quiet=True)), None
        queue, most = sharing.turn(candidates, limit)
        state = state.without_place_freed()
        if queue in sharing.unscanned:
            state = state._replace(hints=hints, sharing=sharing._replace(unscanned=sharing.unscanned - {queue}))
            floor = hints.floor if scan is Scan.FLOOR else None
            request = self.requests.build(places, most, was_full=state.was_full, discover=(queue,), floor=floor)
            return state, Claim(request, Scan.FLOOR if scan is Scan.FLOOR else Scan.FULL, queue=queue)
        pairs = tuple(hint for hint in hints.pairs.values() if hint.queue_name == queue)
        state = state._replace(hints=hints, sharing=sharing)
        return state, Claim(self.requests.build(places, most, was_full=state.was_full, hints=pairs), queue=queue)

    def learn(self, state: State, claim: Claim, answer: Claimed, now: float) -> State:
        """The queue had as many tasks as it was asked for, or is left out until it is scanned again."""
        rows, queue, request, kinds = answer.rows, claim.queue or "", claim.request, self.requests.kinds
        is_short = len(rows) < request.limit
        is_dry, before, sharing = False, state.hints, state.sharing
        if is_short and isinstance(request, ClaimRequest):
            of_async = sum(row["task_name"] in kinds.async_set for row in rows)
            no_async = not kinds.asynchronous or of_async < request.room_async + request.prefetch
            no_sync = not kinds.sync or len(rows) - of_async < request.room_sync + request.prefetch
            # A kind of task that had no place, or got all of its places, may have more tasks.
            is_dry = no_async and no_sync
            if claim.scan is not Scan.HINTED:
                sharing = sharing.without_kinds(queue, sync=no_sync, asynchronous=no_async)
        learned = before.learn(rows, claim.scan, kinds, took_s=answer.took_s, now=now)
        # what was learned of this queue says nothing of the others
        pairs = {pair: hint for pair, hint in before.pairs.items() if pair[0] != queue}
        if not is_dry:
            pairs |= {pair: hint for pair, hint in {**before.pairs, **learned.pairs}.items() if pair[0] == queue}
        sharing = sharing.charged({queue: len(rows)}, [queue] if is_dry else ())
        is_unknown = is_short and not (is_dry or any(pair[0] == queue for pair in pairs))
        if is_unknown or (is_dry and claim.scan is Scan.HINTED and now >= before.full.allowed_at):
            sharing = sharing._replace(unscanned=sharing.unscanned | {queue})
        if is_short and not rows and (claim.scan is not Scan.HINTED or not is_dry):
            sharing = sharing._replace(passed=sharing.passed | {queue})
        hints = learned._replace(
            pairs=pairs, repeat=None, no_sync=sharing.lacks_everywhere(sharing.no_sync),
            no_async=sharing.lacks_everywhere(sharing.no_async),
        )  # fmt: skip
        return state.with_claimed(answer)._replace(
            hints=hints, sharing=sharing.credited(len(rows), self.requests.settings.max_batch), was_full=not is_dry
        )
