"""The models equal the migrations, and the comparison has been seen to fail."""

from collections.abc import Callable, Iterator
from importlib import import_module

import psycopg
import pytest
from sqlalchemy import CheckConstraint, Column, Index, Integer, MetaData, String, Text, create_engine, text

from horsies import status
from horsies_schema.models import Base
from tests.support import catalog, postgres
from tests.support.postgres import Database

SOUND = import_module("horsies_schema.migrations.versions.0011_one_check")


def created_from(metadata: MetaData, database: Database, migrated: Database) -> catalog.Snapshot:
    for function in ("horsies_task_is_sound", "horsies_is_count", "horsies_policy_is_sound"):  # which CHECKs call
        database.execute(migrated.value(f"SELECT pg_get_functiondef('{function}'::regproc)").replace("%", "%%"))
    engine = create_engine(database.url.replace("postgresql://", "postgresql+psycopg://", 1))
    try:
        metadata.create_all(engine)
    finally:
        engine.dispose()
    return catalog.snapshot(database.url)


def copy_of_models() -> MetaData:
    copied = MetaData()
    for table in Base.metadata.tables.values():
        table.to_metadata(copied)
    return copied


def test_models_equal_migrations(db: Database, empty_db: Database) -> None:
    assert catalog.difference(created_from(Base.metadata, empty_db, db), catalog.snapshot(db.url)) == {}


def _change_type(metadata: MetaData) -> None:
    metadata.tables["horsies_tasks"].c.result.type = String(10)


def _change_nullability(metadata: MetaData) -> None:
    metadata.tables["horsies_tasks"].c.args.nullable = False


def _change_default(metadata: MetaData) -> None:
    metadata.tables["horsies_tasks"].c.priority.server_default.arg = text("50")  # type: ignore[union-attr]


def _drop_index(metadata: MetaData) -> None:
    table = metadata.tables["horsies_tasks"]
    table.indexes.discard(next(index for index in table.indexes if index.name == "ix_horsies_tasks_claim"))


def _change_index_predicate(metadata: MetaData) -> None:
    table = metadata.tables["horsies_tasks"]
    table.indexes.discard(next(index for index in table.indexes if index.name == "ix_horsies_tasks_in_flight"))
    Index("ix_horsies_tasks_in_flight", table.c.queue_name, postgresql_where=text("status = 'RUNNING'"))


def _change_check(metadata: MetaData) -> None:
    table = metadata.tables["horsies_tasks"]
    old = next(item for item in table.constraints if item.name == "ck_horsies_tasks_sound")
    table.constraints.discard(old)
    table.append_constraint(CheckConstraint("priority BETWEEN 0 AND 100", name="ck_horsies_tasks_sound"))


def _add_column(metadata: MetaData) -> None:
    metadata.tables["horsies_queue_state"].append_column(Column("extra", Integer))


def _add_table(metadata: MetaData) -> None:
    from sqlalchemy import Table

    Table("horsies_extra", metadata, Column("id", Text, primary_key=True))


@pytest.mark.parametrize(
    ("drift", "kind"),
    [
        (_change_type, "columns"),
        (_change_nullability, "columns"),
        (_change_default, "columns"),
        (_drop_index, "indexes"),
        (_change_index_predicate, "indexes"),
        (_change_check, "constraints"),
        (_add_column, "columns"),
        (_add_table, "columns"),
    ],
)
def test_every_kind_of_drift_is_seen(
    db: Database, empty_db: Database, drift: Callable[[MetaData], None], kind: str
) -> None:
    drifted = copy_of_models()
    drift(drifted)
    assert kind in catalog.difference(created_from(drifted, empty_db, db), catalog.snapshot(db.url))


