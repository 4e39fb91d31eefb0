"""The suite on other Pythons and other servers, and a table of what came of it: `just test-matrix`.

Without options it runs the whole suite on each supported Python with the embedded server, and on each supported server
with the Python of this repository. A Python that is not installed is told of in the table. Arguments behind `--` go to
pytest: `just test-matrix --python 3.13 --server 14 -- -n 2 tests/integration`.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tests.support.other_server import NPM_VERSIONS

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OWN_PYTHON = PYTHONS[0]
EMBEDDED = "18"
SERVERS = (*NPM_VERSIONS, EMBEDDED)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the suite."""

    python: str
    server: str
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    seconds: float = 0.0
    told: str = "not run"
    """How it ended, in a word or two."""

    @property
    def is_good(self) -> bool:
        return self.told in ("passed", MISSING)


MISSING = "no such Python here"


def cells(pythons: Sequence[str], servers: Sequence[str]) -> list[Cell]:
    """Pythons that were named on servers that were named; where only one kind was, on the own one of the other; where
    none was, each Python on the embedded server and each server with the own Python."""
    if pythons and servers:
        pairs = [(python, server) for python in pythons for server in servers]
    elif pythons or servers:
        pairs = [(python, EMBEDDED) for python in pythons] + [(OWN_PYTHON, server) for server in servers]
    else:
        pairs = [(python, EMBEDDED) for python in PYTHONS]
        pairs += [(OWN_PYTHON, server) for server in SERVERS if server != EMBEDDED]
    return [Cell(python, server) for python, server in pairs]


def counted(cell: Cell, report: Path, code: int, seconds: float) -> Cell:
    """The cell with the figures of pytest's report."""
    cell = replace(cell, seconds=seconds)
    if not report.exists():
        return replace(cell, told=f"pytest did not run: exit code {code}")
    suites = ElementTree.parse(report).getroot().iter("testsuite")
    total = failed = skipped = 0
    for suite in suites:
        total += int(suite.get("tests", 0))
        failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
        skipped += int(suite.get("skipped", 0))
    told = "passed" if code == 0 else f"failed: exit code {code}"
    return replace(cell, passed=total - failed - skipped, failed=failed, skipped=skipped, told=told)


def table(found: Sequence[Cell]) -> str:
    lines = ["| Python | PostgreSQL | passed | failed | skipped | minutes | |", "|---|---|---|---|---|---|---|"]
    lines += [
        f"| {_short(cell.python)} | {cell.server} | {cell.passed} | {cell.failed} | {cell.skipped} | "
        f"{cell.seconds / 60:.1f} | {cell.told} |"
        for cell in found
    ]
    return "\n".join(lines)


def _short(python: str) -> str:
    """A version as it is, and a path by its last part."""
    return Path(python).name.removeprefix("python")


def run(cell: Cell, arguments: Sequence[str], folder: Path) -> Cell:
    found = _path_of(cell.python)
    if found is None:
        return replace(cell, told=MISSING)
    environment = {key: value for key, value in os.environ.items() if key != "HORSIES_TEST_DATABASE_URL"}
    if cell.python != OWN_PYTHON:
        environment["UV_PROJECT_ENVIRONMENT"] = f".venv-{_short(cell.python)}"
    environment.pop("VIRTUAL_ENV", None)  # that of the Python which runs this program
    in_python = ["uv", "run", "--quiet", "--python", found]
    report = folder / f"{_short(cell.python)}-{cell.server}.xml"
    command = [*in_python, "pytest", f"--junit-xml={report}", *arguments]
    if cell.server != EMBEDDED:
        command = [*in_python, "python", "-m", "tests.support.other_server", cell.server, *command]
    began = time.monotonic()
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    return counted(cell, report, code, time.monotonic() - began)


def _path_of(python: str) -> str | None:
    """Where the interpreter is: as uv finds it, or among those of pyenv, also when pyenv has not switched it on."""
    search = ["uv", "python", "find", "--no-python-downloads", "--system", python]
    done = subprocess.run(search, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return done.stdout.strip()
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    return next((str(path) for path in sorted(home.glob(f"versions/{python}.*/bin/python{python}"))), None)


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="just test-matrix", description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", default=[], help="a version or a path; may be given several times")
    parser.add_argument("--server", action="append", default=[], choices=SERVERS, help="a version of PostgreSQL")
    parser.add_argument("--list", action="store_true", help="print what would run")
    parser.add_argument("arguments", nargs="*", help="for pytest, behind --")
    options = parser.parse_args(argv)
    found = cells(options.python, options.server)
    if not options.list:
        with tempfile.TemporaryDirectory(prefix="horsies-matrix-") as folder:
            for place, cell in enumerate(found):
                print(f"== Python {cell.python}, PostgreSQL {cell.server}", flush=True)  # noqa: T201
                found[place] = run(cell, options.arguments, Path(folder))
    print(table(found))  # noqa: T201
    return 0 if options.list or all(cell.is_good for cell in found) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
