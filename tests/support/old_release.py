"""Earlier releases of horsies, built from the history of this repository into environments of their own.

The last release is that of the last tag. Before the first tag it is the newest commit at an older schema revision that
code of today still shares a database with.
"""

import re
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.release.plan import released, tag_of

ROOT = Path(__file__).parents[2]
GUARD = "packages/horsies-client/src/horsies/_pg/schema_guard.py"
VERSIONS = "packages/horsies-schema/src/horsies_schema/migrations/versions"
PACKAGES = ("horsies-client", "horsies-worker", "horsies-schema")


class NoHistory(Exception):
    """Why there is no earlier release to be built."""


@dataclass(frozen=True, slots=True)
class Release:
    commit: str
    head: str
    """The newest schema revision that it knows."""
    programs: Path

    def run(self, *words: str, env: dict[str, str], cwd: Path) -> tuple[int, str]:
        """A program of its environment: exit code and everything that it said."""
        command = [str(self.programs / words[0]), *words[1:]]
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=120)
        return done.returncode, done.stdout + done.stderr


def last_release(head: str, breaking: str) -> tuple[str, str]:
    """Commit and newest schema revision of the last release before this code."""
    here = _git("rev-parse", "HEAD").strip()
    for version in reversed(released(_git("tag", "--list", "v*").split())):
        commit = _git("rev-parse", f"{tag_of(version)}^{{commit}}").strip()
        revision = _revision(commit)
        if commit != here and revision is not None:
            return commit, revision
    return _newest(lambda revision: breaking <= revision < head)


def release_before(breaking: str) -> tuple[str, str]:
    """Commit and newest schema revision of the last code that does not know this breaking revision."""
    return _newest(lambda revision: revision < breaking)


def build(commit: str, head: str, folder: Path) -> Release:
    """Wheels of that commit, installed with the dependencies that its own configuration pins."""
    source = folder / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
    build = ["uv", "build", "--quiet", "--all-packages", "--wheel", "--out-dir", str(folder / "wheels")]
    subprocess.run(build, cwd=source, check=True)
    programs = folder / "venv" / "bin"
    subprocess.run(["uv", "venv", "--quiet", str(folder / "venv")], cwd=source, check=True)
    wheels = [next((folder / "wheels").glob(f"{name.replace('-', '_')}-*.whl")) for name in PACKAGES]
    install = ["uv", "pip", "install", "--quiet", "--python", str(programs / "python"), *map(str, wheels)]
    subprocess.run(install, cwd=source, check=True)
    return Release(commit, head, programs)


# -- history -------------------------------------------------------------------------------------


def _newest(is_wanted: Callable[[str], bool]) -> tuple[str, str]:
    for commit in _states():
        revision = _revision(commit)
        if revision is not None and is_wanted(revision):
            return commit, revision
    raise NoHistory("the history of this clone is too short: no commit at an older schema revision")


def _states() -> Iterator[str]:
    """Newest first: before each change of the schema's revisions, the last commit of the main line."""
    for commit in _git("rev-list", "--first-parent", "HEAD", "--", GUARD, VERSIONS).split():
        before = subprocess.run(
            ["git", "rev-parse", "--verify", "--quiet", f"{commit}^1"], cwd=ROOT, capture_output=True, text=True
        )
        if before.returncode == 0:
            yield before.stdout.strip()


def _revision(commit: str) -> str | None:
    """The newest revision at that commit; None where client and migrations differ, in the midst of a change."""
    try:
        guard = re.search(r'^HEAD_REVISION: Final = "(\d+)"', _git("show", f"{commit}:{GUARD}"), re.M)
        files = _git("ls-tree", "--name-only", commit, f"{VERSIONS}/").split()
    except NoHistory:
        return None
    newest = max((Path(file).name[:4] for file in files if file.endswith(".py")), default=None)
    return newest if guard is not None and guard[1] == newest else None


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        raise NoHistory(done.stderr.strip())
    return done.stdout
