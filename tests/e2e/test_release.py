"""`just release` on a clone of this repository: what it leaves behind, and that a refusal leaves nothing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.release.__main__ import ROOT, release, state_of
from scripts.release.artefacts import sums
from scripts.release.plan import ReleaseError, parse, released, tag_of, unreleased

ENTRY = "- **client**: an entry of the test."


def git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """This repository's last commit, with an entry in the changelog."""
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True).returncode != 0:
        pytest.skip("this is no git repository")
    place = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", str(ROOT), str(place))
    git(place, "checkout", "--quiet", "-B", "main")
    git(place, "config", "user.name", "Test")
    git(place, "config", "user.email", "test@example.org")
    changelog = place / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## [Unreleased]\n", f"## [Unreleased]\n\n{ENTRY}\n", 1))
    git(place, "commit", "--quiet", "--all", "--message", "test: An entry")
    return place


def next_version(clone: Path) -> str:
    state = state_of(clone, "0.0.1")
    major, minor, _ = max(parse(version) for version in (*released(state.tags), *state.packages.values()))
    return f"{major}.{minor + 1}.0"


def test_refusals_leave_the_repository_as_it_was(clone: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    version = next_version(clone)
    git(clone, "tag", tag_of(version))
    (clone / "README.md").write_text("changed")
    with pytest.raises(ReleaseError) as refused:
        release(clone, version, dry_run=False, say=lambda _: None)
    assert [problem.partition(":")[0] for problem in refused.value.problems] == [
        "the working tree has changes (README.md)",
        f"the tag {tag_of(version)} exists",
    ]
    assert git(clone, "rev-parse", "HEAD") == before
    assert not (clone / "dist").exists()


def test_the_command_tells_every_problem_on_a_line(clone: Path) -> None:
    (clone / "new-file").write_text("")
    run = subprocess.run(
        [sys.executable, "-m", "scripts.release", "0.0.1"],
        cwd=clone, env={**os.environ, "PYTHONPATH": "."}, capture_output=True, text=True,
    )  # fmt: skip
    assert (run.returncode, run.stdout) == (1, "")
    lines = run.stderr.splitlines()
    assert lines[0] == "release: the working tree has changes (new-file): commit or remove them"
    assert lines[1].startswith("release: 0.0.1 is ")


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_release_is_built_tried_committed_and_tagged(clone: Path) -> None:
    version = next_version(clone)
    before = git(clone, "rev-parse", "HEAD")
    said: list[str] = []
    release(clone, version, dry_run=True, say=said.append)
    assert said[-1] == "dry run: nothing was changed"
    assert (git(clone, "rev-parse", "HEAD"), git(clone, "status", "--porcelain")) == (before, "")
    assert tag_of(version) not in git(clone, "tag", "--list").split()

    release(clone, version, dry_run=False, say=said.append)
    assert git(clone, "rev-parse", "HEAD~1") == before
    assert git(clone, "status", "--porcelain") == ""  # dist/ is ignored
    assert git(clone, "rev-parse", f"{tag_of(version)}^{{commit}}") == git(clone, "rev-parse", "HEAD")
    assert git(clone, "cat-file", "-t", tag_of(version)) == "tag"
    changelog = (clone / "CHANGELOG.md").read_text()
    assert unreleased(changelog) == ""
    assert f"## [{version}] - 20" in changelog
    state = state_of(clone, version)
    assert set(state.packages.values()) == {version}
    artefacts = sums(clone / "dist" / version)
    assert len(artefacts) == 8
    notes = (clone / "dist" / version / "PROVENANCE.txt").read_text()
    assert f"commit: {git(clone, 'rev-parse', 'HEAD')}" in notes
    assert all(f"{found}  {name}" in notes for name, found in artefacts.items())
    assert git(clone, "tag", "--list", "--format=%(contents)", tag_of(version)) == notes.strip()
    with pytest.raises(ReleaseError, match="exists: choose a higher version"):
        release(clone, version, dry_run=False, say=said.append)
