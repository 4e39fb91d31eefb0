"""Which servers a worker believes to lead."""

import pytest

from horsies_worker.database.leadership import REFUSED_S, Leadership


def test_an_older_timeline_of_the_same_cluster_is_refused() -> None:
    leadership = Leadership()
    leadership.compare(1, 3)
    leadership.compare(1, 4)
    with pytest.raises(ConnectionError, match="timeline 3, and another one leads on timeline 4"):
        leadership.compare(1, 3)
    leadership.compare(1, 4)


def test_another_cluster_has_timelines_of_its_own() -> None:
    leadership = Leadership()
    leadership.compare(1, 4)
    leadership.compare(2, 1)
    leadership.compare(2, 1)


def test_a_server_that_stays_the_only_one_is_believed_in_the_end() -> None:
    """It was restored from a backup, and counts its timelines from there."""
    now = [100.0]
    leadership = Leadership(lambda: now[0])
    leadership.compare(1, 4)
    for at in (100.0, 100.0 + REFUSED_S - 1):
        now[0] = at
        with pytest.raises(ConnectionError):
            leadership.compare(1, 2)
    now[0] = 100.0 + REFUSED_S
    leadership.compare(1, 2)
    leadership.compare(1, 2)
    leadership.compare(1, 3)


def test_a_contact_with_the_leader_ends_the_refusal() -> None:
    now = [100.0]
    leadership = Leadership(lambda: now[0])
    leadership.compare(1, 4)
    with pytest.raises(ConnectionError):
        leadership.compare(1, 3)
    leadership.compare(1, 4)
    now[0] += REFUSED_S
    with pytest.raises(ConnectionError):
        leadership.compare(1, 3)
