"""The fixtures of the pytest plugin, in a run of pytest that finds it by its entry point."""

import subprocess
import sys
from pathlib import Path

SHOP = """
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

app = Horsies(AppConfig(PostgresConfig("postgresql://nobody@127.0.0.1:1/nowhere")))

@app.task("add")
def add(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)
"""
TESTS = """
from shop import add, app

def test_recorded(horsies_recorded):
    add.send(1, 2)
    horsies_recorded.assert_sent(add, 1, 2)

def test_inline(horsies_inline):
    assert add.send(1, 2).get().ok == 3
    assert len(horsies_inline) == 1

def test_after():
    assert app.stand_in is None
"""


def pytest_in(folder: Path, **files: str) -> str:
    for name, text in {"shop.py": SHOP, "test_shop.py": TESTS, **files}.items():
        (folder / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True).stdout


def test_the_app_of_the_ini_option(tmp_path: Path) -> None:
    assert "3 passed" in pytest_in(tmp_path, **{"pytest.ini": "[pytest]\nhorsies_app = shop:app\n"})


def test_the_app_of_a_fixture(tmp_path: Path) -> None:
    fixture = "import pytest, shop\n\n@pytest.fixture\ndef horsies_app():\n    return shop.app\n"
    assert "3 passed" in pytest_in(tmp_path, **{"pytest.ini": "[pytest]\n", "conftest.py": fixture})


def test_without_an_app_it_says_what_to_do(tmp_path: Path) -> None:
    told = pytest_in(tmp_path, **{"pytest.ini": "[pytest]\n"})
    assert "define a fixture horsies_app that returns it" in told
    assert "1 passed, 2 errors" in told
    wrong = pytest_in(tmp_path, **{"pytest.ini": "[pytest]\nhorsies_app = shop:ap\n"})
    assert "the ini option horsies_app: module 'shop' has no 'ap'" in wrong
