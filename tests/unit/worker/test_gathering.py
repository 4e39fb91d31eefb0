"""Gathering tasks into calls: when a call is complete, what it waits for, and what goes back to the queue."""

from itertools import count

import pytest

from horsies.batch_limits import BatchLimits
from horsies_worker.child import frames
from horsies_worker.child.jobs import Job, Room, call_of
from horsies_worker.children import gathering
from horsies_worker.children.gathering import Gathering
from horsies_worker.claim.batch_room import BatchRoom
from horsies_worker.claim.state import Places
from tests.support.apps import UNREACHABLE, make_app
from tests.support.waiting import eventually_async

_numbers = count(1)


def job(name: str = "index", size: int = 3, wait_ms: int = 10_000, attempt: int = 1, kwargs: str = "{}") -> Job:
    task_id = f"t{next(_numbers)}"
    return Job(task_id, 1, attempt, name, None, kwargs, run_ahead=False, gather=BatchLimits(size, wait_ms))


class Gathered(Gathering):
    """With so many places for calls."""

    def __init__(self, places: int = 10) -> None:
        self.places = places
        self.calls: list[list[str]] = []
        self.returned: list[str] = []
        super().__init__(self._begin, lambda jobs: self.returned.extend(one.task_id for one in jobs))

    def _begin(self, call: Job, kept: int) -> bool:
        if self.places <= kept:
            return False
        self.places -= 1
        self.calls.append([member.task_id for member in call.members])
        return True


async def test_a_call_starts_when_it_is_full() -> None:
    gathered, jobs = Gathered(), [job() for _ in range(7)]
    ids = [one.task_id for one in jobs]
    gathered.add(jobs)
    assert gathered.calls == [ids[:3], ids[3:6]]
    assert [one.task_id for one in gathered] == ids[6:]
    assert (gathered.room(is_async=False), gathered.room(is_async=True)) == ({"index": 2}, {})
    assert gathered.reserved_sync == 1, "the open call keeps a place"


async def test_a_call_starts_when_its_time_has_come() -> None:
    gathered = Gathered()
    gathered.add([job(wait_ms=20), job(wait_ms=20)])
    assert not gathered.calls
    await eventually_async(lambda: len(gathered.calls) == 1)
    assert (len(gathered.calls[0]), gathered.reserved_sync) == (2, 0)


async def test_names_are_gathered_apart_and_repeated_attempts_alone() -> None:
    gathered = Gathered()
    gathered.add([job("a"), job("b"), job("a", attempt=2), job("a", size=1)])
    assert [len(call) for call in gathered.calls] == [1, 1]
    assert gathered.room(is_async=False) == {"a": 2, "b": 2}


async def test_large_arguments_complete_a_call() -> None:
    gathered = Gathered()
    gathered.add([job(kwargs="x" * gathering.MAX_CHARS), job()])
    assert [len(call) for call in gathered.calls] == [1]


async def test_a_complete_call_waits_for_a_child_and_then_goes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "HOLD_S", 0.05)
    gathered, jobs = Gathered(places=0), [job() for _ in range(6)]
    gathered.add(jobs[:3])
    assert gathered.waits_for_child
    gathered.places = 1
    gathered.start_calls()
    assert (len(gathered.calls), gathered.waits_for_child, gathered.reserved_sync) == (1, False, 0)
    gathered.add(jobs[3:])
    await eventually_async(lambda: gathered.returned == [one.task_id for one in jobs[3:]])
    assert (len(gathered.calls), gathered.reserved_sync, list(gathered)) == (1, 0, [])


async def test_a_call_keeps_its_place_from_calls_that_began_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathering, "HOLD_S", 0.02)
    gathered, slow, soon = Gathered(places=1), job("slow", wait_ms=100), [job("soon") for _ in range(3)]
    gathered.add([slow, *soon])
    assert not gathered.calls, "the only place is that of the call that began first"
    await eventually_async(lambda: gathered.returned == [one.task_id for one in soon])
    await eventually_async(lambda: gathered.calls == [[slow.task_id]])
    assert (gathered.reserved_sync, list(gathered)) == (0, [])


async def test_a_cancelled_task_leaves_its_call() -> None:
    gathered, jobs = Gathered(), [job(), job()]
    gathered.add(jobs)
    assert not gathered.withdraw(jobs[0].task_id, 2), "of another claim"
    assert gathered.withdraw(jobs[0].task_id, 1)
    assert (gathered.returned, [one.task_id for one in gathered]) == ([jobs[0].task_id], [jobs[1].task_id])
    assert gathered.withdraw(jobs[1].task_id, 1)
    assert (gathered.reserved_sync, gathered.room(is_async=False)) == (0, {})


async def test_a_stop_returns_all() -> None:
    gathered = Gathered(places=0)
    gathered.add([job() for _ in range(5)])
    gathered.clear()
    assert (len(gathered.returned), gathered.reserved_sync, list(gathered)) == (5, 0, [])


def test_a_call_crosses_the_socket_and_has_the_shortest_timeout() -> None:
    members = [Job("t1", 4, 1, "index", None, '{"item":1}', 900), Job("t2", 5, 1, "index", None, None, 700)]
    seq, call = frames.decode_call(frames.encode_call(8, call_of(members)))
    assert (seq, list(call.members), call.timeout_ms, call.task_id) == (8, members, 700, "2 tasks")


def places(sync: int, ahead: int = 0, asynchronous: int = 0) -> tuple[Places, Room]:
    short = frozenset(["noop"] if ahead else [])
    return Places(sync, ahead, asynchronous, 0, 0, 0, short), Room(sync, ahead, asynchronous)


class TestRoom:
    """What a claim may take of batch tasks."""

    def room(self) -> BatchRoom:
        from tests.support import batch_app

        app = make_app(UNREACHABLE)
        batch_app.register(app)
        return BatchRoom(app.registry)

    def test_one_place_is_enough_for_a_whole_call(self) -> None:
        room = self.room()
        room.claimed([job("index")])
        room.claimed([])
        found = room.places(*places(2), {}, {})
        assert (found.sync, found.ahead, "index" in found.short, "fetch" in found.short) == (2, 198, True, False)

    def test_names_that_come_in_turn_are_claimed_by_the_smaller_size(self) -> None:
        room = self.room()
        for name in ("patient", "index", "patient", "index"):
            room.claimed([job(name)])
            assert room.places(*places(1), {}, {}).ahead == 4
        for _ in range(5):
            room.claimed([job("index")])
        assert room.places(*places(1), {}, {}).ahead == 99

    def test_without_a_place_only_open_calls_grow(self) -> None:
        found = self.room().places(*places(0), {"index": 40}, {})
        assert (found.sync, found.ahead, found.short) == (0, 40, frozenset(["index"]))
        assert self.room().places(*places(0), {}, {}) == places(0)[0]

    def test_short_tasks_and_batch_tasks_take_turns(self) -> None:
        room, given = self.room(), places(2, ahead=100)
        seen: list[bool] = []
        for _ in range(4):
            seen.append("index" in room.places(*given, {}, {}).short)
            room.claimed([job("index")])
        assert seen == [False, True, False, True]
        room.claimed([])
        assert room.places(*given, {}, {}) == given[0]
