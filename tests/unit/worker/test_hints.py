"""When a claim scans all pairs, and when only the pairs of the last claims."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies_worker.claim.hints import EVERY_S, LATE_S, QUICK_S, ROW_S, SHARE, SLOW_S, Hints, Scan
from horsies_worker.claim.settings import TaskKinds
from horsies_worker.database.queries import Hint

OLD, NEW = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)
T = 1_000.0
KINDS = TaskKinds.of(["add", "mail"], ["poll"])


def rows(*pairs: tuple[str, int], since: datetime = OLD, **columns: Any) -> list[dict[str, Any]]:
    given = {"task_name": "add", "status": "RUNNING", "is_workflow_task": False, "since": since, **columns}
    return [{"queue_name": queue, "priority": priority, **given} for queue, priority in pairs]


def scanned(
    hints: Hints, found: list[dict[str, Any]], *, took_s: float = 0.001, now: float = T, scan: Scan = Scan.FULL
) -> Hints:
    """After one scan, which must be the one that the hints ask for."""
    assert hints.next_scan(now) is scan
    return hints.begin(scan).learn(found, scan, KINDS, took_s=took_s, now=now)


def seasoned() -> Hints:
    """After the first scan."""
    return scanned(Hints(), [])


def with_pairs(*, took_s: float = 0.001) -> Hints:
    """After a scan that found work in two pairs and took this long."""
    return scanned(seasoned(), rows(("mail", 1), ("mail", 1), ("video", 5)), took_s=took_s)


def pairs_of(hints: Hints) -> set[Hint]:
    return set(hints.pairs.values())


def test_the_first_claim_scans_everything_and_the_next_uses_its_hints() -> None:
    hints = with_pairs()
    assert hints.next_scan(T) is Scan.HINTED
    assert pairs_of(hints) == {Hint("mail", 1, OLD), Hint("video", 5, OLD)}


def test_a_hinted_claim_moves_its_hints_on() -> None:
    hints = with_pairs().learn(rows(("mail", 1), since=NEW), Scan.HINTED, KINDS, took_s=0.001, now=T)
    assert pairs_of(hints) == {Hint("mail", 1, NEW), Hint("video", 5, OLD)}


def test_news_leads_to_one_full_scan() -> None:
    hints = with_pairs().want_scan()
    assert hints.next_scan(T) is Scan.FULL
    assert hints.begin(Scan.FULL).next_scan(T) is Scan.HINTED


def test_a_full_scan_is_made_every_second() -> None:
    assert with_pairs().next_scan(T + EVERY_S) is Scan.FULL


def test_a_scan_that_found_nothing_leaves_no_hint() -> None:
    hints = scanned(with_pairs().want_scan(), [])
    assert hints.pairs == {}
    assert hints.next_scan(T) is Scan.FULL


def test_scans_that_stay_slow_get_a_twentieth_of_the_time() -> None:
    hints, now = with_pairs(), T
    for times in (1, 2, 4, 8, 16, SHARE, SHARE):
        hints = scanned(hints.want_scan(), rows(("mail", 1)), took_s=0.2, now=now).want_scan()
        rest = times * (0.2 - ROW_S)
        assert hints.next_scan(now) is Scan.HINTED
        assert hints.begin(Scan.HINTED).scan_wanted
        assert hints.wait_s(now) == pytest.approx(rest)
        assert hints.next_scan(now + rest - 0.001) is Scan.HINTED
        now += rest + 0.001
        assert hints.wait_s(now) is None
    hints = scanned(hints, rows(("mail", 1)), now=now).want_scan()
    assert hints.wait_s(now) is None
    assert scanned(hints, [], took_s=0.2, now=now).want_scan().wait_s(now) == pytest.approx(0.2), "it begins anew"


def test_hints_outlive_a_slow_scan_that_found_nothing() -> None:
    """Otherwise the next task would cost another slow scan."""
    hints = scanned(with_pairs().want_scan(), [], took_s=0.2)
    assert len(hints.pairs) == 2
    assert hints.want_scan().next_scan(T) is Scan.HINTED


def test_without_hints_a_slow_scan_is_repeated() -> None:
    hints = scanned(seasoned(), [], took_s=5)
    assert hints.want_scan().wait_s(T) is None
    assert hints.next_scan(T) is Scan.FULL


def test_a_scan_that_brings_many_rows_does_not_count_as_slow() -> None:
    hints = scanned(seasoned(), rows(*[("mail", 1)] * 500), took_s=SLOW_S + 499 * ROW_S)
    assert hints.want_scan().next_scan(T) is Scan.FULL


def test_after_an_outage_everything_is_scanned() -> None:
    hints = repeated(with_pairs(took_s=0.2), rows(("mail", 1))).forget()
    assert (hints.pairs, hints.repeat) == ({}, None)
    assert hints.next_scan(T) is Scan.FULL


def test_announced_tasks_replace_a_scan_for_a_second() -> None:
    hints = with_pairs()
    assert hints.may_put_off(T)
    hints = hints._replace(put_off_at=T)
    assert hints.may_put_off(T + EVERY_S - 0.001)
    assert not hints.may_put_off(T + EVERY_S)
    assert hints.want_scan().begin(Scan.FULL).may_put_off(T + EVERY_S)
    assert not hints.want_scan().may_put_off(T)


# -- the floor -------------------------------------------------------------------------------------


def beside_unknown_names() -> Hints:
    """After a slow full scan that found nothing, because it walked tasks of unknown names."""
    return scanned(seasoned(), [], took_s=0.2).found_nothing(NEW, is_crowded=True)


def test_after_a_slow_scan_that_found_nothing_the_next_scan_begins_at_the_floor() -> None:
    hints = beside_unknown_names()
    assert hints.floor == NEW - timedelta(seconds=LATE_S)
    assert hints.next_scan(T) is Scan.FLOOR


def test_a_floor_scan_is_followed_by_a_full_scan_when_that_is_allowed() -> None:
    hints = scanned(beside_unknown_names().want_scan(), [], scan=Scan.FLOOR)
    assert hints.wait_s(T) == pytest.approx(0.2)
    later = T + 0.2 + 0.001
    hints = scanned(hints.want_scan(), [], took_s=0.2, now=later)
    assert hints.wait_s(later) is None  # nothing has come since


def test_each_news_leads_to_a_floor_scan() -> None:
    hints = beside_unknown_names()
    for _ in range(3):
        hints = scanned(hints.want_scan(), [], scan=Scan.FLOOR)


def test_slow_floor_scans_are_bounded_too() -> None:
    """Dead entries at the front of the queue slow down the search for its priorities."""
    hints = scanned(beside_unknown_names(), [], took_s=0.1, scan=Scan.FLOOR).want_scan()
    assert hints.next_scan(T) is Scan.HINTED
    assert hints.wait_s(T) == pytest.approx(0.1)
    assert hints.next_scan(T + 0.1 + 0.001) is Scan.FLOOR


def test_the_floor_moves_older_hints_and_no_newer_ones() -> None:
    hints = with_pairs().learn(rows(("video", 5), since=NEW), Scan.HINTED, KINDS, took_s=0.001, now=T)
    hints = repeated(hints, rows(("mail", 1))).found_nothing(NEW, is_crowded=True)
    floor = NEW - timedelta(seconds=LATE_S)
    assert pairs_of(hints) == {Hint("mail", 1, floor), Hint("video", 5, NEW)}
    assert hints.repeat is not None
    assert hints.repeat.hint == Hint("mail", 1, floor)


def test_quick_full_scans_need_no_floor() -> None:
    hints = seasoned()
    for _ in range(3):
        hints = scanned(hints.want_scan(), [], took_s=QUICK_S / 2).found_nothing(NEW, is_crowded=True)


def test_the_first_scan_never_counts_as_slow() -> None:
    """It also plans the statement."""
    hints = scanned(Hints(), rows(("mail", 1)), took_s=0.2)
    assert hints.want_scan().next_scan(T) is Scan.FULL


def test_without_a_crowd_a_slow_scan_is_repeated() -> None:
    """The machine was busy; the next scan may be quick."""
    hints = scanned(seasoned(), [], took_s=0.2).found_nothing(NEW, is_crowded=False)
    assert hints.next_scan(T) is Scan.FULL


def test_after_an_outage_there_is_no_floor() -> None:
    """The next server may have another clock."""
    hints = beside_unknown_names().forget()
    assert hints.floor is None
    assert hints.next_scan(T) is Scan.FULL


# -- repeated claims -------------------------------------------------------------------------------


def repeated(hints: Hints, found: list[dict[str, Any]], kinds: TaskKinds = KINDS) -> Hints:
    return hints.learn(found, Scan.HINTED, kinds, took_s=0.001, now=T)


def repeat_request(hints: Hints, **room: Any) -> Any:
    given = {"sync": 2, "ahead": 0, "asynchronous": 3, "most": 9, "short": frozenset(), **room}
    return hints.repeat_request(KINDS, **given)


def test_more_tasks_of_one_pair_and_kind_are_asked_for_with_the_simple_statement() -> None:
    request = repeat_request(repeated(Hints(), rows(("mail", 1), ("mail", 1))))
    assert (request.hint, request.limit, request.names) == (Hint("mail", 1, OLD), 2, ["add", "mail"])
    assert request.known == ["add", "mail", "poll"]


def test_async_tasks_have_places_of_their_own() -> None:
    request = repeat_request(repeated(Hints(), rows(("mail", 1), task_name="poll")), most=2)
    assert (request.limit, request.names) == (2, ["poll"])


def test_short_tasks_may_be_assigned_ahead() -> None:
    hints = repeated(Hints(), rows(("mail", 1)))
    request = repeat_request(hints, ahead=5, short=frozenset({"add"}))
    assert (request.limit, request.names) == (7, ["add"])
    assert repeat_request(hints, ahead=5, short=frozenset({"mail"})).limit == 2


def test_all_known_names_are_sent_once() -> None:
    kinds = TaskKinds.of(["add"])
    hints = repeated(Hints(), rows(("mail", 1)), kinds)
    request = hints.repeat_request(kinds, sync=1, ahead=0, asynchronous=0, most=1, short=frozenset())
    assert request is not None
    assert request.names is None


@pytest.mark.parametrize(
    "others",
    [{"task_name": "poll"}, {"status": "CLAIMED"}, {"is_workflow_task": True}, {"priority": 2}, {"queue_name": "b"}],
)
def test_rows_that_are_not_alike_are_not_repeated(others: dict[str, Any]) -> None:
    mixed = [*rows(("mail", 1)), {**rows(("mail", 1))[0], **others}]
    assert repeat_request(repeated(Hints(), mixed)) is None


def test_a_claim_without_rows_does_not_end_the_repetition() -> None:
    hints = repeated(repeated(Hints(), rows(("mail", 1))), [])
    assert repeat_request(hints) is not None


def test_without_room_there_is_no_repeated_claim() -> None:
    assert repeat_request(repeated(Hints(), rows(("mail", 1))), sync=0) is None
