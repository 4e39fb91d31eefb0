"""`horsies doctor`: every finding is provoked for real, on a real server, and nothing else is said."""

import asyncio
import re
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import psycopg
import pytest

import horsies_schema
from horsies import AppConfig, PostgresConfig
from horsies._pg.schema_guard import REQUIRED_REVISION
from horsies.doctor import Finding, Limits, Severity, examine, expected
from horsies_schema import embedded
from tests.support import catalog, factories, places, postgres
from tests.support.apps import make_app
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.factories import ago, ahead
from tests.support.operator import Operator, as_process
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Database
from tests.support.waiting import eventually

RECOVERY = (
    '{"check_interval_ms": 1000, "claimed_stale_threshold_ms": 10000, "running_stale_threshold_ms": 10000,'
    ' "terminal_record_retention_hours": 1}'
)
ALWAYS = (
    "server", "schema", "objects", "rights", "pooler", "notify", "clock", "connections", "xmin", "own-transactions",
    "vacuum", "sizes", "workers", "dead-workers", "backlog", "unknown-names", "stale", "reaper", "retention",
    "schedules",
)  # fmt: skip


@pytest.fixture
def operator(db: Database, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(db, capsys)


@pytest.fixture
def served(db: Database) -> Database:
    """A database with a live worker on the queue `default`."""
    factories.worker_state(db, recovery_config=RECOVERY)
    return db


def look(where: Database | str, *, names: list[str] | None = None, broker: Any = None, **limits: Any) -> list[Finding]:
    url = where if isinstance(where, str) else where.url
    config = AppConfig(PostgresConfig(url, **(broker or {})))
    return asyncio.run(examine(config, limits=Limits(**limits), names=names))


def trouble(findings: list[Finding]) -> dict[str, Finding]:
    """Everything that is not fine, by check."""
    return {one.check: one for one in findings if one.severity is not Severity.OK}


def only(findings: list[Finding], check: str, severity: Severity = Severity.PROBLEM) -> Finding:
    """The one thing that is not fine."""
    bad = trouble(findings)
    assert bad.keys() == {check}, bad
    assert bad[check].severity is severity
    assert bad[check].why
    assert bad[check].fix
    return bad[check]


def fine(findings: list[Finding], check: str) -> str:
    assert trouble(findings) == {}
    (found,) = [one.what for one in findings if one.check == check]
    return found


# -- all is well ---------------------------------------------------------------------------------


def test_a_healthy_database(served: Database, operator: Operator) -> None:
    factories.task(served)
    ran = operator("doctor")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.endswith("\n0 problems, 0 warnings\n")
    assert [line.split()[1] for line in ran.out.splitlines()[: len(ALWAYS)]] == list(ALWAYS)
    assert "ok       pooler            none: the connection ends at the server" in ran.out
    told = operator("doctor", "--json").json
    assert (told["problem"], told["warn"], told["hidden"], told["ok"]) == (0, 0, 0, len(ALWAYS))
    assert told["findings"][0] == {
        "check": "server", "severity": "ok", "what": told["findings"][0]["what"], "why": "", "fix": "",
    }  # fmt: skip
    assert operator("doctor", "--quiet").out == "\n0 problems, 0 warnings\n"


async def test_the_brokers_own_verb(db: Database) -> None:
    async with make_app(db) as app:
        findings = await app.get_broker().diagnose()
    assert {one.check for one in findings} >= set(ALWAYS)


def test_what_is_expected_is_what_the_migrations_make(db: Database) -> None:
    tables = {row[0] for row in catalog.snapshot(db.url)["columns"]}
    assert set(expected.TABLES) == tables
    indexes = db.execute("SELECT indexname FROM pg_indexes WHERE tablename LIKE 'horsies!_%%' ESCAPE '!'")
    assert set(expected.INDEXES) == {name for (name,) in indexes} - {"horsies_alembic_version_pkc"}
    triggers = db.execute("SELECT tgname FROM pg_trigger WHERE NOT tgisinternal")
    assert set(expected.TRIGGERS) == {name for (name,) in triggers}
    assert set(expected.HOT_TABLES) <= set(expected.TABLES)


def test_in_a_schema_of_its_own(empty_db: Database) -> None:
    schema = 'o\'brien "jobs"'
    horsies_schema.upgrade(empty_db.url, schema=schema)
    assert trouble(look(empty_db, broker={"schema": schema})).keys() == {"workers"}
    missing = look(empty_db)
    assert trouble(missing)["schema"].what.startswith(("there are no horsies tables", "nothing can be said"))


# -- reaching it ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Iterator[tuple[str, str]]:
    """A server of its own, as nobody would want it: (url by socket, url by TCP)."""
    settings = {
        "max_prepared_transactions": "5", "autovacuum": "off", "max_connections": "8",
        "superuser_reserved_connections": "3", "fsync": "off",
    }  # fmt: skip
    with places.temporary_directory() as directory, embedded.start(directory, port=0, settings=settings) as server:
        by_tcp = server.url
        with psycopg.connect(by_tcp, autocommit=True) as connection:
            connection.execute("CREATE DATABASE small ENCODING 'UTF8' TEMPLATE template0")
        by_tcp = urlunsplit(urlsplit(by_tcp)._replace(path="/small"))
        horsies_schema.upgrade(by_tcp)
        yield by_tcp, urlsplit(by_tcp).netloc


def test_a_wrong_password(small: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    parts = urlsplit(small[0])
    host = parts.netloc.rpartition("@")[2]
    url = urlunsplit(parts._replace(netloc=f"{parts.username}:hunter2@{host}"))
    operator = Operator(Database("small", url), capsys)
    ran = operator("doctor")
    assert ran.code == 1
    assert "password authentication failed" in ran.out
    assert "fix: correct the password or the role in the URL" in ran.out
    listed = operator("tasks", "list")
    assert listed.code == 1
    assert "password authentication failed" in listed.err
    assert "hunter2" not in ran.out + ran.err + listed.out + listed.err


def test_no_such_database(db: Database) -> None:
    found = only(look(db.url.replace(db.name, "nowhere_at_all")), "reach")
    assert '"nowhere_at_all" does not exist' in found.what
    assert found.fix == "create the database, or correct its name in the URL"


def test_a_server_that_nobody_would_want(small: tuple[str, str]) -> None:
    with psycopg.connect(small[0]) as connection:
        connection.execute("SELECT pg_current_xact_id()")
        connection.execute("PREPARE TRANSACTION 'it''s late'")
    try:
        found = look(small[0], transaction_warn=timedelta())
    finally:
        with psycopg.connect(small[0], autocommit=True) as connection:
            connection.execute("ROLLBACK PREPARED 'it''s late'")
    bad = trouble(found)
    assert bad.keys() == {"vacuum", "xmin", "connections", "workers"}
    assert bad["vacuum"].what == "autovacuum is off on this server"
    assert 'prepared transaction "it\'s late" of' in bad["xmin"].what
    assert "ROLLBACK PREPARED 'it''s late'" in bad["xmin"].fix
    assert bad["connections"].what.endswith("in use")


def test_a_server_that_goes_away(db: Database) -> None:
    with ChaosProxy(db.url) as proxy:
        proxy.cut_at("FROM pg_index", When.UNANSWERED)
        findings = look(proxy.url)
    assert findings[0].what == "the connection was lost in the middle of the examination"
    said = {one.check: one for one in findings}
    assert said["schema"].severity is Severity.OK  # asked before
    assert said["backlog"].what.startswith("could not be looked at: ")


def test_an_encoding_that_cannot_hold_everything(capsys: pytest.CaptureFixture[str]) -> None:
    with postgres.database(template_name="template0", options="ENCODING 'LATIN1' LOCALE 'C'") as latin:
        ran = Operator(latin, capsys)("doctor")
        assert ran.code == 1
        assert "the database's encoding is LATIN1, not UTF8" in ran.out
        assert "there are no horsies tables in this database" in ran.out


# -- the schema ----------------------------------------------------------------------------------


def test_an_old_revision(db: Database) -> None:
    horsies_schema.downgrade(db.url, "0007")
    found = [one for one in look(db) if one.severity is not Severity.OK]
    assert [one.severity for one in found] == [Severity.PROBLEM, Severity.WARN]
    assert found[0].what == f"the database is at revision 0007, this release needs {REQUIRED_REVISION}"
    assert found[0].fix == "run `horsies-migrate up`"
    assert "nothing can be said before that of: workers" in found[1].what


def test_a_newer_revision_is_fine(served: Database) -> None:
    served.execute("UPDATE horsies_alembic_version SET version_num = '9999'")
    found = look(served)
    assert trouble(found) == {}
    assert next(one for one in found if one.check == "schema").what.startswith("revision 9999, newer than")


def test_no_tables(empty_db: Database) -> None:
    found = [one for one in look(empty_db) if one.severity is not Severity.OK]
    assert found[0].what == "there are no horsies tables in this database (by its search_path)"
    assert found[0].fix == "run `horsies-migrate up`"
    assert len(found) == 2
    assert (
        len([one for one in look(empty_db) if one.severity is Severity.OK]) >= 6
    )  # the server is looked at all the same


def test_a_missing_index(served: Database) -> None:
    served.execute("DROP INDEX ix_horsies_tasks_claim")
    found = only(look(served), "objects")
    assert found.what == "index ix_horsies_tasks_claim is missing"


def test_an_invalid_index(served: Database) -> None:
    for _ in range(2):
        factories.task(served)
    with pytest.raises(psycopg.errors.UniqueViolation):
        served.execute('CREATE UNIQUE INDEX CONCURRENTLY "half ""way" ON horsies_tasks (task_name)')
    found = only(look(served), "objects")
    assert found.what.startswith('index half "way is invalid')
    assert 'REINDEX INDEX CONCURRENTLY "half ""way"' in found.fix


def test_triggers(served: Database) -> None:
    served.execute("ALTER TABLE horsies_tasks DISABLE TRIGGER horsies_task_notify_trigger")
    found = only(look(served), "objects")
    assert found.what == "trigger horsies_task_notify_trigger is switched off"
    served.execute("ALTER TABLE horsies_tasks ENABLE TRIGGER horsies_task_notify_trigger")
    served.execute("DROP TRIGGER horsies_workflow_notify_trigger ON horsies_workflows")
    assert only(look(served), "objects").what == "trigger horsies_workflow_notify_trigger is missing"


def test_a_missing_table(served: Database) -> None:
    served.execute("DROP TABLE horsies_heartbeats")
    found = [one for one in look(served) if one.severity is Severity.PROBLEM]
    assert "table horsies_heartbeats is missing" in [one.what for one in found]


# -- who stands in between -----------------------------------------------------------------------


def test_a_pooler_that_refuses(served: Database) -> None:
    with pgbouncer(served) as proxy:
        found = only(look(proxy.url), "reach")
    assert "this URL leads to a pooler that refuses session settings" in found.what
    assert "pooler=True" in found.fix


SWALLOWED = "default_transaction_isolation, extra_float_digits, search_path"


def test_a_pooler_that_nobody_told_of(served: Database) -> None:
    with pgbouncer(served, ignored=SWALLOWED) as proxy:
        bad = trouble(look(proxy.url, notification_ms=500))
    assert bad["pooler"].what == "this URL leads through a pooler in transaction mode, and nobody told horsies"
    assert bad["pooler"].severity is Severity.PROBLEM
    assert "schema" not in bad  # the other questions were answered


def test_a_pooler_as_configured(served: Database) -> None:
    with pgbouncer(served) as proxy:
        found = look(proxy.url, broker={"pooler": True, "direct_url": served.url})
        assert trouble(found) == {}
        assert next(one for one in found if one.check == "pooler").what == "a pooler in transaction mode, as configured"


def test_a_direct_url_that_is_not_direct(served: Database) -> None:
    with pgbouncer(served, ignored=SWALLOWED) as proxy:
        bad = trouble(
            look(
                proxy.url, broker={"pooler": True, "direct_url": f"{proxy.url}?application_name=x"}, notification_ms=500
            )
        )
    assert bad["pooler"].what == "direct_url leads through a pooler too"


def test_a_pooler_in_session_mode(served: Database) -> None:
    with pgbouncer(served, mode="session", pool_size=5, ignored=SWALLOWED) as proxy:
        found = look(proxy.url)
        assert trouble(found) == {}
        assert "session mode" in next(one for one in found if one.check == "pooler").what


def test_no_pooler_where_one_was_announced(served: Database) -> None:
    url = f"{served.url}{'&' if '?' in served.url else '?'}application_name=direct"
    found = only(look(served, broker={"pooler": True, "direct_url": url}), "pooler", Severity.WARN)
    assert found.what == "pooler=True is set, but nothing stands in between"


def test_notifications_that_get_lost(served: Database, empty_db: Database) -> None:
    found = only(look(served, broker={"direct_url": empty_db.url}, notification_ms=200), "notify")
    assert found.what == "a notification did not arrive"


# -- the server at work --------------------------------------------------------------------------


def test_somebody_holds_back_vacuum(served: Database, operator: Operator) -> None:
    with psycopg.connect(served.url, application_name="report") as other:
        other.execute("SELECT pg_current_xact_id()")
        pid = other.info.backend_pid
        assert trouble(look(served)) == {}  # not for long enough
        found = only(look(served, transaction_warn=timedelta()), "xmin", Severity.WARN)
        assert f"session {pid} (report, role " in found.what
        assert "idle in transaction" in found.what
        assert f"SELECT pg_terminate_backend({pid})" in found.fix
        worse = look(served, transaction_warn=timedelta(), transaction_problem=timedelta())
        only(worse, "xmin", Severity.PROBLEM)


def test_a_transaction_of_our_own(served: Database) -> None:
    with psycopg.connect(served.url, application_name="horsies web") as other:
        other.execute("SELECT 1")
        found = only(look(served, own_transaction=timedelta()), "own-transactions", Severity.WARN)
        assert f"session {other.info.backend_pid} (horsies web)" in found.what
        assert trouble(look(served)) == {}


def test_dead_rows(served: Database) -> None:
    served.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = off)")
    assert only(look(served), "vacuum").what == "autovacuum is off for horsies_tasks"
    for _ in range(3):
        factories.task(served)
    for _ in range(20):
        served.execute("UPDATE horsies_tasks SET updated_at = now()")

    def told() -> list[Finding]:
        return [one for one in look(served, dead_rows=1) if "dead rows beside" in one.what]

    found = eventually(told, describe="the server's statistics know of the dead rows")[0]
    assert found.severity is Severity.PROBLEM
    assert "last vacuumed: never" in found.what


def test_few_connections_are_left(served: Database) -> None:
    served.execute(f'ALTER DATABASE "{served.name}" CONNECTION LIMIT 9')
    found = only(look(served), "connections", Severity.WARN)
    assert "connections left for this database (its CONNECTION LIMIT)" in found.what
    served.execute(f'ALTER DATABASE "{served.name}" CONNECTION LIMIT 3')
    only(look(served), "connections", Severity.PROBLEM)


def test_a_question_that_takes_too_long_silences_only_its_own_checks(served: Database) -> None:
    with psycopg.connect(served.url) as other:
        other.execute("LOCK TABLE horsies_worker_states IN ACCESS EXCLUSIVE MODE")
        found = look(served, question_ms=200)
    bad = trouble(found)
    assert bad["workers"].what == "could not be looked at: no answer within 0.2 s"
    assert all(one.severity is Severity.WARN for one in bad.values())
    assert {"server", "schema", "objects", "xmin", "vacuum"} <= {one.check for one in found} - bad.keys()


# -- the work ------------------------------------------------------------------------------------


def test_nobody_there(db: Database) -> None:
    assert only(look(db), "workers", Severity.WARN).what == "no live worker"
    factories.task(db, queue_name="mail")
    factories.task(db, queue_name="bills", enqueued_at=ago(hours=1))
    assert only(look(db), "workers").what == "no live worker, and 2 tasks ready to run in bills, mail"


def test_a_late_worker(db: Database) -> None:
    factories.worker_state(db, "slow", snapshot_at=ago(seconds=25))
    found = only(look(db), "workers", Severity.WARN)
    assert re.match(r"worker slow \(pid 4711 on host-1\) is late: seen 2\d s ago$", found.what)


def test_a_queue_that_nobody_serves(served: Database) -> None:
    factories.task(served, queue_name="mail")
    assert trouble(look(served)) == {}  # just sent: somebody may be about to start
    factories.task(served, queue_name="mail", enqueued_at=ago(minutes=2))
    found = only(look(served), "unserved")
    assert found.what == "no live worker serves queue mail, with 2 tasks ready in it"
    assert "--queues mail" in found.fix
    factories.worker_state(served, "another", queues=["mail"])
    assert trouble(look(served)) == {}


def test_a_paused_queue_with_work_in_it(served: Database) -> None:
    factories.insert(served, "horsies_queue_state", queue_name="default", paused_at=ago(minutes=7))
    assert trouble(look(served)) == {}
    factories.task(served)
    found = only(look(served), "paused", Severity.WARN)
    assert re.match(r"queue default has been paused for 7 m.*, with 1 task ready in it$", found.what)
    assert found.fix == "`horsies queues resume default`"


def test_a_backlog(served: Database) -> None:
    factories.task(served, priority=9, enqueued_at=ago(minutes=6))
    factories.task(served, priority=1)
    found = only(look(served), "backlog", Severity.WARN)
    assert found.what.startswith("queue default, priority 9: of 1 task that can run, the oldest has waited for 6 m")


def test_names_that_no_worker_knows(served: Database) -> None:
    factories.task(served, task_name="mispelled")
    factories.insert(served, "horsies_task_names", task_name="mispelled", missing_since=ago(minutes=2))
    found = only(look(served), "unknown-names", Severity.WARN)
    assert found.what == "1 task named 'mispelled': no worker ever registered the name; missing for 2 m"
    served.execute("DELETE FROM horsies_task_names")
    factories.task(served, claim_generation=9)
    assert trouble(look(served)) == {}
    factories.task(served, "FAILED", task_name="x; rm -rf /", error_code="WORKER_RESOLUTION_ERROR")
    found = only(look(served), "unknown-names", Severity.WARN)
    assert "--task 'x; rm -rf /'`" in found.fix


def test_names_that_no_worker_knows_any_more(served: Database) -> None:
    """An app that was scaled to zero, or a task that was removed: an alarm while its tasks wait."""
    factories.task(served, task_name="report; x")
    factories.insert(
        served, "horsies_task_names", task_name="report; x", first_known_at=ago(days=9), last_known_at=ago(hours=3),
        missing_since=ago(hours=2),
    )  # fmt: skip
    factories.insert(
        served, "horsies_task_names", task_name="removed", first_known_at=ago(days=9), last_known_at=ago(days=3)
    )
    found = only(look(served), "unknown-names", Severity.WARN)
    assert found.what == "1 task named 'report; x': no live worker knows the name, the last one did 3 h ago"
    assert "retired_task_grace_ms (1 d)" in str(found.why)
    assert "--task 'report; x'`" in str(found.fix)


def test_names_that_the_app_does_not_register(served: Database, tmp_path: Path) -> None:
    factories.task(served, task_name="known")
    assert trouble(look(served, names=["known"])) == {}
    factories.task(served, task_name="stranger")
    assert (
        "named 'stranger', which this app does not register"
        in trouble(look(served, names=["known"]))["unknown-names"].what
    )
    (tmp_path / "shop.py").write_text(
        "from horsies import *\n"
        f"app = Horsies(AppConfig(PostgresConfig({served.url!r})))\n"
        "@app.task('known')\ndef known() -> TaskResult[None, TaskError]: ...\n"
    )
    ran = as_process("doctor", "--app", "shop:app", url=None, cwd=tmp_path)
    assert ran.code == 0
    assert "named 'stranger'" in ran.out
    assert "named 'known'" not in ran.out


def test_stale_tasks_and_their_dead_worker(served: Database) -> None:
    long = {"enqueued_at": ago(minutes=5), "claimed_at": ago(minutes=5), "claimed_by_worker_id": "gone"}
    factories.task(served, "RUNNING", **long, started_at=ago(minutes=5))
    factories.task(served, "CLAIMED", **long)
    factories.worker_state(served, "gone", snapshot_at=ago(minutes=5))
    found = [one for one in look(served) if one.severity is Severity.PROBLEM]
    assert [one.check for one in found] == ["dead-workers", "stale", "stale"]
    assert found[0].what.startswith("2 tasks in the hands of worker gone, last seen 5 m")
    for one, status in zip(found[1:], ("RUNNING", "CLAIMED"), strict=True):
        assert one.what.startswith(f"1 {status} task without a sign of life, the longest for 5 m")
    assert "horsies stale fail" in found[1].fix
    assert "horsies stale requeue" in found[2].fix


def test_a_task_in_the_hands_of_nobody_known(served: Database) -> None:
    factories.task(served, "RUNNING", claimed_by_worker_id="unheard of")
    found = only(look(served), "dead-workers")
    assert found.what == "1 task in the hands of worker unheard of, which has left no trace"


def scheduled(db: Database, name: str, **columns: Any) -> None:
    factories.insert(db, "horsies_schedule_state", schedule_name=name, **columns)


def test_overdue_schedules_and_no_scheduler(served: Database) -> None:
    assert fine(look(served), "schedules") == "no schedule is known"
    for name in "abcd":
        scheduled(served, name, next_run_at=ago(hours=2), updated_at=ago(hours=2))
    scheduled(served, "silenced", next_run_at=ago(hours=3), updated_at=ago(hours=2), paused_at=ago(hours=4))
    found = only(look(served), "schedules", Severity.PROBLEM)
    assert "no scheduler is running (the last sign of one is 2 h" in found.what
    assert "4 schedules are overdue, the longest by 2 h" in found.what
    assert found.what.endswith("a, b, c and 1 more")
    assert "horsies scheduler" in found.fix
    served.execute("UPDATE horsies_schedule_state SET updated_at = now()")  # one is there, and does not fire
    assert only(look(served), "schedules", Severity.PROBLEM).what.startswith("4 schedules are overdue")
    served.execute("UPDATE horsies_schedule_state SET next_run_at = now() - interval '20 s'")
    assert only(look(served), "schedules", Severity.WARN).what.startswith("4 schedules are overdue, the longest by 2")


def test_a_scheduler_is_missed_before_a_slot_is(served: Database) -> None:
    scheduled(served, "nightly", next_run_at=ahead(hours=5), updated_at=ago(minutes=10))
    found = only(look(served), "schedules", Severity.WARN)
    assert found.what.startswith("no scheduler is running: the last sign of one is 10 m")
    assert "due in 4 h 59 m" in found.what
    served.execute("UPDATE horsies_schedule_state SET updated_at = now()")
    assert fine(look(served), "schedules") == "1 schedule, none overdue"


def test_a_schedule_that_no_live_scheduler_lists_is_told_of_for_a_day(served: Database) -> None:
    scheduled(served, "kept", next_run_at=ahead(hours=5))
    scheduled(served, "gone", next_run_at=ago(minutes=5), updated_at=ago(minutes=6))
    found = only(look(served), "schedules", Severity.WARN)
    assert found.what.startswith("no live scheduler lists 1 schedule: gone, since 6 m")
    served.execute(
        "UPDATE horsies_schedule_state SET updated_at = now() - interval '2 days' WHERE schedule_name = 'gone'"
    )
    assert fine(look(served), "schedules") == "1 schedule, none overdue"


@pytest.mark.breaks("T7")
def test_overdue_tasks_that_no_reaper_has_met(served: Database) -> None:
    factories.task(served, good_until=ago(seconds=10))
    assert trouble(look(served)) == {}
    factories.task(served, good_until=ago(minutes=3))
    found = only(look(served), "reaper")
    assert re.match(r"2 tasks past good_until were not swept, the oldest 3 m.* late$", found.what)


def test_retention_that_does_not_keep_up(served: Database) -> None:
    factories.task(served, "COMPLETED", terminal_at=ago(hours=2))
    assert trouble(look(served)) == {}
    factories.task(served, "COMPLETED", terminal_at=ago(hours=5))
    found = only(look(served), "retention", Severity.WARN)
    assert found.what == "the oldest ended task is kept since 5 h, though the workers prune after 1 h"
    assert "horsies tasks purge --older-than" in found.fix


# -- by a role that may see little ---------------------------------------------------------------


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
    with psycopg.connect(served.url) as other:  # of somebody whom this role may not watch
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


def test_the_verbs_of_a_viewer(served: Database, accounts: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """It lists and shows, without arguments and results; it changes nothing."""
    failed, waiting = factories.task(served, "FAILED", kwargs='{"secret": 1}'), factories.task(served)
    viewer = Operator(Database(served.name, accounts["viewer"]), capsys)
    assert viewer("tasks", "list").code == 0
    shown = viewer("tasks", "show", failed)
    assert shown.code == 0
    assert "arguments, progress and result: not visible to this role (messages, arguments and results" in shown.out
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
