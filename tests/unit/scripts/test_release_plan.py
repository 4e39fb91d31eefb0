"""The decisions of `just release`: what it refuses, and what it writes."""

from dataclasses import replace
from datetime import date

import pytest

from scripts.deprecations import in_text
from scripts.release.plan import (
    ReleaseError,
    State,
    cut,
    module_with,
    problems,
    project_with,
    provenance,
    released,
    unreleased,
)

CHANGELOG = """\
# Changelog

## [Unreleased]

### Added

- **client**: a thing.

## [0.1.0] - 2026-01-01

- **client**: the first thing.
"""
READY = State(
    packages={"horsies-client": "0.1.0", "horsies-worker": "0.1.0"},
    tags=["v0.1.0", "other"],
    changed_files=[],
    branch="main",
    changelog=CHANGELOG,
)


def test_a_release_that_may_be() -> None:
    assert problems("0.2.0", READY) == []
    assert problems("1.0.0", READY) == []


def test_the_first_release_may_have_the_version_of_the_packages() -> None:
    assert problems("0.1.0", replace(READY, tags=[])) == []


@pytest.mark.parametrize("version", ["1", "1.2", "v1.2.3", "1.2.3rc1", "01.2.3", "1.2.3\n", ""])
def test_a_version_is_three_numbers(version: str) -> None:
    with pytest.raises(ReleaseError, match="is no version: write three numbers, such as"):
        problems(version, READY)


@pytest.mark.parametrize(
    ("version", "state", "told"),
    [
        ("0.2.0", replace(READY, changed_files=["a", "b"]), r"the working tree has changes \(a, b\)"),
        ("0.2.0", replace(READY, changed_files=list("abcdefg")), r"\(a, b, c, d, e, \.\.\.\)"),
        ("0.2.0", replace(READY, branch=None), "HEAD is not on a branch"),
        ("0.1.0", READY, "the tag v0.1.0 exists: choose a higher version"),
        ("0.0.9", READY, "0.0.9 is not higher than 0.1.0, the last release"),
        ("0.9.0", replace(READY, tags=["v0.9.1", "v0.10.0"]), "0.9.0 is not higher than 0.10.0"),
        ("0.0.9", replace(READY, tags=[]), "0.0.9 is lower than 0.1.0, the version of the packages"),
        (
            "0.2.0",
            replace(READY, packages={"horsies-client": "0.1.0", "horsies-tui": "0.1.1"}),
            r"different versions \(horsies-client 0.1.0, horsies-tui 0.1.1\)",
        ),
        ("0.2.0", replace(READY, changelog="# Changelog\n"), "has no line"),
        ("0.2.0", replace(READY, changelog=CHANGELOG.replace("- **client**: a thing.", "")), "nothing to release"),
        ("0.2.0", replace(READY, overdue=["app.py:3: a name"]), "app.py:3: a name: remove it, or promise"),
    ],
)
def test_a_release_that_is_refused(version: str, state: State, told: str) -> None:
    (problem,) = problems(version, state)
    with pytest.raises(ReleaseError, match=told):
        raise ReleaseError(problem)


def test_all_problems_are_told_at_once() -> None:
    assert len(problems("0.1.0", replace(READY, changed_files=["a"], branch=None, changelog=""))) == 4


def test_versions_are_ordered_as_numbers() -> None:
    assert released(["v0.10.0", "v0.9.0", "v1", "version", "0.1.0"]) == ["0.9.0", "0.10.0"]


def test_the_changelog_is_cut() -> None:
    after = cut(CHANGELOG, "0.2.0", date(2026, 2, 3))
    assert "## [Unreleased]\n\n## [0.2.0] - 2026-02-03\n\n### Added\n\n- **client**: a thing.\n" in after
    assert after.endswith(CHANGELOG.partition("## [0.1.0]")[2])
    assert unreleased(after) == ""
    with pytest.raises(ReleaseError, match="nothing to release"):
        cut(after, "0.3.0", date(2026, 2, 4))


def test_versions_in_files() -> None:
    project = (
        '[project]\nversion = "0.1.0"\ndependencies = ["horsies-client==0.1.0", "other==0.1.0"]\n'
        'testing = ["horsies-schema[embedded]==0.1.0"]\n'
    )
    changed = project_with(project, "0.1.0", "0.2.0")
    assert changed.count("0.2.0") == 3
    assert '"other==0.1.0"' in changed
    assert module_with('"""x"""\n__version__ = "0.1.0"\n', "0.1.0", "0.2.0").endswith('__version__ = "0.2.0"\n')
    with pytest.raises(ReleaseError, match="0 lines"):
        project_with(project, "0.1.1", "0.2.0")
    with pytest.raises(ReleaseError, match="0 lines"):
        module_with("", "0.1.0", "0.2.0")


def test_provenance_names_commit_tools_and_sums() -> None:
    text = provenance("0.2.0", "c" * 40, 1_700_000_000, {"uv": "1.2"}, {"b.whl": "2" * 64, "a.whl": "1" * 64})
    assert f"commit: {'c' * 40}\nSOURCE_DATE_EPOCH: 1700000000\nuv: 1.2\n" in text
    assert text.index(f"{'1' * 64}  a.whl") < text.index(f"{'2' * 64}  b.whl")


def test_deprecations_are_found_in_source() -> None:
    found = list(in_text('def f():\n    deprecated("x", since="1.2.0", instead="y", removed_in="2.0.0")\n', "app.py"))
    assert [(one.place, one.since, one.removed_in) for one in found] == [("app.py:2", "1.2.0", "2.0.0")]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ('deprecated("x", since="1.2.0", instead="y", removed_in=NEXT)', "app.py:1: write removed_in="),
        ('deprecation.deprecated("x", instead="y", removed_in="2.0.0")', "app.py:1: write since="),
        ('deprecated("x", since="1.2.0", instead="y", removed_in="1.3.0")', "stays until the next major one"),
        ('deprecated("x", since="1.2", instead="y", removed_in="2.0.0")', "is no version"),
    ],
)
def test_a_deprecation_without_a_promise_that_can_be_checked(call: str, told: str) -> None:
    with pytest.raises(ReleaseError, match=told):
        list(in_text(call, "app.py"))
