"""`horsies-migrate up --grants`, for a job that migrates with every deploy."""

import uuid
from collections.abc import Iterator

import pytest

import horsies_schema
from horsies_schema import MigrationError
from horsies_schema.cli import main
from horsies_schema.roles import ROLES
from tests.support.postgres import Database
from tests.support.roles import login, may


@pytest.fixture
def prefix(empty_db: Database) -> Iterator[str]:
    found = f"j{uuid.uuid4().hex[:8]}_"
    yield found
    for (name,) in empty_db.execute("SELECT rolname FROM pg_roles WHERE rolname LIKE %s", found + "%"):
        empty_db.execute(f'DROP OWNED BY "{name}" CASCADE')
        empty_db.execute(f'DROP ROLE "{name}"')


@pytest.mark.parametrize("schema", [None, "queue"])
def test_it_migrates_and_grants_in_the_same_place(
    empty_db: Database, prefix: str, schema: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["up", "--grants", "--prefix", prefix, "--url", empty_db.url]
    for _ in range(2):  # every deploy runs it again
        assert main([*command, *(["--schema", schema] if schema else [])]) == 0
    assert f"granted to {', '.join(prefix + role for role in ROLES)}\n" in capsys.readouterr().out
    viewer = login(empty_db, f"{prefix}someone", f'IN ROLE "{prefix}viewer"')
    place = schema or "public"
    assert may(viewer, f"SELECT status FROM {place}.horsies_tasks")
    assert not may(viewer, f"SELECT result FROM {place}.horsies_tasks")


def test_an_account_that_may_not_grant_is_told(empty_db: Database, prefix: str) -> None:
    owner = login(empty_db, f"{prefix}owner")
    empty_db.execute(f'GRANT CREATE, USAGE ON SCHEMA public TO "{prefix}owner"')
    horsies_schema.upgrade(owner.url)
    with pytest.raises(
        MigrationError, match=r"rights were not granted: permission denied to create role; let the"
    ) as it:
        horsies_schema.apply_grants(owner.url, prefix=prefix)
    assert it.value.code == 3


def test_an_older_revision_has_no_grants_of_this_release(
    empty_db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", "0001", "--grants", "--url", empty_db.url]) == 2
    assert "--grants needs the newest revision" in capsys.readouterr().err
    assert horsies_schema.current(empty_db.url) is None
