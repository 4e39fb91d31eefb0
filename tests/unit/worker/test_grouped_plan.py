"""What the claimer of grouped tasks does next, played against `tests.support.group_model`."""

from collections import Counter
from collections.abc import Callable
from itertools import pairwise

from hypothesis import given, settings, strategies as st

from horsies_worker.claim.groups import state as s
from tests.support.group_model import POLL_S, QUEUE, World

Action = Callable[[World], None]

GROUPS = [f"g{number:03}" for number in range(6)]
ACTIONS = st.one_of(
    st.builds(
        lambda group, delay, named: lambda world: world.send(group, delay, named=named),
        st.sampled_from(GROUPS), st.sampled_from([0.0, 0.0, 0.0, 0.01, 0.3]), st.booleans(),
    ),
    st.builds(lambda most: lambda world: world.change_policy(most), st.sampled_from([None, 1, 2])),
    st.just(World.fail),
)  # fmt: skip


@given(
    places=st.integers(1, 3), most=st.sampled_from([None, 1, 2]), spacing=st.sampled_from([None, None, 0.1]),
    script=st.lists(st.tuples(st.sampled_from([0.0, 0.001, 0.003, 0.05, 0.4]), ACTIONS), max_size=25),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_every_task_starts_as_soon_as_its_group_and_the_worker_have_room(
    places: int, most: int | None, spacing: float | None, script: list[tuple[float, Action]]
) -> None:
    """Without a poll: everything is announced, or known from a claim."""
    world = World(places, most=most, spacing=spacing)
    world.run(1.0)
    for pause, action in script:
        world.run(world.now + pause)
        action(world)
    world.run(world.now + POLL_S / 4)
    assert world.left == 0
    if spacing is not None:
        for group in GROUPS:
            starts = [at for at, name in world.started if name == group]
            assert all(later - earlier >= spacing - 1e-6 for earlier, later in pairwise(starts))


def test_groups_take_turns_also_while_one_of_them_is_sent_again_and_again() -> None:
    world = World(1, most=1, lasts=0.01)
    world.run(0.1)
    for number in range(50):
        world.send("noisy")
        world.send(f"quiet {number % 5}")
    for _ in range(100):
        world.send("noisy")
        world.run(world.now + 0.005)
    first = Counter(group for _, group in world.started[:30])
    assert first["noisy"] <= 6, first
    assert len(first) == 6


def test_a_fleet_with_only_throttled_tasks_asks_rarely() -> None:
    world = World(4, spacing=1_000.0)
    for number in range(1_000):
        for _ in range(2):
            world.waiting[f"g{number:04}"].append(0.0)
    world.state = world.state.with_walk()
    world.run(60.0)
    assert len(world.started) == 1_000
    before = len(world.claims)
    world.run(120.0)
    assert len(world.claims) - before <= 15 * 2, "at most one walk at each poll"


def test_a_walk_through_many_full_groups_is_not_repeated_for_each_notification() -> None:
    world = World(4, most=1, lasts=1_000.0, spacing=None)
    world.places = 10_000
    for number in range(500):
        for _ in range(2):
            world.waiting[f"g{number:04}"].append(0.0)
    world.state = world.state.with_walk()
    world.run(10.0)
    assert len(world.started) == 500
    before, began = len(world.claims), world.now
    for _ in range(200):
        world.send("g0001", named=False)
        world.run(world.now + 0.01)
    assert (len(world.claims) - before) / (world.now - began) < 100


def test_without_room_others_are_told_and_a_place_leads_to_a_claim() -> None:
    world = World(1, lasts=5.0)
    world.run(0.1)
    world.send("a")
    world.run(world.now + 0.5)
    told = len(world.told)
    world.send("b")
    world.run(world.now + 0.5)
    assert world.told[told:] == [s.LeaveDuty]
    world.run(world.now + 6.0)
    assert [group for _, group in world.started] == ["a", "b"]


def test_a_worker_that_is_not_on_duty_hears_nothing_but_keeps_its_own_groups() -> None:
    state = s.State(is_walk=False).without_duty()
    assert state.with_news(QUEUE, "a") is state
    assert state.with_freed([(QUEUE, "a")], shared=False).looks == {(QUEUE, "a"): None}
