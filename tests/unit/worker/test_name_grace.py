"""When a task whose name no live worker knows has waited for long enough."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from horsies_worker.claim.name_grace import SHOWN_NAMES, Graces, MissingName, Span, ready_before, why_failed

NOW = datetime(2026, 5, 1, 12, tzinfo=UTC)
GRACES = Graces(unknown=timedelta(minutes=5), retired=timedelta(hours=24))


def before(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


def served(*spans: tuple[float, float]) -> list[Span]:
    return [Span(before(began), before(ended)) for began, ended in spans]


def unknown(missing: float = 600) -> MissingName:
    return MissingName("ghost", "q", None, before(missing))


def retired(last_known: float, missing: float = 600) -> MissingName:
    return MissingName("old", "q", before(last_known), before(missing))


def test_a_name_that_was_never_known_has_the_short_grace() -> None:
    assert ready_before(unknown(), served((60, 0)), NOW, GRACES) == before(5)


def test_only_the_time_in_which_the_queue_was_served_counts() -> None:
    """Two minutes before a maintenance of an hour, and one since."""
    assert ready_before(unknown(), served((63, 61), (1, 0)), NOW, GRACES) is None
    # three minutes since: with the two before, those that were ready 63 minutes ago have had five
    assert ready_before(unknown(), served((63, 61), (3, 0)), NOW, GRACES) == before(63)
    assert ready_before(unknown(), served((90, 61), (1, 0)), NOW, GRACES) == before(65)


def test_the_count_begins_when_the_name_was_found_missing() -> None:
    assert ready_before(unknown(missing=4.9), served((60, 0)), NOW, GRACES) is None
    assert ready_before(unknown(missing=5), served((60, 0)), NOW, GRACES) == before(5)


@pytest.mark.parametrize("name", [unknown(), retired(60 * 48)])
@pytest.mark.parametrize("spans", [served(), served((60, 1))])
def test_nothing_ends_in_a_queue_that_is_not_served(name: MissingName, spans: list[Span]) -> None:
    assert ready_before(name, spans, NOW, GRACES) is None


def test_a_name_that_was_known_has_the_long_grace() -> None:
    assert ready_before(retired(60 * 24 - 1), served((60, 0)), NOW, GRACES) is None
    assert ready_before(retired(60 * 24), served((60, 0)), NOW, GRACES) == before(60 * 24)


def test_a_task_of_a_name_retired_long_ago_has_the_long_grace_all_the_same() -> None:
    """Only tasks that were ready a day ago end, although the name was last known a week ago."""
    assert ready_before(retired(60 * 24 * 7), served((60, 0)), NOW, GRACES) == before(60 * 24)


def test_without_any_grace_what_is_ready_ends() -> None:
    none = Graces(timedelta(0), timedelta(0))
    assert ready_before(unknown(0), served((60, 0)), NOW, none) == NOW
    assert ready_before(retired(0), served((60, 0)), NOW, none) == NOW


def test_the_reason_names_what_is_known_and_is_bounded() -> None:
    names = [f"task {number}" for number in range(1_000)]
    why = why_failed(unknown(), names)
    assert why.startswith("no live worker of queue 'q' has a task named 'ghost'; they know: 'task 0', 'task 1', ")
    assert f" and {1_000 - SHOWN_NAMES} more." in why
    assert "last known at 2026-04-30" in why_failed(retired(60 * 24), [])
    assert "they know: none. Deploy a worker that registers it" in why_failed(unknown(), [])


def test_the_reason_names_the_queues_whose_workers_know_the_task() -> None:
    why = why_failed(replace(unknown(), known_in=("a", "b")), ["add"])
    assert why.endswith("Live workers of 'a', 'b' know it: send it there, or start one of them with --queues q.")
