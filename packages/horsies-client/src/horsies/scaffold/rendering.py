"""What the files of a new project contain: the templates of the package, with the project's name in them.

A template is a file as it will be, with four differences:

- `project_name` stands for the package, `project-name` for the distribution, and `HORSIES_BOUNDS` for the versions of
  horsies that fit, in names of files as well;
- lines between `#if fastapi flask` and `#end` are only for these frameworks;
- `dot_` at the beginning of a file's name is a dot: a real `.gitignore` would act on this repository;
- folders are laid over each other (`_FOLDERS`): a file replaces the one of the same name in a folder before.
"""

from collections.abc import Iterator
from enum import StrEnum
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import PurePosixPath
from typing import Final

_TEMPLATES: Final = "templates"
_IF: Final = "#if "
_END: Final = "#end"


class Framework(StrEnum):
    NONE = "none"
    FASTAPI = "fastapi"
    FLASK = "flask"
    DJANGO = "django"


_FOLDERS: Final = {
    Framework.NONE: ("common", "package", "none"),
    Framework.FASTAPI: ("common", "package", "fastapi"),
    Framework.FLASK: ("common", "package", "flask"),
    Framework.DJANGO: ("common", "django"),
}


def project_files(framework: Framework, name: str, version: str) -> dict[PurePosixPath, str]:
    """The files of a project by their path below its directory, in the order of their names."""
    words = {"project_name": name, "project-name": name.replace("_", "-"), "HORSIES_BOUNDS": bounds(version)}
    templates = files("horsies.scaffold") / _TEMPLATES
    found: dict[PurePosixPath, str] = {}
    for folder in _FOLDERS[framework]:
        for path, text in _walk(templates / folder, PurePosixPath()):
            found[PurePosixPath(_replaced(str(path), words))] = _replaced(chosen_lines(text, framework), words)
    return dict(sorted(found.items()))


def bounds(version: str) -> str:
    """The versions that promise to fit this one: up to the next minor release before 1.0, else to the next major."""
    major, minor, *_ = version.split(".")
    return f">={version},<{f'0.{int(minor) + 1}' if major == '0' else int(major) + 1}"


def chosen_lines(text: str, framework: Framework) -> str:
    """The text without the lines that are for other frameworks, and without the marks."""
    kept: list[str] = []
    is_chosen = True
    for line in text.splitlines(keepends=True):
        if line.startswith(_IF):
            is_chosen = framework.value in line.removeprefix(_IF).split()
        elif line.rstrip() == _END:
            is_chosen = True
        elif is_chosen:
            kept.append(line)
    return "".join(kept)


def _replaced(text: str, words: dict[str, str]) -> str:
    for word, replacement in words.items():
        text = text.replace(word, replacement)
    return text


def _walk(folder: Traversable, below: PurePosixPath) -> Iterator[tuple[PurePosixPath, str]]:
    for entry in folder.iterdir():
        if entry.name == "__pycache__":  # pip compiles the Python files of a wheel
            continue
        path = below / (f".{entry.name.removeprefix('dot_')}" if entry.name.startswith("dot_") else entry.name)
        if entry.is_dir():
            yield from _walk(entry, path)
        else:
            yield path, entry.read_text(encoding="utf-8")
