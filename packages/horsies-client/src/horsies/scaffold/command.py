"""`horsies init [DIRECTORY]`: a small project to start from."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from horsies import __version__
from horsies._command_line import Parser
from horsies._text import one_line, short
from horsies.scaffold.names import name_from, problem_with, suggested_name
from horsies.scaffold.rendering import Framework, project_files
from horsies.scaffold.writing import ScaffoldError, in_the_way, write

_OK: Final = 0
_PROBLEMS: Final = 1
_USAGE: Final = 2
_FRAMEWORKS: Final = frozenset(one.value for one in Framework if one is not Framework.NONE)


def build_parser() -> Parser:
    parser = Parser(
        prog="horsies init",
        description="Write a small project to start from: tasks, settings, tests in all modes of horsies.testing, "
        "Makefile, Dockerfile and compose.yaml. A file that exists is never overwritten: if one is in the way, nothing "
        "is written.",
        epilog="exit codes: 0 written; 1 not written; 2 usage",
        examples=("horsies init shop", "horsies init --framework fastapi --name shop_tasks --dry-run ."),
    )
    add = parser.add_argument
    add("directory", nargs="?", default=".", metavar="DIRECTORY", help="where; made if missing (default: here)")
    add(
        "--framework", choices=[one.value for one in Framework], default=Framework.NONE.value,
        help="the web framework of the project (default: %(default)s)",
    )  # fmt: skip
    add("--name", metavar="NAME", help="the import package of the project (default: by the directory's name)")
    add("--dry-run", action="store_true", help="list the files and write nothing")
    return parser


def main(argv: Sequence[str]) -> int:
    parser = build_parser()
    options = parser.parse_args(argv)
    if not options.directory or "\0" in options.directory:
        parser.error("DIRECTORY is not a path")
    return _init(Path(options.directory), Framework(options.framework), options.name, dry_run=options.dry_run)


def _init(directory: Path, framework: Framework, given_name: str | None, *, dry_run: bool) -> int:
    try:
        resolved = directory.resolve()
        is_here = resolved == Path.cwd()
    except (
        OSError,
        RuntimeError,
    ) as error:  # a loop of links (RuntimeError before Python 3.13), or no current directory
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return _complain(f"cannot find {directory}: {reason}", _PROBLEMS)
    name = name_from(resolved.name) if given_name is None else given_name
    source = "--name" if given_name is not None else "the directory's name"
    if (problem := problem_with(name)) is not None:
        return _refuse_name(name, source, problem)
    files = project_files(framework, name, __version__)
    try:
        existing = in_the_way(directory, files)
    except OSError as error:
        return _complain(f"cannot look into {error.filename or directory}: {error.strerror or error}", _PROBLEMS)
    if existing:
        _complain("these exist already, so nothing was written:", _PROBLEMS)
        for path in existing:
            print(f"  {one_line(str(path))}", file=sys.stderr)
        return _complain("choose another directory, or move them away", _PROBLEMS)
    # After the files: in the environment of a project, its own name is installed.
    if (problem := problem_with(name, _installed())) is not None:
        return _refuse_name(name, source, problem)
    if not dry_run:
        try:
            write(directory, files)
        except ScaffoldError as error:
            return _complain(str(error), _PROBLEMS)
    for path in files:
        print(f"  {one_line(str(directory / path))}")
    if dry_run:
        print(f"{len(files)} files would be written")
        return _OK
    print(f"{len(files)} files written. What to do next:\n")
    if not is_here:
        target = os.fspath(directory)
        print(f"  cd {one_line(shlex.quote(f'./{target}' if target.startswith('-') else target))}")
    print("  make          # lists what there is\n  make test\n  make dev")
    return _OK


def _refuse_name(name: str, source: str, problem: str) -> int:
    suggested = suggested_name(name)
    other = suggested if suggested != name and problem_with(suggested) is None else "my_shop"
    meant = f"; for a project with {name}: --framework {name}" if name in _FRAMEWORKS else ""
    return _complain(f"the name {short(name)!r}, by {source}, {problem}: choose one with --name {other}{meant}", _USAGE)


def _installed() -> set[str]:
    from importlib.metadata import packages_distributions

    return set(packages_distributions())


def _complain(text: str, code: int) -> int:
    print(f"horsies: {one_line(text)}", file=sys.stderr)
    return code
