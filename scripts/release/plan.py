"""What a release changes in the text of files, and when it is refused. Pure: no files, no git."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date

UNRELEASED = "## [Unreleased]"
_VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")


class ReleaseError(Exception):
    """Why there is no release; each problem is a line."""

    def __init__(self, *problems: str) -> None:
        super().__init__("\n".join(problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class State:
    """What is known of the repository before a release."""

    packages: Mapping[str, str]
    """The version in the pyproject of each package."""
    tags: Sequence[str]
    changed_files: Sequence[str]
    branch: str | None
    changelog: str
    overdue: Sequence[str] = ()
    """Deprecated names that this version had promised to remove."""


def parse(version: str) -> tuple[int, int, int]:
    found = _VERSION.fullmatch(version)
    if found is None:
        raise ReleaseError(f"{version!r} is no version: write three numbers, such as 1.2.0")
    return int(found[1]), int(found[2]), int(found[3])


def tag_of(version: str) -> str:
    return f"v{version}"


def released(tags: Sequence[str]) -> list[str]:
    """The versions of these tags, oldest first; other tags are left out."""
    versions = [tag[1:] for tag in tags if tag.startswith("v") and _VERSION.fullmatch(tag[1:])]
    return sorted(versions, key=parse)


def problems(version: str, state: State) -> list[str]:
    """Everything that stands against this release."""
    wanted = parse(version)
    found: list[str] = []
    if state.changed_files:
        names = ", ".join(state.changed_files[:5]) + (", ..." if len(state.changed_files) > 5 else "")
        found.append(f"the working tree has changes ({names}): commit or remove them")
    if state.branch is None:
        found.append("HEAD is not on a branch: check out the branch that gets the release commit")
    versions = sorted(set(state.packages.values()))
    if len(versions) > 1:
        each = ", ".join(f"{name} {found}" for name, found in sorted(state.packages.items()))
        found.append(f"the packages have different versions ({each}): give them the same one first")
    earlier = released(state.tags)
    if tag_of(version) in state.tags:
        found.append(f"the tag {tag_of(version)} exists: choose a higher version; a released version is never changed")
    elif earlier and wanted < parse(earlier[-1]):
        found.append(f"{version} is not higher than {earlier[-1]}, the last release")
    elif wanted < parse(versions[-1]):
        found.append(f"{version} is lower than {versions[-1]}, the version of the packages")
    if unreleased(state.changelog) is None:
        found.append(f"CHANGELOG.md has no line {UNRELEASED!r}")
    elif not unreleased(state.changelog):
        found.append("the section [Unreleased] of CHANGELOG.md is empty: there is nothing to release")
    found += [f"{one}: remove it, or promise a later version" for one in state.overdue]
    return found


# -- the changelog -------------------------------------------------------------------------------


def unreleased(changelog: str) -> str | None:
    """The entries of the section, empty when it has only headings; None when there is no such section."""
    body = _section(changelog, UNRELEASED)
    if body is None:
        return None
    has_entries = any(line.strip() and not line.startswith("#") for line in body.splitlines())
    return body.strip() if has_entries else ""


def cut(changelog: str, version: str, day: date) -> str:
    """The entries under [Unreleased] become those of the version; an empty section takes their place."""
    body = unreleased(changelog)
    if not body:
        raise ReleaseError("the section [Unreleased] of CHANGELOG.md is empty: there is nothing to release")
    before, heading, after = changelog.partition(f"{UNRELEASED}\n")
    return f"{before}{heading}\n## [{version}] - {day.isoformat()}\n{after}"


def _section(changelog: str, heading: str) -> str | None:
    """The lines between this heading of the second level and the next."""
    lines = changelog.splitlines()
    if heading not in lines:
        return None
    rest = lines[lines.index(heading) + 1 :]
    ends = [place for place, line in enumerate(rest) if line.startswith("## ")]
    return "\n".join(rest[: ends[0]] if ends else rest)


# -- versions in files ---------------------------------------------------------------------------


def project_with(text: str, old: str, new: str) -> str:
    """A pyproject.toml with the new version, also in its pins of the other packages."""
    changed, count = re.subn(rf'^version = "{re.escape(old)}"$', f'version = "{new}"', text, flags=re.M)
    if count != 1:
        raise ReleaseError(f'a pyproject.toml has {count} lines `version = "{old}"`, not one')
    return re.sub(rf'("horsies-[a-z]+(?:\[[^]]*\])?==){re.escape(old)}"', rf'\g<1>{new}"', changed)


def module_with(text: str, old: str, new: str) -> str:
    """An `__init__.py` with the new `__version__`."""
    changed, count = re.subn(rf'^__version__ = "{re.escape(old)}"$', f'__version__ = "{new}"', text, flags=re.M)
    if count != 1:
        raise ReleaseError(f'an __init__.py has {count} lines `__version__ = "{old}"`, not one')
    return changed


# -- provenance ----------------------------------------------------------------------------------


def provenance(version: str, commit: str, epoch: int, tools: Mapping[str, str], sums: Mapping[str, str]) -> str:
    """Where the artefacts come from, and how to get the same ones again."""
    lines = [
        f"horsies {version}",
        "",
        f"commit: {commit}",
        f"SOURCE_DATE_EPOCH: {epoch}",
        *(f"{name}: {found}" for name, found in tools.items()),
        "",
        "The artefacts were built twice, in different directories, with the same bytes, and the wheels once more from",
        "the sdists, with the same contents. To build them again:",
        "",
        f"    git checkout {tag_of(version)}",
        f"    SOURCE_DATE_EPOCH={epoch} uv build --all-packages --sdist --wheel --out-dir dist",
        "",
        "sha256:",
        "",
        *(f"    {found}  {name}" for name, found in sorted(sums.items())),
        "",
    ]
    return "\n".join(lines)
