"""The backend of `django.tasks`, which begins with Django 6.0 and Python 3.12: `just test-django6` makes that place."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.test_django import passed
from tests.support.django_projects import CASES, DJANGO6, EXAMPLE, ROOT, manage
from tests.support.postgres import Database

VARIABLE = "HORSIES_TEST_DJANGO6_PYTHON"
PYTHON = os.environ.get(VARIABLE) or str(ROOT / ".venv-django6" / "bin" / "python")

pytestmark = pytest.mark.skipif(
    not Path(PYTHON).exists(), reason=f"needs Python 3.12 with Django 6.0: `just test-django6`, or {VARIABLE}"
)


def test_it_is_django_6() -> None:
    found = subprocess.run([PYTHON, "-m", "django", "--version"], capture_output=True, text=True, check=True).stdout
    assert found.startswith("6.")


def test_the_backend(empty_db: Database) -> None:
    assert passed(manage(empty_db, DJANGO6, "test", "jobs", "--noinput", python=PYTHON)) == 10


@pytest.mark.parametrize(("project", "label", "tests"), [(EXAMPLE, "shop", 9), (CASES, "cases", 35)])
def test_the_other_projects_run_on_it_too(empty_db: Database, project: Path, label: str, tests: int) -> None:
    assert passed(manage(empty_db, project, "test", label, "--noinput", python=PYTHON)) == tests
