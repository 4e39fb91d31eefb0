"""`horsies-migrate` as a person or a script meets it: words on the right stream, and exit codes."""

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

import horsies_schema
from horsies_schema import cli
from tests.support.postgres import Database

URL = "HORSIES_DATABASE_URL"
Migrate = Callable[..., tuple[int, str, str]]


@pytest.fixture
def migrate(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Migrate:
    """The command in this process, which has loaded Alembic already; words are read from its descriptors. Tests below
    and in tests/migration/test_walk.py start real ones."""

    def run(*arguments: str, url: str | None = None) -> tuple[int, str, str]:
        monkeypatch.delenv(URL, raising=False)
        if url is not None:
            monkeypatch.setenv(URL, url)
        capfd.readouterr()
        try:
            code = cli.main(arguments)
        except SystemExit as left:  # argparse
            code = int(left.code or 0)
        return code, *capfd.readouterr()

    return run


def in_a_process(*arguments: str, url: str | None = None) -> tuple[int, str, str]:
    environment = {key: value for key, value in os.environ.items() if key != URL} | ({URL: url} if url else {})
    run = subprocess.run(
        [sys.executable, "-m", "horsies_schema.cli", *arguments], capture_output=True, text=True, env=environment
    )
    return run.returncode, run.stdout, run.stderr


def test_a_process_says_the_same(db: Database) -> None:
    head = horsies_schema.head()
    assert in_a_process("current", url=db.url) == (0, f"{head}\n", "")
    code, out, err = in_a_process("up", "--url", "postgresql://u:topsecret@127.0.0.1:1/x")
    assert (code, out) == (4, "")
    assert err.startswith("horsies-migrate: cannot reach the database")
    assert err.count("\n") == 1


def test_a_life_of_a_database(empty_db: Database, migrate: Migrate) -> None:
    head = horsies_schema.head()
    assert migrate("current", url=empty_db.url) == (0, "none\n", "")
    code, out, err = migrate("check", url=empty_db.url)
    assert (code, out) == (1, "")
    assert (
        err
        == f"horsies-migrate: the database has no horsies tables, this package needs {head}: run `horsies-migrate up`\n"
    )
    assert migrate("up", "0001", url=empty_db.url) == (0, "at revision 0001\n", "")
    assert migrate("check", url=empty_db.url)[0] == 1
    assert migrate("up", url=empty_db.url) == (0, f"at revision {head}\n", "")
    assert migrate("check", "--url", empty_db.url)[0] == 0
    code, _, err = migrate("down", "base", url=empty_db.url)
    assert code == 2
    assert "--yes" in err
    assert migrate("current", url=empty_db.url)[1] == f"{head}\n"
    assert migrate("down", "base", "--yes", url=empty_db.url)[0] == 0
    assert migrate("current", url=empty_db.url) == (0, "none\n", "")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["up"], 2, "give --url or set HORSIES_DATABASE_URL"),
        (["up", "--url", "mysql://x"], 2, "must begin with postgresql://"),
        (["up", "--url", "postgresql://u:topsecret@127.0.0.1:1/x"], 4, "cannot reach the database"),
        (
            ["up", "--url", "postgresql://u:topsecret@127.0.0.1:1/x", "--schema", "s" * 64],
            2,
            "cannot be a schema's name",
        ),
        (["sideways"], 2, "invalid choice"),
    ],
)
def test_a_wrong_call_gets_one_clear_sentence(migrate: Migrate, arguments: list[str], code: int, words: str) -> None:
    found, out, err = migrate(*arguments)
    assert (found, out) == (code, "")
    assert words in err
    assert "Traceback" not in err
    assert "topsecret" not in err


def test_an_unknown_revision_is_named(db: Database, migrate: Migrate) -> None:
    code, _, err = migrate("up", "4711", url=db.url)
    assert code == 2
    assert "4711" in err
    assert "Traceback" not in err


def test_sql_and_grants_need_no_database(migrate: Migrate) -> None:
    code, out, err = migrate("sql", "--schema", "jobs")
    assert (code, err) == (0, "")
    assert out.startswith('CREATE SCHEMA IF NOT EXISTS "jobs"')
    assert out.count("-- Running upgrade") == int(horsies_schema.head())
    assert migrate("sql", "--since", "0006")[1].count("-- Running upgrade") == int(horsies_schema.head()) - 6
    code, out, err = migrate("grants", "--prefix", "acme_")
    assert (code, err) == (0, "")
    assert 'CREATE ROLE "acme_producer" NOLOGIN' in out
