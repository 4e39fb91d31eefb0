"""`horsies doctor` and other commands, asked by roles that may see and do little."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest

import horsies_schema
from horsies._pg import locks
from horsies.operate.doctor import Severity
from horsies_schema import connection
from tests.support import factories
from tests.support.factories import ago
from tests.support.findings import ALWAYS, look, only, trouble
from tests.support.operator import Operator
from tests.support.postgres import Database
from tests.support.waiting import eventually


@pytest.fixture
def accounts(served: Database) -> Iterator[dict[str, str]]:
    """URLs of accounts with the roles of `horsies-migrate grants`."""
    prefix = f"t{uuid.uuid4().hex[:8]}_"
    served.execute(horsies_schema.grants(prefix=prefix))
    parts, urls = urlsplit(served.url), dict[str, str]()
    host = parts.netloc.rpartition("@")[2]
    for role in ("viewer", "operator", "producer", "worker"):
        served.execute(f'CREATE ROLE "{prefix}{role}_login" LOGIN PASSWORD \'p\' IN ROLE "{prefix}{role}"')
        urls[role] = urlunsplit(parts._replace(netloc=f"{quote(prefix + role)}_login:p@{host}"))
    yield urls
    for role in urls:
        for name in (f"{prefix}{role}_login", f"{prefix}{role}"):
            served.execute(f'DROP OWNED BY "{name}"')
            served.execute(f'DROP ROLE "{name}"')


@pytest.mark.parametrize("role", ["viewer", "operator", "worker"])
def test_every_role_can_ask(served: Database, accounts: dict[str, str], role: str) -> None:
    """What it is not shown is told as such; it is never a problem, and never an error."""
    factories.task(served, "FAILED")
    with psycopg.connect(served.url) as other:  # of a role whose sessions this role may not see
        other.execute("SELECT pg_current_xact_id()")
        findings = look(accounts[role])
    bad = trouble(findings)
    assert bad.keys() <= {"xmin"}
    assert {one.severity for one in bad.values()} <= {Severity.HIDDEN}
    assert "sessions of others have been at work" in bad["xmin"].what
    assert {one.check for one in findings} == set(ALWAYS)
    can = next(one for one in findings if one.check == "rights").what
    assert can == {
        "viewer": "this role can look", "operator": "this role can look, operate",
        "worker": "this role can look, send, operate, work",
    }[role]  # fmt: skip


def test_rights_that_an_older_release_granted_are_named(served: Database, accounts: dict[str, str]) -> None:
    role = urlsplit(accounts["producer"]).netloc.partition("_login")[0]
    served.execute(f'GRANT UPDATE (result) ON horsies_tasks TO "{role}"')
    found = only(look(served), "rights", Severity.WARN)
    assert found.what == f"{role} may overwrite the result of any task"
    assert "horsies-migrate grants" in found.fix


def test_an_operator_of_an_older_release_is_named(served: Database, accounts: dict[str, str]) -> None:
    role = urlsplit(accounts["operator"]).netloc.partition("_login")[0]
    served.execute(f'GRANT UPDATE, DELETE ON horsies_tasks TO "{role}"')
    found = only(look(served), "rights", Severity.WARN)
    assert found.what == f"{role} may rewrite any task"
    assert "horsies-migrate grants" in found.fix


@pytest.mark.parametrize("lock", locks.PURPOSES)
def test_a_foreign_session_that_holds_a_lock_is_named(served: Database, accounts: dict[str, str], lock: int) -> None:
    """Any role may take an advisory lock; every role is told who holds it."""
    with psycopg.connect(accounts["viewer"], autocommit=True, application_name="report") as other:
        other.execute("SELECT pg_advisory_lock(%s, hashtext('public'))", (lock,))
        for asked in (served.url, accounts["viewer"]):
            found = next(one for one in look(asked) if one.check == "locks")
            assert found.severity is Severity.PROBLEM
            assert f"session {other.info.backend_pid} (role " in found.what
            assert f"application 'report') holds the advisory lock {locks.PURPOSES[lock]}" in found.what
            assert f"pg_terminate_backend({other.info.backend_pid})" in found.fix
    eventually(lambda: "locks" not in trouble(look(served)))  # the session that was closed ends a moment later


def test_a_worker_that_holds_a_lock_is_named_when_it_lasts(served: Database) -> None:
    with psycopg.connect(served.url) as other:
        other.execute("SELECT pg_advisory_xact_lock(%s, hashtext('public'))", (locks.REAPER_LOCK,))
        assert "locks" not in trouble(look(served))
        found = next(one for one in look(served, own_transaction=timedelta()) if one.check == "locks")
        assert found.severity is Severity.PROBLEM


def test_a_session_that_keeps_rows_of_ours_is_named_when_it_lasts(served: Database) -> None:
    """Such as a request that hangs after a cancel."""
    with psycopg.connect(served.url, application_name="shop") as other:
        other.execute("SELECT FROM horsies_workflows FOR UPDATE")
        other.execute("INSERT INTO horsies_tasks (id, task_name) VALUES ('00000000-0000-4000-8000-000000000001', 'x')")
        assert "locks" not in trouble(look(served))
        found = only(look(served, own_transaction=timedelta()), "locks", Severity.WARN)
        assert f"session {other.info.backend_pid} (role " in found.what
        assert "application 'shop') has had a transaction open for " in found.what
        assert found.what.endswith("rows of horsies_tasks and horsies_workflows")
        assert f"pg_terminate_backend({other.info.backend_pid})" in found.fix
        other.rollback()
        assert "locks" not in trouble(look(served, own_transaction=timedelta()))


def test_the_keys_of_the_locks_are_those_that_are_taken() -> None:
    assert locks.MIGRATION_LOCK == connection.LOCK_KEY


def test_a_viewer_is_still_told_of_a_holder(accounts: dict[str, str], served: Database) -> None:
    with psycopg.connect(served.url, application_name="report") as other:
        other.execute("SELECT pg_current_xact_id()")
        served.execute("SELECT pg_current_xact_id()")
        findings = look(accounts["viewer"], transactions_held=1)
        named = [one.what for one in findings if one.check == "xmin" and one.severity is Severity.PROBLEM]
        assert any(what.startswith(f"session {other.info.backend_pid} (report") for what in named)


def test_a_producer_sees_too_little_and_is_told_so(accounts: dict[str, str]) -> None:
    findings = look(accounts["producer"])
    bad = trouble(findings)
    assert {one.severity for one in bad.values()} == {Severity.HIDDEN}
    assert bad["workers"].what == "not visible to this role"
    assert "this role may not read" in bad["rights"].what


UNSEEN = {
    "workers", "dead-workers", "backlog", "groups", "limits", "policies", "unknown-names", "stale",
    "schedules", "times", "restored",
}  # fmt: skip
"""The checks that a producer's rights do not suffice for."""


