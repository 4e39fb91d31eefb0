"""The command. Everything happens in a clone: a release that fails half-way leaves the repository as it was."""

import argparse
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from scripts.deprecations import overdue
from scripts.release import artefacts, trial
from scripts.release.artefacts import run
from scripts.release.plan import ReleaseError, State, cut, module_with, problems, project_with, provenance, tag_of

ROOT = Path(__file__).parents[2]
Say = Callable[[str], None]


def state_of(root: Path, version: str) -> State:
    branch = run(["git", "branch", "--show-current"], root).strip()
    return State(
        packages={name: _version_of(root / "packages" / name / "pyproject.toml") for name in artefacts.PACKAGES},
        tags=run(["git", "tag", "--list"], root).split(),
        changed_files=[line[3:] for line in run(["git", "status", "--porcelain"], root).splitlines()],
        branch=branch or None,
        changelog=(root / "CHANGELOG.md").read_text(),
        overdue=overdue(root / "packages", version),
    )


def _version_of(project: Path) -> str:
    return str(tomllib.loads(project.read_text())["project"]["version"])


def release(root: Path, version: str, *, dry_run: bool, out: Path | None = None, say: Say = print) -> None:
    """Make the release, or raise `ReleaseError` and change nothing."""
    state = state_of(root, version)
    if found := problems(version, state):
        raise ReleaseError(*found)
    out = out or root / "dist" / version
    with tempfile.TemporaryDirectory(prefix="horsies-release-") as name:
        folder = Path(name)
        folder.chmod(0o711)  # as root, the trial's database server runs under another account
        clone = folder / "clone"
        run(["git", "clone", "--quiet", "--no-tags", "--", root, clone], folder)
        commit = _commit(clone, root, version, next(iter(state.packages.values())))
        epoch = int(run(["git", "log", "-1", "--format=%ct", commit], clone))
        say(f"building {version} from {commit[:12]}, twice")
        built = artefacts.build(clone, folder / "built", epoch)
        artefacts.require_all(built, version)
        again = folder / "another-directory" / "clone"
        run(["git", "clone", "--quiet", "--no-tags", "--", clone, again], folder)
        artefacts.require_same(built, artefacts.build(again, folder / "again", epoch))
        say("building the wheels from the sdists")
        artefacts.rebuild_from_sdists(folder / "built", folder / "from-sdists", clone, epoch)
        say("asking twine")
        artefacts.check_metadata(folder / "built")
        say("trying the wheels in an empty environment")
        trial.use(folder / "built", version, _made(folder / "trial"), sys.executable)
        text = provenance(version, commit, epoch, artefacts.tools(folder / "built"), built)
        say(text)
        if dry_run:
            say("dry run: nothing was changed")
            return
        _bring_in(root, clone, commit, version, text)
        _made(out)
        for file in built:
            shutil.copy2(folder / "built" / file, out / file)
        (out / "PROVENANCE.txt").write_text(text)
    say(f"committed and tagged {tag_of(version)}; the artefacts are in {out}")
    say(f"nothing was pushed or uploaded: git push origin {state.branch} {tag_of(version)}")


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _commit(clone: Path, root: Path, version: str, old: str) -> str:
    """Write the version and the changelog, and commit them with the identity of the repository."""
    projects = [clone / "pyproject.toml", *sorted((clone / "packages").glob("*/pyproject.toml"))]
    for project in projects:
        project.write_text(project_with(project.read_text(), old, version))
    for name in artefacts.PACKAGES:
        module = clone / "packages" / name / "src" / _import_name(name) / "__init__.py"
        module.write_text(module_with(module.read_text(), old, version))
    changelog = clone / "CHANGELOG.md"
    changelog.write_text(cut(changelog.read_text(), version, datetime.now(UTC).date()))
    identity: list[str] = []
    for key in ("user.name", "user.email"):
        identity += ["-c", f"{key}={run(['git', 'config', key], root).strip()}"]
    run(["git", *identity, "commit", "--quiet", "--all", "--message", f"all: Release {version}"], clone)
    return run(["git", "rev-parse", "HEAD"], clone).strip()


def _import_name(package: str) -> str:
    return "horsies" if package == "horsies-client" else package.replace("-", "_")


def _bring_in(root: Path, clone: Path, commit: str, version: str, text: str) -> None:
    run(["git", "fetch", "--quiet", "--no-tags", "--", clone, "HEAD"], root)
    run(["git", "merge", "--quiet", "--ff-only", commit], root)
    tag = ["git", "tag", "--annotate", "--cleanup=verbatim", "--message", text, tag_of(version), commit]
    run(tag, root)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="just release", description="Build, try, commit and tag a release.")
    parser.add_argument("version", help="three numbers, such as 1.2.0")
    parser.add_argument("--dry-run", action="store_true", help="do everything in a clone and change nothing here")
    options = parser.parse_args(argv)
    try:
        release(ROOT, options.version, dry_run=options.dry_run)
    except ReleaseError as error:
        for problem in error.problems:
            print(f"release: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
