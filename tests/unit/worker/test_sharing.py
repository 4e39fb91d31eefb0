"""How queues share the places of a worker: the pure turns, and the claimer's plan with them in simulated time."""

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from horsies_worker.claim.sharing import AGED_SHARE, Shares, Sharing
from horsies_worker.claim.state import AskAged, Claim
from tests.support.claim_model import World
from tests.unit.worker.test_claim_plan import SETTINGS

WEIGHTS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 20), min_size=1)


@given(WEIGHTS, st.lists(st.integers(1, 50), min_size=30, max_size=60))
def test_places_are_shared_by_weight_however_many_are_free_at_a_time(weights: dict[str, int], rooms: list[int]) -> None:
    sharing, got = Sharing(Shares(weights)), Counter[str]()
    for room in rooms:
        left = room
        while left:
            queue, most = sharing.turn(weights, left)
            assert 1 <= most <= left
            sharing = sharing.charged({queue: most})
            got[queue] += most
            left -= most
    whole, total = sum(weights.values()), sum(rooms)
    for queue, weight in weights.items():
        # off by one task for each other queue at most, and by its own next one
        assert abs(got[queue] - total * weight / whole) <= len(weights) + 1


@given(WEIGHTS, st.data())
def test_no_place_stays_free_and_a_dry_queue_collects_no_credit(weights: dict[str, int], data: st.DataObject) -> None:
    sharing, waiting = Sharing(Shares(weights)), dict.fromkeys(weights, 0)
    for _ in range(data.draw(st.integers(1, 20))):
        for queue in weights:
            waiting[queue] += data.draw(st.sampled_from([0, 0, 1, 5, 40]))
        left, asked = data.draw(st.integers(1, 30)), set(weights)
        while left and asked:
            queue, most = sharing.turn(asked, left)
            taken = min(most, waiting[queue])
            is_dry = taken < most
            sharing = sharing.charged({queue: taken}, [queue] if is_dry else ())
            waiting[queue] -= taken
            left -= taken
            asked -= {queue} if is_dry else set()
        assert not left or not any(waiting.values())
    behind = [sharing.level(queue) for queue in weights if queue not in sharing.dry]
    assert all(sharing.level(queue) >= min(behind, default=0) for queue in sharing.dry)


def test_policies_become_shares_and_one_weight_makes_all_queues_share() -> None:
    queues = ("a", "b")
    assert Shares.of(queues, {}) == Shares()
    assert Shares.of(queues, {"a": {"rate": {}}, "other": {"weight": 3}}) == Shares()
    assert Shares.of(queues, {"a": {"weight": 3}}) == Shares({"a": 3, "b": 1})
    assert Shares.of(queues, {"b": {"ageing_seconds": 60, "weight": None}}) == Shares({}, {"b": 60.0})


def run_full(world: World, until: float, waiting: dict[str, int], *, most: int = 300) -> list[str]:
    """Run with so many ready tasks in each queue at any time; the queues of the tasks that started."""
    before = len(world.started_in)
    while world.now < until and len(world.started_in) < before + most:
        world.tasks = [task for task in world.tasks if task.status != "ENDED"]
        for queue, count in waiting.items():
            there = sum(task.queue == queue and task.status == "PENDING" for task in world.tasks)
            if there < count:
                world.send("add", queue, 1 if queue == "video" else 100, copies=count - there)
        world.run(world.now + 0.02)
    return world.started_in[before:]


@pytest.mark.parametrize(("sync", "task_s"), [(1, 0.005), (3, 0.3), (12, 0.02)])
@pytest.mark.parametrize("weights", [{"mail": 3, "video": 1}, {"mail": 1, "video": 3}, {"mail": 1, "video": 1}])
def test_a_saturated_worker_starts_tasks_by_weight(weights: dict[str, int], sync: int, task_s: float) -> None:
    world = World(SETTINGS, sync, 1, task_s=task_s, shares=Shares(weights))
    started = run_full(world, 12.0, {"mail": 15, "video": 15})
    assert len(started) > 100
    assert started.count("mail") / len(started) == pytest.approx(weights["mail"] / sum(weights.values()), abs=0.05)


def test_when_one_queue_is_empty_the_other_gets_all_places_and_owes_nothing_for_it() -> None:
    world = World(SETTINGS, 4, 0, task_s=0.02, shares=Shares({"mail": 1, "video": 9}))
    alone = run_full(world, 1.0, {"mail": 15})
    assert len(alone) > 100
    run_full(world, 2.1, {"mail": 15, "video": 15})  # producers leave out notifications: a scan each second finds them
    started = run_full(world, 4.0, {"mail": 15, "video": 15})
    assert len(started) > 100
    assert started.count("mail") / len(started) == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize(("ageing_s", "share"), [(None, 0.0), (0.2, AGED_SHARE), (100.0, 0.0)])
def test_low_priority_is_late_but_not_starved_with_ageing(ageing_s: float | None, share: float) -> None:
    world = World(SETTINGS, 2, 0, task_s=0.01, shares=Shares({}, {"mail": ageing_s} if ageing_s else {}))
    run_full(world, 0.5, {"mail": 20, "video": 20})
    started = run_full(world, 3.0, {"mail": 20, "video": 20})
    assert len(started) > 100
    assert started.count("mail") / len(started) == pytest.approx(share, abs=0.03)


def test_young_tasks_cost_few_questions() -> None:
    world = World(SETTINGS, 4, 0, task_s=0.01, shares=Shares({}, {"mail": 10.0}))
    run_full(world, 2.0, {"mail": 20})
    asked = sum(isinstance(move, AskAged) for move in world.moves)
    assert asked <= 3
    assert sum(isinstance(move, Claim) for move in world.moves) > asked
