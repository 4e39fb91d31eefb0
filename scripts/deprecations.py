"""The calls of `horsies.deprecation.deprecated` in the packages, and those whose promised removal is due."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from scripts.release.plan import ReleaseError, parse


@dataclass(frozen=True, slots=True)
class Deprecation:
    place: str
    """File and line."""
    since: str
    removed_in: str


def overdue(packages: Path, version: str) -> list[str]:
    """What the release `version` had promised to have removed."""
    return [
        f"{one.place}: a name that was to be removed in {one.removed_in} is still there"
        for one in deprecations(packages)
        if parse(one.removed_in) <= parse(version)
    ]


def deprecations(packages: Path) -> list[Deprecation]:
    files = sorted(packages.glob("*/src/**/*.py"))
    return [one for file in files for one in in_text(file.read_text(), str(file.relative_to(packages.parent)))]


def in_text(source: str, name: str) -> Iterator[Deprecation]:
    """Each call in this source. Raises `ReleaseError` where a version is not a literal of three numbers."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or _called(node.func) != "deprecated":
            continue
        place = f"{name}:{node.lineno}"
        given = {word.arg: word.value for word in node.keywords}
        versions: dict[str, str] = {}
        for key in ("since", "removed_in"):
            value = given.get(key)
            if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                raise ReleaseError(f'{place}: write {key}="X.Y.Z", so that the promise can be checked')
            parse(value.value)
            versions[key] = value.value
        if parse(versions["since"])[0] >= parse(versions["removed_in"])[0]:
            raise ReleaseError(f"{place}: what a release deprecates stays until the next major one")
        yield Deprecation(place, versions["since"], versions["removed_in"])


def _called(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
