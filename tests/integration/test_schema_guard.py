"""Which revision of the schema works with which release: client, worker, doctor and `horsies-migrate` agree."""

import asyncio
import logging
from typing import Any

import pytest

import horsies_schema
from horsies import AppConfig, PostgresConfig
from horsies._pg.schema_guard import HEAD_REVISION, REQUIRED_REVISION
from horsies.errors import SchemaError
from horsies.operate.doctor import Finding, Severity, examine
from horsies_schema import MigrationError, environment
from horsies_worker.database.connect import prepare_database
from tests.support.apps import add_task, async_app_on, make_app
from tests.support.postgres import Database
from tests.support.roles import accounts


async def ready(db: Database, *, auto_migrate: bool) -> str:
    """What a worker or a scheduler does first; the revision that it then works with."""
    async with make_app(db, auto_migrate=auto_migrate) as app:
        found: list[str] = []

        async def look(connection: Any) -> None:
            found.append(await connection.fetchval("SELECT version_num FROM horsies_alembic_version"))

        await prepare_database(app, app.config.broker, look, timeout_s=10)
        return found[0]


def doctor(db: Database) -> Finding:
    return next(one for one in asyncio.run(examine(AppConfig(PostgresConfig(db.url)))) if one.check == "schema")


def test_the_client_knows_the_newest_revision() -> None:
    assert horsies_schema.head() == HEAD_REVISION
    assert REQUIRED_REVISION <= HEAD_REVISION


# -- behind --------------------------------------------------------------------------------------


@pytest.mark.parametrize("revision", ["0009", "0010", REQUIRED_REVISION])
async def test_a_worker_upgrades_whatever_is_behind(empty_db: Database, revision: str) -> None:
    await horsies_schema.upgrade_async(empty_db.url, revision)
    assert await ready(empty_db, auto_migrate=True) == HEAD_REVISION
    await horsies_schema.check_async(empty_db.url)