def test_a_role_that_sees_too_little_gets_its_own_exit_code(
    served: Database, accounts: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    producer = Operator(Database(served.name, accounts["producer"]), capsys)
    for options in ((), ("--quiet",)):
        ran = producer("doctor", *options)
        assert ran.code == 3
        told = ran.err.removeprefix(f"horsies: {len(UNSEEN)} checks could not be made for lack of rights: ")
        assert set(told.strip().split(", ")) == UNSEEN
    document = producer("doctor", "--json")
    assert document.code == 3
    assert set(document.json["not_made"]) == UNSEEN
    assert {one["check"] for one in document.json["findings"] if not one["was_made"]} == UNSEEN
    viewer = Operator(Database(served.name, accounts["viewer"]), capsys)
    assert viewer.json("doctor")["not_made"] == []
    assert viewer("doctor").code == 0
    served.execute("DROP INDEX ix_horsies_tasks_claim")
    assert producer("doctor").code == 1  # a problem counts for more


@pytest.mark.parametrize("lack", ["USAGE on schema public", "SELECT on table public.horsies_alembic_version"])
def test_a_stranger_is_told_what_it_lacks_not_that_there_is_nothing(
    served: Database, accounts: dict[str, str], capsys: pytest.CaptureFixture[str], lack: str
) -> None:
    role = urlsplit(accounts["viewer"]).username or ""
    served.execute(f'REVOKE "{role.removesuffix("_login")}" FROM "{role}"')
    if lack.startswith("USAGE"):
        served.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    stranger = Operator(Database(served.name, accounts["viewer"]), capsys)
    ran = stranger("doctor")
    assert ran.code == 3
    assert f"role {role} lacks {lack}" in ran.out
    assert "no horsies tables" not in ran.out
    assert "could not be made for lack of rights: schema, " in ran.err
    missed = stranger.json("doctor")["not_made"]
    assert set(missed) >= UNSEEN | {"schema", "quarantine", "reaper", "retention"}


def test_the_verbs_of_a_viewer(served: Database, accounts: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """It lists and shows, without arguments and results; it changes nothing."""
    failed, waiting = factories.task(served, "FAILED", kwargs='{"secret": 1}'), factories.task(served)
    viewer = Operator(Database(served.name, accounts["viewer"]), capsys)
    assert viewer("tasks", "list").code == 0
    shown = viewer("tasks", "show", failed)
    assert shown.code == 0
    assert (
        "arguments, metadata, progress and result: not visible to this role (messages, arguments, metadata and results"
        in shown.out
    )
    assert "secret" not in shown.out
    assert viewer.json("tasks", "show", failed)["tasks"][0]["payload"] is None
    for arguments in (["workers"], ["queues"], ["stale", "list"], ["tasks", "purge", "--task", "add", "--dry-run"]):
        assert viewer(*arguments).code == 0, arguments
    for arguments in (
        ["tasks", "retry", failed], ["tasks", "cancel", waiting], ["tasks", "purge", failed],
        ["queues", "pause", "default"],
    ):  # fmt: skip
        ran = viewer(*arguments)
        assert ran.code == 1
        assert "permission denied" in ran.err
        assert "Traceback" not in ran.err


@pytest.mark.breaks("T8")
def test_the_verbs_of_an_operator(
    served: Database, accounts: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    long = {"enqueued_at": ago(hours=1), "claimed_at": ago(hours=1)}
    failed, old, waiting = factories.task(served, "FAILED"), factories.task(served, "FAILED"), factories.task(served)
    factories.task(served, "RUNNING", **long, started_at=ago(hours=1))
    factories.task(served, "CLAIMED", **long)
    hand = Operator(Database(served.name, accounts["operator"]), capsys)
    assert hand("tasks", "retry", failed).out == "retried 1 task\n"
    assert hand("tasks", "cancel", waiting).out == "cancelled 1 task\n"
    assert hand("stale", "fail").out == "failed 1 task\n"
    assert hand("stale", "requeue").out == "requeued 1 task\n"
    assert hand("queues", "pause", "default").code == 0
    assert hand("queues", "resume", "default").code == 0
    assert hand("tasks", "purge", old).out == "purged 1 task\n"
    assert '{"a":1,"b":2}' in hand("tasks", "show", failed).out
