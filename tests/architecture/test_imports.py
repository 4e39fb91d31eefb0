"""What an import may load, and which modules may import which."""

import pkgutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import horsies

HEAVY = ("sqlalchemy", "alembic", "textual", "psutil", "horsies_schema", "horsies_worker", "horsies_tui",
         "cronsim", "zoneinfo")  # fmt: skip


def modules_after(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nprint(*sorted(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import horsies", (*HEAVY, "asyncio", "asyncpg", "pydantic")),
        (
            "from horsies import AppConfig, Horsies, PostgresConfig; Horsies(AppConfig(PostgresConfig('dbname=x')))",
            (*HEAVY, "asyncio", "asyncpg", "pydantic"),
        ),
        ("from horsies import *", HEAVY),
        (
            "import horsies.cli",
            (*HEAVY, "asyncio", "asyncpg", "pydantic", "horsies.app", "horsies.operate.commands.tasks"),
        ),
        ("import horsies.operate.commands.tasks, horsies.operate.commands.doctor", (*HEAVY, "asyncpg", "pydantic")),
        ("import horsies.testing", (*HEAVY, "pytest", "asyncpg")),
        ("import horsies.pytest_plugin", (*HEAVY, "asyncpg", "pydantic", "horsies.app", "horsies.testing")),
        ("import horsies_schema", ("sqlalchemy", "alembic", "textual", "psutil", "horsies")),
        ("import horsies_schema.embedded", ("sqlalchemy", "alembic", "textual", "psutil", "horsies")),
    ],
)
def test_an_import_pulls_in_nothing_heavy(statement: str, unwanted: tuple[str, ...]) -> None:
    loaded = modules_after(statement)
    assert not loaded & set(unwanted)


def test_the_check_above_can_fail() -> None:
    assert "sqlalchemy" in modules_after("import horsies_schema.models")


def test_the_layers_of_the_client_list_every_module() -> None:
    """A module that the contract does not list could import any other."""
    settings = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if "horsies.app" in contract.get("layers", ())]
    listed = [name.strip(" ()") for layer in layers for name in layer.replace(":", "|").split("|")]
    found = [module for module in pkgutil.walk_packages(horsies.__path__, "horsies.") if not module.ispkg]
    assert len(found) > 50
    assert not [m.name for m in found if not any(f"{m.name}.".startswith(f"{name}.") for name in listed)]


def test_import_contracts() -> None:
    run = subprocess.run(
        [sys.executable, "-m", "importlinter.cli", "lint", "--no-cache"], check=False, capture_output=True, text=True
    )
    run = (
        run
        if run.stdout
        else subprocess.run(["lint-imports", "--no-cache"], check=False, capture_output=True, text=True)
    )
    assert run.returncode == 0, run.stdout + run.stderr
