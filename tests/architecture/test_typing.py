"""The public names are typed end to end, for users of pyright and for users of mypy: tests/typing says how."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
MISTAKES = """
from typing import assert_type

from horsies import TaskHandle
from tests.typing.tasks import receipt

assert_type(receipt.send, TaskHandle[int])
unneeded = 1  # type: ignore[assignment]
"""


@pytest.fixture
def mistakes(tmp_path: Path) -> Path:
    """One wrong claim and one ignore comment that nothing needs: a checker that is silent about these is
    not looking at the rest either."""
    path = tmp_path / "mistakes.py"
    path.write_text(MISTAKES)
    return path


def lines_by_file(run: subprocess.CompletedProcess[str], found: list[tuple[str, int, str]]) -> dict[str, list[int]]:
    assert found, run.stdout + run.stderr
    surprises = [f"{path}:{line}: {message}" for path, line, message in found if not path.endswith("mistakes.py")]
    assert not surprises, "\n".join(surprises)
    return {Path(path).name: sorted(line for _, line, _ in found) for path, _, _ in found}


def test_pyright_agrees(mistakes: Path) -> None:
    run = check("pyright", "--outputjson", "--project", str(ROOT), "tests/typing", str(mistakes))
    report: dict[str, Any] = json.loads(run.stdout)
    assert report["summary"]["filesAnalyzed"] >= 5
    found = [
        (item["file"], item["range"]["start"]["line"] + 1, item["message"]) for item in report["generalDiagnostics"]
    ]
    assert lines_by_file(run, found) == {"mistakes.py": [7, 8]}


def test_mypy_agrees(mistakes: Path, tmp_path: Path) -> None:
    run = check("mypy", "--output", "json", "--cache-dir", str(tmp_path / "cache"), "tests/typing", str(mistakes))
    items = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    found = [(item["file"], item["line"], item["message"]) for item in items if item["severity"] == "error"]
    assert lines_by_file(run, found) == {"mistakes.py": [7, 8]}


def check(tool: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", tool, *arguments], cwd=ROOT, capture_output=True, text=True)
