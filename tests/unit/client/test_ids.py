"""Ids sort by the time of their making, also within one millisecond, one process and many threads."""

import os
import re
import subprocess
import sys
import threading
import time
import uuid
from datetime import UTC, datetime

import pytest

from horsies.ids import derived_id, id_problem, is_storable_id, is_younger_than, new_id, new_ids


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
    assert {text[-3] for text in tails} == set("0123456789abcdef")


def test_all_ids_of_a_process_end_alike() -> None:
    """Their ends are announced on one channel; those of other processes nearly always on others."""
    make = "from horsies.ids import new_id, new_ids; print(*{text[-2:] for text in [new_id(), *new_ids(99), new_id()]})"
    runs = [subprocess.Popen([sys.executable, "-c", make], stdout=subprocess.PIPE, text=True) for _ in range(5)]
    found = {new_id()[-2:]}
    for run in runs:
        (bucket,) = run.communicate(timeout=60)[0].split()
        assert re.fullmatch("[0-9a-f]{2}", bucket)
        found.add(bucket)
    assert len(found) > 1
    assert {text[-2:] for text in new_ids(100)} == {new_id()[-2:]}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads: the child only makes ids
def test_a_forked_child_draws_another_bucket() -> None:
    found = {new_id()[-2:]}
    for _ in range(5):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writing, " ".join({text[-2:] for text in (new_id(), *new_ids(9))}).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            (bucket,) = pipe.read().split()
        found.add(bucket)
    assert len(found) > 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of a fork beside threads: the child only makes ids
def test_a_forked_child_draws_its_own() -> None:
    for _ in range(2):  # random parts are drawn ahead; if none is left at the first fork, some are at the second
        reading, writing = os.pipe()
        child = os.fork()
        if not child:
            try:
                os.write(writing, "".join(new_id()[19:] for _ in range(100)).encode())
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        os.close(writing)
        with os.fdopen(reading) as pipe:
            theirs = pipe.read()
        assert len(theirs) == 100 * 17
        assert not [tail for tail in (new_id()[19:] for _ in range(100)) if tail in theirs]


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


@pytest.mark.parametrize(
    ("task_id", "told"),
    [
        ("order-7", "is not a UUID"),
        ("", "is not a UUID"),
        (None, "is not a UUID"),
        (5, "is not a UUID"),
        (str(uuid.UUID(int=1)) + "0", "is not a UUID"),
        (
            str(uuid.UUID(int=0xABC)).upper(),
            "not written in the canonical form, '00000000-0000-0000-0000-000000000abc'",
        ),
        (uuid.UUID(int=1).hex, "not written in the canonical form"),
        (uuid.UUID(int=1), "not written in the canonical form"),
        (f"urn:uuid:{uuid.UUID(int=1)}", "not written in the canonical form"),
        ("٠" * 32, "not written in the canonical form"),  # digits, but not those of ASCII
    ],
)
def test_an_id_of_ones_own_is_a_canonical_uuid(task_id: object, told: str) -> None:
    problem = id_problem(task_id)
    assert problem is not None
    assert told in problem


def test_every_version_of_uuid_is_welcome() -> None:
    for task_id in (str(uuid.uuid1()), str(uuid.uuid4()), str(uuid.UUID(int=0)), new_id()):
        assert id_problem(task_id) is None


def test_which_ids_a_row_can_have() -> None:
    assert all(is_storable_id(task_id) for task_id in (new_id(), "", "a", "é" * 36))
    assert not any(is_storable_id(task_id) for task_id in ("x" * 37, "a\0", "\ud800", None, 5, ["a"], b"a"))


def test_the_age_of_an_id_is_in_it() -> None:
    fresh = new_id()
    assert is_younger_than(fresh, 10_000)
    assert not is_younger_than(fresh, 0)
    assert not is_younger_than(derived_id(datetime(2024, 1, 1, tzinfo=UTC), "a"), 10_000)
    assert not is_younger_than("order-7", 10_000)
    assert not is_younger_than("", 10_000)
