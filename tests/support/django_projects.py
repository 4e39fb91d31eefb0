"""Runs `manage.py` commands of the Django projects of the suite and of docs/examples, as their users do."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from psycopg.conninfo import conninfo_to_dict

from tests.support import postgres
from tests.support.postgres import Database
from tests.support.workers import WorkerProcess

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "docs" / "examples" / "django_project"
CASES = ROOT / "tests" / "support" / "django_cases"
DJANGO6 = ROOT / "tests" / "support" / "django6"
NAMES = {"PGDATABASE": "dbname", "PGUSER": "user", "PGPASSWORD": "password", "PGHOST": "host", "PGPORT": "port"}


def environment(db: Database, project: Path, **more: str) -> dict[str, str]:
    parts = conninfo_to_dict(db.url)
    database = {name: str(parts[key]) for name, key in NAMES.items() if parts.get(key)}
    settings = "config.settings" if project == EXAMPLE else "settings"
    others = {name: value for name, value in os.environ.items() if not name.startswith("HORSIES_DATABASE")}
    return {
        **others, "PGPORT": "5432", "DJANGO_SETTINGS_MODULE": settings, "PYTHONPATH": str(project),
        "CASES_TEMPLATE": postgres.template(), **database, **more,
    }  # fmt: skip


def manage(
    db: Database, project: Path, *arguments: str, python: str = sys.executable, code: int | None = 0, **more: str
) -> str:
    """What the command prints, in both streams; it must end with this code."""
    command = [python, "-W", "error::ResourceWarning", "-m", "django", *arguments]
    run = subprocess.run(
        command, cwd=project, env=environment(db, project, **more), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, timeout=180,
    )  # fmt: skip
    assert code is None or run.returncode == code, run.stdout
    return run.stdout


def manage_in_background(
    db: Database, project: Path, folder: Path, *arguments: str, more: Mapping[str, str] | None = None
) -> WorkerProcess:
    command = [sys.executable, str(project / "manage.py"), *arguments]
    if not Path(command[1]).exists():
        command[1:2] = ["-m", "django"]
    return WorkerProcess(command, environment(db, project, PYTHONUNBUFFERED="1", **(more or {})), folder, cwd=project)