@pytest.mark.skipif(REQUIRED_REVISION == HEAD_REVISION, reason="every revision before the newest is too old")
async def test_one_that_may_not_upgrade_works_with_what_is_enough(
    empty_db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await horsies_schema.upgrade_async(empty_db.url, REQUIRED_REVISION)
    told = f"the database is at revision {REQUIRED_REVISION}, this release needs {HEAD_REVISION}: run `horsies-migrate"
    with caplog.at_level(logging.WARNING, "horsies.worker"):
        assert await ready(empty_db, auto_migrate=False) == REQUIRED_REVISION
    assert told in caplog.text
    async with async_app_on(empty_db) as app:
        await add_task(app).send_async(1)


@pytest.mark.skipif(REQUIRED_REVISION == HEAD_REVISION, reason="every revision before the newest is too old")
async def test_one_that_cannot_upgrade_works_with_what_is_enough(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    with accounts(db) as found:
        await horsies_schema.downgrade_async(db.url, REQUIRED_REVISION)
        with caplog.at_level(logging.WARNING, "horsies.worker"):
            assert await ready(found["worker"], auto_migrate=True) == REQUIRED_REVISION
    assert "the upgrade failed" in caplog.text
    assert "which owns the horsies tables" in caplog.text


@pytest.mark.parametrize("revision", ["0009", "0010", "0011", "0012", REQUIRED_REVISION])
def test_what_is_behind_is_named_in_the_same_words(empty_db: Database, revision: str) -> None:
    if revision == HEAD_REVISION:
        pytest.skip("nothing is behind")
    horsies_schema.upgrade(empty_db.url, revision)
    with pytest.raises(MigrationError) as checked:
        horsies_schema.check(empty_db.url)
    told = doctor(empty_db)
    assert str(checked.value) == f"{told.what}: {told.fix}"
    assert told.severity is (Severity.WARN if revision >= REQUIRED_REVISION else Severity.PROBLEM)
    if revision < REQUIRED_REVISION:
        with pytest.raises(SchemaError) as refused:
            asyncio.run(ready(empty_db, auto_migrate=False))
        assert str(refused.value) == str(checked.value)


def test_the_current_one_is_not_called_newer(db: Database) -> None:
    told = doctor(db)
    assert (told.severity, told.what) == (Severity.OK, f"revision {HEAD_REVISION}")


# -- ahead ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("breaking", ["NULL", "'0001'", f"'{HEAD_REVISION}'"])
async def test_a_newer_database_that_breaks_nothing_works(db: Database, breaking: str) -> None:
    db.execute(f"UPDATE horsies_alembic_version SET version_num = '9999', breaking = {breaking}")
    async with async_app_on(db) as app:
        await add_task(app).send_async(1)
    assert await ready(db, auto_migrate=True) == "9999"
    told = await asyncio.to_thread(doctor, db)
    assert (told.severity, told.what.partition(":")[0]) == (
        Severity.OK, f"revision 9999, newer than {HEAD_REVISION} of this release",
    )  # fmt: skip
    assert await horsies_schema.check_async(db.url) == "9999"


async def test_one_that_breaks_this_release_stops_it_and_names_both(db: Database) -> None:
    db.execute("UPDATE horsies_alembic_version SET version_num = '9999', breaking = '9998'")
    async with async_app_on(db) as app:
        with pytest.raises(SchemaError, match=rf"revision 9999.*does not know revision 9998.*knows {HEAD_REVISION}"):
            await add_task(app).send_async(1)
    for auto_migrate in (True, False):
        with pytest.raises(SchemaError, match="9998") as stopped:
            await ready(db, auto_migrate=auto_migrate)
        assert HEAD_REVISION in str(stopped.value)
    told = await asyncio.to_thread(doctor, db)
    assert told.severity is Severity.PROBLEM
    assert "9998" in told.what
    with pytest.raises(MigrationError, match=rf"9999.*{HEAD_REVISION}.*does not know 9998") as refused:
        await horsies_schema.check_async(db.url)
    assert refused.value.code == 3


# -- how a revision says so ----------------------------------------------------------------------


def test_the_newest_breaking_revision_counts() -> None:
    assert environment.breaking_number([]) is None
    assert environment.breaking_number([("0001", False), ("0002", False)]) is None
    assert environment.breaking_number([("0003", False), ("0002", True), ("0001", True)]) == "0002"


def test_every_step_records_it(empty_db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    horsies_schema.upgrade(empty_db.url)
    assert empty_db.execute("SELECT breaking FROM horsies_alembic_version") == [("0022",)]
    horsies_schema.downgrade(empty_db.url, "0020")
    assert empty_db.execute("SELECT breaking FROM horsies_alembic_version") == [("0016",)]
    horsies_schema.downgrade(empty_db.url, "0015")
    assert empty_db.execute("SELECT breaking FROM horsies_alembic_version") == [(None,)]
    monkeypatch.setattr(environment, "breaking_number", lambda marks: max(revision for revision, _ in marks))
    assert f"SET breaking = '{HEAD_REVISION}'" in horsies_schema.sql()
    horsies_schema.downgrade(empty_db.url, "0012")
    horsies_schema.upgrade(empty_db.url)
    assert empty_db.execute("SELECT breaking FROM horsies_alembic_version") == [(HEAD_REVISION,)]


# -- two revisions at once -----------------------------------------------------------------------


async def test_two_rows_in_the_version_table_are_named_in_the_same_words(db: Database) -> None:
    db.execute("INSERT INTO horsies_alembic_version (version_num) VALUES ('0001')")
    with pytest.raises(MigrationError, match="has 2 rows") as checked:
        await horsies_schema.check_async(db.url)
    with pytest.raises(SchemaError) as refused:
        await ready(db, auto_migrate=False)
    told = await asyncio.to_thread(doctor, db)
    assert told.severity is Severity.PROBLEM
    assert str(checked.value) == str(refused.value) == f"{told.what}: {told.fix}"


async def test_an_empty_version_table_is_told_in_the_same_words_and_the_remedy_works(db: Database) -> None:
    db.execute("DELETE FROM horsies_alembic_version")
    for verb in (horsies_schema.check_async, horsies_schema.upgrade_async):
        with pytest.raises(MigrationError, match="the table horsies_alembic_version is empty: ") as checked:
            await verb(db.url)
        with pytest.raises(SchemaError) as refused:
            await ready(db, auto_migrate=False)
        told = await asyncio.to_thread(doctor, db)
        assert told.severity is Severity.PROBLEM
        assert str(checked.value) == str(refused.value) == f"{told.what}: {told.fix}"
        assert "horsies-migrate up` brought them to" in told.fix
    statement = told.fix[told.fix.index("INSERT") : told.fix.index(";")]
    db.execute(statement.replace("...", HEAD_REVISION))
    assert await horsies_schema.check_async(db.url) == HEAD_REVISION
    assert await ready(db, auto_migrate=False) == HEAD_REVISION


async def test_an_empty_version_table_without_tables_is_a_database_without_tables(empty_db: Database) -> None:
    """As an upgrade that was killed before its first revision leaves it."""
    empty_db.execute("CREATE TABLE horsies_alembic_version (version_num varchar(32) PRIMARY KEY)")
    with pytest.raises(SchemaError, match="there are no horsies tables"):
        await ready(empty_db, auto_migrate=False)
    told = await asyncio.to_thread(doctor, empty_db)
    assert told.fix == "run `horsies-migrate up`"
    assert await horsies_schema.upgrade_async(empty_db.url) == HEAD_REVISION
