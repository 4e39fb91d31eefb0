"""Ids sort by the time of their making, also within one millisecond, one process and many threads."""

import threading
import time
import uuid

from horsies.ids import new_id, new_ids


def test_they_are_uuid_version_7_with_the_time_in_front() -> None:
    before = time.time_ns() // 1_000_000
    made = [new_id(), *new_ids(100)]
    after = time.time_ns() // 1_000_000
    for text in made:
        parsed = uuid.UUID(text)
        assert str(parsed) == text
        assert parsed.version == 7
        assert parsed.variant == uuid.RFC_4122
        assert before <= parsed.int >> 80 <= after + 1_000  # a burst of ids runs ahead of the clock


def test_each_is_greater_than_the_one_before() -> None:
    made: list[str] = []
    for count in (1, 5_000, 1, 20_000, 1, 1):
        made += new_ids(count)
    made.append(new_id())
    assert made == sorted(set(made))
    assert new_ids(0) == []


def test_the_random_part_is_random() -> None:
    tails = [text[19:] for text in new_ids(10_000)]
    assert len(set(tails)) == 10_000
    assert {text[0] for text in tails} == set("89ab")
    assert {text[-1] for text in tails} == set("0123456789abcdef")


def test_threads_never_share_one() -> None:
    made: list[str] = []

    def make() -> None:
        for _ in range(200):
            made.extend(new_ids(7))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 8 * 200 * 7
