"""The command line in the hands of an operator: run in this process, or as one of its own; words and exit code."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from horsies import cli
from tests.support.postgres import Database


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[list[str]]:
        """The lines of a table without its head, in words."""
        return [line.split() for line in self.out.splitlines()[1:] if line]


class Operator:
    """`operator("tasks", "list")` on one database."""

    def __init__(self, db: Database, capsys: pytest.CaptureFixture[str]) -> None:
        self.db = db
        self._capsys = capsys

    def __call__(self, *arguments: str, url: str | None = None) -> Ran:
        self._capsys.readouterr()
        try:
            code = cli.main([*arguments, "--database-url", url or self.db.url])
        except SystemExit as stop:  # argparse's way to refuse
            code = int(stop.code or 0)
        said = self._capsys.readouterr()
        return Ran(code, said.out, said.err)

    def json(self, *arguments: str, url: str | None = None) -> Any:
        return self(*arguments, "--json", url=url).json


def as_process(*arguments: str, url: str | None, **options: Any) -> Ran:
    """The same through a real process; the database by the environment."""
    environment = {key: value for key, value in os.environ.items() if key != "HORSIES_DATABASE_URL"}
    if url is not None:
        environment["HORSIES_DATABASE_URL"] = url
    run = subprocess.run(
        [sys.executable, "-m", "horsies.cli", *arguments], capture_output=True, text=True, env=environment, **options
    )
    return Ran(run.returncode, run.stdout, run.stderr)
