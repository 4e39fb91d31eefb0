"""What the claimer does next, played against a model of a queue in simulated time.

While it plays, the model itself checks that no claim is made without room, that no task which could be claimed waits
longer than `MAX_LATE_S`, and that no decision loses a notification or a change of the queues that came just before it.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from horsies_worker.claim.hints import Scan
from horsies_worker.claim.plan import CALM_S, FULL_S, OFFER_EVERY_S, TURN_S
from horsies_worker.claim.settings import ClaimSettings
from horsies_worker.claim.sharing import Shares
from horsies_worker.claim.state import AskDue, Claim, GoToSleep, LeaveDuty, StayAwake, Stop, Wait
from tests.support.claim_model import QUEUES, STATEMENT_S, World

POLL_S = 60.0
Script = list[tuple[float, Callable[[World], None]]]
SETTINGS = ClaimSettings(
    queues=QUEUES, queue_caps={}, cluster_cap=None, max_batch=100, max_per_worker=None, prefetch=0, lease_ms=60_000,
    run_ahead=True, poll_s=POLL_S,
)  # fmt: skip

SETUPS = st.builds(
    lambda sync, asynchronous, **limits: (sync, asynchronous, dataclasses.replace(SETTINGS, **limits)),
    st.integers(1, 3), st.integers(0, 2), prefetch=st.sampled_from([0, 0, 2]), max_batch=st.sampled_from([1, 100]),
    max_per_worker=st.sampled_from([None, None, 1, 2]), cluster_cap=st.sampled_from([None, None, 1, 3]),
)  # fmt: skip
ACTIONS = st.one_of(
    st.builds(
        lambda name, queue, priority, delay, copies: (
            lambda world: world.send(name, queue, priority, delay, copies=copies)
        ),
        st.sampled_from(["add", "add", "poll", "poll", "ghost"]), st.sampled_from(QUEUES), st.sampled_from([1, 100]),
        st.sampled_from([0.0, 0.0, 0.0, 0.003, 0.2, 2.0]), st.sampled_from([1, 1, 1, 3]),
    ),
    st.builds(
        lambda queue, paused: lambda world: world.set_paused(queue, paused), st.sampled_from(QUEUES), st.booleans()
    ),
    st.just(World.rival_takes),
    st.just(lambda world: setattr(world, "failures", 1)),
    st.builds(lambda wait: lambda world: setattr(world, "others_wait", wait), st.booleans()),
)  # fmt: skip
SHARES = st.sampled_from(
    [
        Shares(),
        Shares({"mail": 3, "video": 1}),
        Shares({}, {"mail": 0.3}),
        Shares({"mail": 1, "video": 7}, {"video": 0.1}),
    ]
)
GAPS = st.sampled_from([0.0, 0.0004, 0.0007, 0.004, 0.03, 0.06, 0.3, 1.5])
SCRIPT = st.lists(st.tuples(GAPS, ACTIONS), max_size=25)
"""Pauses, and what happens after each."""


def world_of(setup: tuple[int, int, ClaimSettings], jitters: list[float] | None = None, **fields: Any) -> World:
    sync, asynchronous, limits = setup
    numbers = iter(jitters or [])
    return World(limits, sync, asynchronous, jitter=lambda: next(numbers, 0.5), **fields)


def play(world: World, script: Script) -> float:
    """Schedule the script; the time of its end."""
    time = 0.0
    for gap, action in script:
        time += gap
        world.at(time, partial(action, world))
    return time


@given(SETUPS, SCRIPT, st.lists(st.floats(0, 1), max_size=30), st.sampled_from([0.0005, 0.02, 0.4]), SHARES)
@settings(max_examples=200, deadline=None)
def test_every_task_that_can_be_claimed_is_claimed_soon(
    setup: tuple[int, int, ClaimSettings], script: Script, jitters: list[float], task_s: float, shares: Shares
) -> None:  # fmt: skip
    world = world_of(setup, jitters, task_s=task_s, shares=shares)
    end = play(world, script)
    world.run(end + 20)
    names = {*world.plan.kinds.known}
    left = [task for task in world.tasks if task.name in names and task.queue not in world.paused]
    assert all(task.status in ("ENDED", "CLAIMED") for task in left if task.ready_at < end + 10)
    assert all(task.status != "CLAIMED" for task in left)


def test_a_place_that_comes_free_during_the_turns_of_queues_starts_a_buffered_task() -> None:
    limits = dataclasses.replace(SETTINGS, prefetch=2, max_batch=1)
    world = world_of((1, 0, limits), task_s=0.0005, shares=Shares({"mail": 3, "video": 1}))
    play(world, [(0.0, lambda world: setattr(world, "failures", 1)), (0.0, lambda world: world.send("add", copies=3))])
    world.run(20)
    assert [task.status for task in world.tasks] == ["ENDED"] * 3


CHANGES = st.one_of(
    ACTIONS,
    st.just(lambda world: world.change(world.state.without_duty())),
    st.just(lambda world: world.change(world.state.with_duty(world.now))),
)


@given(SETUPS, st.lists(st.tuples(GAPS, CHANGES), max_size=25), st.sampled_from([0.0005, 0.02, 0.4]))
@settings(max_examples=300, deadline=None)
def test_a_worker_that_has_room_waits_for_its_turn_on_duty(
    setup: tuple[int, int, ClaimSettings], script: Script, task_s: float
) -> None:
    """The model looks for it. One that took itself for full waited for its next poll."""
    world = world_of(setup, task_s=task_s)
    end = play(world, script)
    world.run(end + 20)


@given(SETUPS, SCRIPT)
@settings(max_examples=75, deadline=None)
def test_the_number_of_statements_is_bounded(setup: tuple[int, int, ClaimSettings], script: Script) -> None:
    world = world_of(setup)
    end = play(world, script)
    world.run(end + 10)
    brought = sum(task.status != "PENDING" for task in world.tasks)
    assert world.statements <= 4 + 5 * world.wakeups + 2 * brought
    before = world.statements
    world.run(world.now + 20 * POLL_S)  # idle: a scan and the next due time, each poll
    assert world.statements - before <= 2 * 20 / 0.8 + 3


@given(SETUPS, SCRIPT, st.floats(0, 5))
@settings(max_examples=75, deadline=None)
def test_it_ends_when_it_is_stopped(setup: tuple[int, int, ClaimSettings], script: Script, when: float) -> None:
    world = world_of(setup)
    play(world, script)
    world.at(when, lambda: world.change(world.state.with_stop()))
    world.run(when + 2 * STATEMENT_S)
    assert isinstance(world.moves[-1], Stop)


MOMENTS = [number * STATEMENT_S / 4 for number in range(80)]
"""While each statement of a round is in flight, between them, and after the round."""


def news(world: World, moment: float) -> None:
    world.send("add")
    world.at(world.now + moment, lambda: world.send("add", priority=1))


def news_of_another_kind(world: World, moment: float) -> None:
    world.send("add")
    world.at(world.now + moment, lambda: world.send("poll"))


def news_of_many(world: World, moment: float) -> None:
    world.send("add")
    world.at(world.now + moment, lambda: world.send("add", copies=5))


def delayed_task(world: World, moment: float) -> None:
    world.send("add")
    world.send("add", priority=1, delay_s=moment)


def delayed_task_of_a_kind_with_room(world: World, moment: float) -> None:
    world.task_s = 5.0
    for _ in range(4):
        world.send("add")
    world.send("poll", delay_s=0.1 + moment)


def room(world: World, moment: float) -> None:
    world.task_s = moment
    for _ in range(5):
        world.send("add")


def resumed_queue(world: World, moment: float) -> None:
    world.set_paused("video", True)
    world.send("add", "video")
    world.at(world.now + moment, lambda: world.set_paused("video", False))


def place_freed(world: World, moment: float) -> None:
    world.task_s = moment
    world.send("add")
    world.rival_takes()
    world.send("add")


def failure(world: World, moment: float) -> None:
    world.at(world.now + moment, lambda: setattr(world, "failures", 2))
    world.send("add")
    world.at(world.now + moment, lambda: world.send("add"))


CAPPED, BUFFERED = dataclasses.replace(SETTINGS, cluster_cap=1), dataclasses.replace(SETTINGS, prefetch=2)
ONE = dataclasses.replace(SETTINGS, max_per_worker=1)


@pytest.mark.parametrize(
    ("happens", "limits"),
    [
        (news, SETTINGS), (news, BUFFERED), (news_of_another_kind, SETTINGS), (news_of_many, SETTINGS),
        (delayed_task, SETTINGS),
        (delayed_task, BUFFERED), (delayed_task_of_a_kind_with_room, SETTINGS), (room, SETTINGS), (room, BUFFERED),
        (room, ONE), (resumed_queue, SETTINGS), (place_freed, CAPPED), (failure, SETTINGS),
    ],
)  # fmt: skip
def test_no_wake_up_is_forgotten_at_any_moment(
    happens: Callable[[World, float], None], limits: ClaimSettings
) -> None:  # fmt: skip
    for moment in MOMENTS:
        world = world_of((2, 2, limits))
        world.at(0.0, partial(world.send, "add"))
        world.at(1.0, partial(happens, world, moment))
        world.run(20.0)
        assert all(task.status in ("ENDED", "RUNNING") for task in world.tasks), (moment, world.tasks)


@pytest.mark.parametrize("happens", [news, news_of_another_kind, news_of_many, room, resumed_queue])
def test_a_free_place_is_filled_within_a_few_statements(happens: Callable[[World, float], None]) -> None:
    """A wake-up that is forgotten while a claim is in flight costs a calm wait at least."""
    for moment in MOMENTS:
        world = world_of((2, 2, SETTINGS))
        world.at(0.0, partial(world.send, "add"))
        world.at(1.0, partial(happens, world, moment))
        world.run(3.0)
        assert world.latest_s < 5 * STATEMENT_S < CALM_S, moment


def test_one_task_at_a_time_costs_one_statement() -> None:
    world = world_of((2, 2, SETTINGS), task_s=0.01)
    for number in range(6):
        world.at(number * 0.03, lambda: world.send("add"))
    world.run(0.029)
    before = world.statements
    world.run(0.179)
    assert world.statements - before == 5
    assert isinstance(world.moves[-1], Wait)
    assert world.moves[-1].is_calm


# -- the duty to listen ------------------------------------------------------------------------------------------


def made(world: World, *kinds: type) -> list[str]:
    return [type(move).__name__ for move in world.moves if isinstance(move, kinds)]


def test_a_worker_that_works_offers_the_duty_once_per_turn() -> None:
    world = world_of((2, 2, SETTINGS), task_s=0.001)
    for number in range(100):
        world.at(number * TURN_S / 20, partial(world.send, "add"))
    world.run(5 * TURN_S)
    assert 3 <= world.offers <= 5


def test_a_worker_that_has_nothing_to_do_keeps_the_duty() -> None:
    world = world_of((2, 2, SETTINGS))
    world.run(100 * TURN_S)
    assert world.offers == 0


def test_short_tasks_without_a_place_for_another_do_not_cost_the_duty() -> None:
    world = world_of((1, 0, SETTINGS), task_s=FULL_S / 4)
    world.run(0.05)
    for number in range(1, 9):
        world.at(number * TURN_S / 10, partial(world.send, "add"))
    world.run(TURN_S * 0.9)
    assert world.offers == 1  # the first claim was a scan, which may have left others


@pytest.mark.parametrize("others_wait", [True, False])
def test_a_worker_without_a_place_offers_the_duty_when_it_hears_of_another_task(others_wait: bool) -> None:
    world = world_of((1, 0, SETTINGS), task_s=30.0, others_wait=others_wait)
    world.at(0.1, partial(world.send, "add"))
    world.at(0.105, partial(world.send, "add"))
    world.run(0.1 + 4 * STATEMENT_S)
    assert world.offers == 1
    assert world.state.on_duty is not others_wait


def test_a_worker_without_a_place_and_without_a_successor_offers_the_duty_now_and_then_and_hears_nothing() -> None:
    world = world_of((1, 0, SETTINGS), task_s=3.0)
    world.at(0.0, partial(world.send, "add"))
    world.run(2.0)
    assert 10 <= world.offers <= 2.0 / OFFER_EVERY_S
    assert made(world, StayAwake, GoToSleep) == ["StayAwake"]
    assert world.statements <= 5
    world.run(4.0)
    assert made(world, StayAwake, GoToSleep) == ["StayAwake", "GoToSleep"]


def test_what_has_no_place_here_is_offered_to_another_worker() -> None:
    """All places for synchronous tasks are taken, one for an async task is free."""
    world = world_of((1, 1, SETTINGS), task_s=30.0, others_wait=True)
    world.at(0.0, partial(world.send, "add"))
    world.at(0.5, partial(world.send, "add"))
    world.run(0.6)
    assert world.tasks[1].status == "ENDED"


def test_a_stream_of_tasks_is_taken_without_notifications() -> None:
    world = world_of((50, 0, SETTINGS), task_s=0.001)
    for number in range(1_000):
        world.at(number * 0.0005, partial(world.send, "add"))
    world.run(1.0)
    assert made(world, StayAwake, GoToSleep) == ["StayAwake", "GoToSleep"]
    assert all(task.status == "ENDED" for task in world.tasks)
    assert world.latest_s < 4 * STATEMENT_S


def test_one_task_at_a_time_does_not_keep_the_worker_awake() -> None:
    world = world_of((2, 0, SETTINGS), task_s=0.001)
    for number in range(100):
        world.at(number * 3 * STATEMENT_S, partial(world.send, "add"))
    world.run(2.0)
    assert not made(world, StayAwake)


def test_a_scan_that_was_slow_does_not_hold_up_a_delayed_task() -> None:
    """The server was busy for a moment. Until the next scan, claims look only at the places of the last tasks."""
    world = world_of((2, 0, SETTINGS))
    world.at(0.0, partial(world.send, "add"))
    world.at(2.0, lambda: setattr(world, "slow_scans", 2))
    for time in (2.0, 3.0):
        world.at(time, partial(world.send, "add"))
    world.at(4.0, partial(world.send, "add", delay_s=0.3))
    world.run(5.0)
    assert not world.slow_scans
    assert [task.status for task in world.tasks] == ["ENDED"] * 4
    assert world.latest_s < 5 * STATEMENT_S < CALM_S


def test_off_duty_a_worker_waits_for_no_delayed_task() -> None:
    world = world_of((2, 0, SETTINGS))
    world.run(0.1)
    world.state = world.state.without_duty()
    before = len(world.moves)
    world.run(10 * POLL_S)
    assert not any(isinstance(move, AskDue | LeaveDuty) for move in world.moves[before:])
    assert world.statements <= 10 / 0.8 + 5


@pytest.mark.parametrize("name", ["add", "poll"])
def test_a_scan_that_fills_the_places_of_one_kind_is_not_repeated_for_the_other(name: str) -> None:
    world = world_of((4, 4, SETTINGS), task_s=STATEMENT_S)
    world.run(0.1)
    before = len(world.moves)
    world.send(name, copies=40)
    world.run(0.18)
    claims = [move for move in world.moves[before:] if isinstance(move, Claim)]
    assert len(claims) > 5
    assert [move.scan for move in claims].count(Scan.FULL) == 1
