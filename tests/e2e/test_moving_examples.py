"""docs/examples/from_celery: one application before and after its move. The same tests run against both."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.postgres import Database

FOLDER = Path(__file__).parents[2] / "docs" / "examples" / "from_celery"


def run_tests(db: Database, shop: str) -> str:
    own = {
        "SHOP": shop, "HORSIES_DATABASE_URL": db.url,
        "SHOP_DATABASE_URL": db.url.replace("postgresql://", "postgresql+psycopg://"),
    }  # fmt: skip
    # without the plugins of this environment, which a reader does not have
    environment = {**os.environ, **own, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=FOLDER, env=environment, capture_output=True, text=True, timeout=120
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout.splitlines()[-1]


@pytest.mark.parametrize(("shop", "told"), [("before", "8 passed, 2 skipped in"), ("after", "10 passed in")])
def test_the_shop_does_the_same_before_and_after(db: Database, shop: str, told: str) -> None:
    assert run_tests(db, shop).startswith(told)
