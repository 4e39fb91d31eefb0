"""`horsies doctor` on the way to the server and on the server itself."""

from collections.abc import Iterator
from datetime import timedelta
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

import horsies_schema
from horsies.operate.doctor import Finding, Severity
from horsies_schema import embedded
from tests.support import factories, places, postgres
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.findings import look, only, trouble
from tests.support.operator import Operator
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Database
from tests.support.waiting import eventually

# -- reaching it ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Iterator[tuple[str, str]]:
    """A badly configured server: (url by socket, url by TCP)."""
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


def test_a_badly_configured_server(small: tuple[str, str]) -> None:
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


# -- who stands in between -----------------------------------------------------------------------


def test_a_pooler_that_refuses(served: Database) -> None:
    with pgbouncer(served) as proxy:
        found = only(look(proxy.url), "reach")
    assert "this URL leads to a pooler that refuses session settings" in found.what
    assert "pooler=True" in found.fix


SWALLOWED = "default_transaction_isolation, extra_float_digits, search_path"


def test_an_undeclared_pooler(served: Database) -> None:
    with pgbouncer(served, ignored=SWALLOWED) as proxy:
        bad = trouble(look(proxy.url, notification_ms=500))
    assert bad["pooler"].what == "this URL leads through a pooler in transaction mode that is not declared"
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
    assert bad["notify"].what == "a notification did not arrive"


def test_a_direct_url_of_another_database(served: Database) -> None:
    with postgres.database() as other:
        url = other.url.replace("postgres@", "postgres:hidden@")
        bad = trouble(look(served, broker={"direct_url": url}, notification_ms=500))
    assert bad.keys() == {"pooler"}
    assert "direct_url leads to another database" in bad["pooler"].what
    assert served.name in bad["pooler"].what
    assert other.name in bad["pooler"].what
    assert "hidden" not in bad["pooler"].what


def test_a_pooler_in_session_mode(served: Database) -> None:
    with pgbouncer(served, mode="session", pool_size=5, ignored=SWALLOWED) as proxy:
        found = look(proxy.url)
        assert trouble(found) == {}
        assert "session mode" in next(one for one in found if one.check == "pooler").what


def test_no_pooler_where_one_was_announced(served: Database) -> None:
    url = f"{served.url}{'&' if '?' in served.url else '?'}application_name=direct"
    found = only(look(served, broker={"pooler": True, "direct_url": url}), "pooler", Severity.WARN)
    assert found.what == "pooler=True is set, but nothing stands in between"


# -- the server at work --------------------------------------------------------------------------


def test_a_session_holds_back_vacuum(served: Database, operator: Operator) -> None:
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
        # sessions report their dead rows one after another: the first look may count only some of the updates
        found = [one for one in look(served, dead_rows=1) if "dead rows beside" in one.what]
        return [one for one in found if one.severity is Severity.PROBLEM]

    found = eventually(told, describe="the server's statistics know of most of the dead rows")[0]
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
