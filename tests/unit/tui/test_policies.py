"""Policies as they are typed on the dashboard."""

import pytest

from horsies import Rate
from horsies.operate.policies import LIMIT_FIELDS, QUEUE_FIELDS, Policy
from horsies_tui.data.policies import changes, parse, typed, words
from horsies_tui.demo import DemoSource

FULL = Policy(2, Rate(100, 60, burst=20), fair=False, limits=("stripe", "mailgun"))


@pytest.mark.parametrize("policy", [Policy(), FULL])
def test_what_is_shown_can_be_typed(policy: Policy) -> None:
    found, problems = parse(typed(policy, QUEUE_FIELDS), QUEUE_FIELDS)
    assert (Policy(**found), problems) == (policy, [])
    assert changes(typed(policy, QUEUE_FIELDS), policy, QUEUE_FIELDS) == ({}, [])
    assert parse(words(found), QUEUE_FIELDS) == (found, [])


def test_what_is_left_out_stays() -> None:
    assert changes("rate:none", FULL, QUEUE_FIELDS) == ({"rate": None}, [])
    assert changes("concurrency:2 fair:yes", FULL, QUEUE_FIELDS) == ({"fair": True}, [])
    assert changes("rate:100/60 burst:5", FULL, QUEUE_FIELDS) == ({"rate": Rate(100, 60, burst=5)}, [])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("speed:1", "speed is not one of concurrency, rate, burst"),
        ("fair:yes", "fair is not one of concurrency, rate, burst"),
        ("concurrency:0", "concurrency is a whole number from 1"),
        ("rate:fast", "a rate is LIMIT/SECONDS"),
        ("rate:1/x", "a rate is LIMIT/SECONDS"),
        ("rate:10/0", "per_seconds"),
        ("rate:10/1 burst:11", "burst"),
        ("burst:2", "burst is a part of a rate"),
    ],
)
def test_what_is_not_understood_is_told(text: str, told: str) -> None:
    _, problems = parse(text, LIMIT_FIELDS)
    assert told in "; ".join(problems)


async def test_the_demos_groups_are_those_of_its_tasks() -> None:
    source = DemoSource(clock=lambda: 1_800_000_000.0)
    found = await source.queue("mail")
    waiting = sum(task.queue == "mail" and task.group is not None and task.status == "PENDING"
                  for task in source.world.tasks.values())  # fmt: skip
    assert sum(group.waiting for group in found.groups.groups) == waiting > 0
    assert any(group.throttled_by for group in found.groups.groups)
    for queue in ("mail", "payments"):
        assert all(group.running <= (group.max_concurrency or 0) for group in (await source.queue(queue)).groups.groups)
    assert (await source.queue("default")).groups.groups == ()
