"""tests/README.md maps every fault to a test that exists, or says why there is none."""

import re
from functools import cache
from pathlib import Path

TESTS = Path(__file__).parents[1]
# The numbers of the catalogue; those that are missing were merged into others.
NUMBERS = (
    "01 02 03 04 05 06 08 10 11 12 13 16 17 18 19 21 22 23 24 25 27 28 29 31 32 33 34 36 37 38 40 41 42 43 45 46 47 49 "
    "50 52 53 55 56 57 58 61 62 64 65 66 67 69 70 71 72 73 75 76 77 78 79 81 82 83 85 86 87 89 90 91 92 93 95 96 97 98 "
    "99 100 101 103 104 105 107 109 110 111 112 114 115 117 118 119 121 122 124 125 126 127 128"
)
_ROW = re.compile(r"^\| F(?P<number>\d+) \| (?P<fault>[^|]+) \| (?P<tests>[^|]+) \|$", re.MULTILINE)
_BEYOND = re.compile(r"^\| (?P<fault>[^|F][^|]*) \| (?P<tests>`[\w/]+\.py::[^|]+) \|$", re.MULTILINE)
_TEST = re.compile(r"`(?P<file>[\w/]+\.py)::(?P<name>test_\w+)`")


def rows(text: str) -> dict[str, str]:
    found = [(row["number"], row["tests"]) for row in _ROW.finditer(text)]
    assert len(found) == len(dict(found)), "a fault is listed twice"
    return dict(found)


def problems(text: str) -> list[str]:
    found = rows(text)
    missing = [f"F{number} is missing" for number in NUMBERS.split() if number not in found]
    surplus = [f"F{number} is not in the catalogue" for number in found if number not in NUMBERS.split()]
    unproven = [
        f"F{number} has neither a test nor a reason"
        for number, tests in found.items()
        if not _TEST.search(tests) and not tests.startswith("Reason: ")
    ]
    absent = [
        f"F{number}: there is no {test[0]}"
        for number, tests in found.items()
        for test in _TEST.finditer(tests)
        if test["name"] not in _names(test["file"])
    ]
    beyond = [
        f"{row['fault']}: there is no {test[0]}"
        for row in _BEYOND.finditer(text)
        for test in _TEST.finditer(row["tests"])
        if test["name"] not in _names(test["file"])
    ]
    return missing + surplus + unproven + absent + beyond


@cache
def _names(file: str) -> frozenset[str]:
    path = TESTS / file
    return frozenset(re.findall(r"def (test_\w+)", path.read_text()) if path.is_file() else ())


def test_every_fault_is_mapped_to_a_test_or_has_a_reason() -> None:
    assert problems((TESTS / "README.md").read_text()) == []


def test_the_page_of_security_names_tests_that_exist() -> None:
    page = (TESTS.parent / "docs/operations/security.md").read_text()
    named = list(_TEST.finditer(page))
    assert len(named) > 20
    assert [test[0] for test in named if test["name"] not in _names(test["file"])] == []


def test_that_check_can_fail() -> None:
    text = (TESTS / "README.md").read_text()
    assert problems(text.replace("| F01 |", "| F999 |")) == ["F01 is missing", "F999 is not in the catalogue"]
    assert problems(text.replace("test_a_poison_pill_among_others", "test_gone"))[0].startswith("F19: there is no")
    forks = "test_an_async_task_that_forks_leaves_its_siblings_to_the_original"
    assert problems(text.replace(forks, "test_gone")) == [
        "user code forks, and both processes go on: there is no `e2e/test_pool.py::test_gone`"
    ]
    assert problems(re.sub(r"\| F128 \| ([^|]+) \| [^|]+ \|", r"| F128 | \1 | later |", text)) == [
        "F128 has neither a test nor a reason"
    ]
