"""Wheels and sdists: building them, comparing them, and asking `twine` about them."""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from scripts.release.plan import ReleaseError

TWINE = "twine==7.0.0"
PACKAGES = ("horsies-client", "horsies-schema", "horsies-tui", "horsies-worker")


def run(command: Sequence[str | Path], cwd: Path, *, env: Mapping[str, str] | None = None) -> str:
    """The output of a command; a failure is an error with everything that it said."""
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = " ".join(str(word) for word in command)
        raise ReleaseError(f"`{words}` failed with exit code {done.returncode}:\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def build(root: Path, out: Path, epoch: int) -> dict[str, str]:
    """All wheels and sdists, each from the source itself; the sha256 of each file."""
    command = ["uv", "build", "--quiet", "--all-packages", "--sdist", "--wheel", "--out-dir", str(out)]
    run(command, root, env={"SOURCE_DATE_EPOCH": str(epoch)})
    return sums(out)


def sums(folder: Path) -> dict[str, str]:
    files = [*folder.glob("*.whl"), *folder.glob("*.tar.gz")]
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(files)}


def require_all(found: Mapping[str, str], version: str) -> None:
    """Of each package a wheel and an sdist, and nothing else."""
    stems = [f"{name.replace('-', '_')}-{version}" for name in PACKAGES]
    wanted = {f"{stem}-py3-none-any.whl" for stem in stems} | {f"{stem}.tar.gz" for stem in stems}
    if found.keys() != wanted:
        raise ReleaseError(f"the build gave {', '.join(sorted(found))}; wanted were {', '.join(sorted(wanted))}")


def require_same(first: Mapping[str, str], second: Mapping[str, str]) -> None:
    """Two builds of the same commit have the same bytes."""
    different = sorted(name for name in first.keys() | second.keys() if first.get(name) != second.get(name))
    if different:
        raise ReleaseError(f"two builds of one commit differ in {', '.join(different)}")


def rebuild_from_sdists(artefacts: Path, out: Path, root: Path, epoch: int) -> None:
    """The wheel that an installer makes of an sdist has the contents of our wheel."""
    for sdist in sorted(artefacts.glob("*.tar.gz")):
        command = ["uv", "build", "--quiet", "--wheel", "--out-dir", str(out), str(sdist)]
        run(command, root, env={"SOURCE_DATE_EPOCH": str(epoch)})
    for wheel in sorted(artefacts.glob("*.whl")):
        ours, theirs = contents(wheel), contents(out / wheel.name)
        different = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
        if different:
            raise ReleaseError(f"{wheel.name} built from its sdist differs in {', '.join(different)}")


def contents(artefact: Path) -> dict[str, bytes]:
    """The files of a wheel or an sdist."""
    if artefact.suffix == ".whl":
        with zipfile.ZipFile(artefact) as archive:
            return {name: archive.read(name) for name in archive.namelist()}
    with tarfile.open(artefact) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {member.name: opened.read() for member in members if (opened := archive.extractfile(member))}


def check_metadata(artefacts: Path) -> None:
    """`twine check`: the page of each package on an index can be rendered."""
    files = sorted(str(file) for file in artefacts.iterdir() if file.name.endswith((".whl", ".tar.gz")))
    run(["uv", "tool", "run", "--quiet", "--from", TWINE, "twine", "check", "--strict", *files], artefacts)


def tools(artefacts: Path) -> dict[str, str]:
    """The versions of what built the artefacts."""
    wheel = next(iter(sorted(artefacts.glob("*.whl"))))
    metadata = next(text for name, text in contents(wheel).items() if name.endswith(".dist-info/WHEEL"))
    generator = re.search(r"^Generator: (\S+) (\S+)$", metadata.decode(), re.M)
    if generator is None:
        raise ReleaseError(f"{wheel.name} does not say what built it")
    return {
        "Python": ".".join(str(part) for part in sys.version_info[:3]),
        "uv": run(["uv", "--version"], artefacts).split()[1],
        generator[1]: generator[2],
    }