@pytest.mark.parametrize(
    ("enum", "constraint"),
    [
        (status.TaskStatus, "horsies_task_is_sound"),
        (status.AttemptOutcome, "ck_horsies_task_attempts_sound"),
        (status.WorkflowStatus, "ck_horsies_workflows_status"),
        (status.NodeStatus, "ck_horsies_workflow_tasks_status"),
    ],
)
def test_the_enums_equal_the_checks(constraint_values: Callable[[str], set[str]], enum: type, constraint: str) -> None:
    assert constraint_values(constraint) == {member.value for member in enum}  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def constraint_values() -> Iterator[Callable[[str], set[str]]]:
    import re

    with postgres.database() as database:
        definitions = dict(
            database.execute(
                "SELECT conname, pg_get_constraintdef(oid) FROM pg_constraint WHERE conname LIKE 'ck_horsies%%'"
                " UNION ALL SELECT proname, prosrc FROM pg_proc WHERE proname = 'horsies_task_is_sound'"
            )
        )
        yield lambda name: set(re.findall(r"'([A-Z]+(?:_[A-Z]+)*)'", definitions[name]))


def test_the_function_of_0011_says_what_the_checks_before_it_said(db: Database) -> None:
    """For every status and every choice of columns that are NULL; and it names the rule that is broken."""
    usual = {
        "task_name": "'t'::varchar", "queue_name": "'default'::varchar", "unique_key": "NULL::varchar",
        "priority": "100", "claim_generation": "0", "good_until": "NULL::timestamptz", "retry_count": "0",
        "max_retries": "0", "manual_retries": "0", **dict.fromkeys(("sent_at", "enqueued_at"), "now()"),
        **dict.fromkeys(("cancel_requested_at", "next_retry_at", "keep_until"), "NULL::timestamptz"),
        **dict.fromkeys(("created_at", "updated_at"), "now()"), "metadata": "NULL::jsonb",
    }  # fmt: skip
    nullable = {
        **dict.fromkeys(("claimed_at", "claim_expires_at", "started_at", "finalizing_at"), "now()"),
        **dict.fromkeys(("completed_at", "failed_at", "terminal_at"), "now()"),
        **dict.fromkeys(("claimed_by_worker_id", "result", "error_code"), "'x'"),
        "worker_pid": "1",
    }
    columns = [f"{value} AS {name}" for name, value in usual.items()]
    for bit, (name, value) in enumerate(nullable.items()):
        columns.append(f"CASE WHEN bits & {1 << bit} <> 0 THEN {value} END AS {name}")
    before = " AND ".join(f"({check})" for check in SOUND.BEFORE.values())
    before = before.replace(" AND worker_pid IS NOT NULL", "")  # given up by 0015
    completed = "terminal_at IS NOT NULL\n            AND result IS NOT NULL AND error_code IS NULL"
    assert completed in before
    before = before.replace(completed, "terminal_at IS NOT NULL AND error_code IS NULL")  # given up by 0023
    called = db.value("SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'ck_horsies_tasks_sound'")
    arguments = called.split("horsies_task_is_sound(", 1)[1].removesuffix("))")
    told = f"pg_temp.told({arguments})"
    rows = f"""
        SELECT status, claimed, {", ".join(columns)}
          FROM unnest(%s::varchar[]) AS status, unnest('{{true,false}}'::bool[]) AS claimed,
               generate_series(0, {(1 << len(nullable)) - 1}) AS bits"""
    declared = db.value("SELECT pg_get_function_arguments('horsies_task_is_sound'::regproc)")
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute(
            f"""CREATE FUNCTION pg_temp.told({declared}) RETURNS text LANGUAGE plpgsql AS $$
                DECLARE broken text;
                BEGIN
                    RETURN horsies_task_is_sound({arguments})::text;
                EXCEPTION WHEN check_violation THEN
                    GET STACKED DIAGNOSTICS broken = CONSTRAINT_NAME;
                    RETURN broken;
                END $$"""  # type: ignore[arg-type]
        )
        found = connection.execute(
            f"SELECT {told}, ({before}) IS NOT FALSE, count(*) FROM ({rows}) AS task GROUP BY 1, 2",  # type: ignore[arg-type]
            ([*(one.value for one in status.TaskStatus), "running", ""],),
        ).fetchall()
    assert {(rule, passed_before) for rule, passed_before, _ in found} == {
        ("true", True),
        ("ck_horsies_tasks_state", False),
    }
