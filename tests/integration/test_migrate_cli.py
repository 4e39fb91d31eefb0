"""`horsies-migrate` as a person or a script meets it: words on the right stream, and exit codes."""

import os
import re
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import Connection

import horsies_schema
from horsies._pg.schema_guard import no_right
from horsies_schema import MigrationError, cli, embedded
from horsies_schema.migrate import on_connection
from tests.support import places, roles
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
    ("revision", "more", "words"),
    [
        ("0001", (), "there is nothing to take down to 0001: this database (by its search_path) has no horsies tables"),
        ("0001", ("--schema", "nope"), "there is nothing to take down to 0001: schema 'nope' of this database has no"),
        ("9999", (), "there is no revision '9999': name one from 0001 to "),
        ("0001:0002", (), "there is no revision '0001:0002'"),
    ],
)
def test_down_to_nowhere(
    migrate: Migrate, empty_db: Database, revision: str, more: tuple[str, ...], words: str
) -> None:
    code, _, err = migrate("down", revision, "--yes", *more, url=empty_db.url)
    assert (code, words in err) == (2, True), err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["up"], 2, "give --url or set HORSIES_DATABASE_URL"),
        (["up", "--url", "mysql://x"], 2, "must begin with postgresql://"),
        (
            ["up", "--url", "host=h dbname=d password=topsecret"],
            2,
            "is a key=value DSN, which horsies-migrate does not",
        ),
        (["up", "--url", "postgresql://own:top/secret@h/db"], 2, "has an '@' after the first '/'"),
        (["up", "--url", "postgresql://own:top#secret@h/db"], 2, "has a raw '#'"),
        (["up", "--url", "postgresql://own:top?secret@h/db"], 2, "has a port that is not a number"),
        (["up", "--url", "postgresql://own@h:topsecret/db"], 2, "has a port that is not a number"),
        (["up", "--url", "postgresql://own@[::1]:topsecret/db"], 2, "has a port that is not a number"),
        (["up", "--url", "postgresql://own:%FFtopsecret@h/db"], 2, "percent-encoding that is not UTF-8"),
        (["up", "--url", "postgresql://own:topsecret@h/db?x"], 2, "is not key=value"),
        (["up", "--url", "postgresql://own:topsecret@h/db?sslmode=topsecret"], 2, "unknown sslmode: choose one of"),
        (["up", "--url", "postgresql://own:topsecret@[h/db"], 2, "the database URL cannot be used"),
        (["up", "--url", "postgresql://u:topsecret@127.0.0.1:1/x"], 4, "cannot reach the database at 127.0.0.1:1: "),
        (["up", "--url", "postgresql://u:topsecret@/x?host=/gone"], 4, "the database at /gone/.s.PGSQL.5432: "),
        (["up", "--url", "postgresql://u:topsecret@no.such.host.invalid/x"], 4, "at no.such.host.invalid:5432: "),
        (["up", "--url", "embedded://u:topsecret@h/x"], 4, "write three slashes before it"),
        (
            ["up", "--url", "postgresql://u:topsecret@127.0.0.1:1/x", "--schema", "s" * 64],
            2,
            "cannot be a schema's name",
        ),
        (["sideways"], 2, "invalid choice"),
        (["up", "--url", ""], 2, "argument --url: it is empty"),
        (["down", "", "--yes"], 2, "argument revision: it is empty"),
        (["sql", "--since", ""], 2, "argument --since: it is empty"),
        (["sql", "--since", "4711"], 2, "Can't locate revision identified by '4711'"),
        (["sql", "4711"], 2, "this package's newest is"),
        (["grants", "--schema", ""], 2, "argument --schema: it is empty"),
    ],
)
def test_a_wrong_call_gets_one_clear_sentence(migrate: Migrate, arguments: list[str], code: int, words: str) -> None:
    found, out, err = migrate(*arguments)
    assert (found, out) == (code, "")
    assert words in err
    assert "Traceback" not in err
    for piece in ("topsecret", "top", "secret"):
        assert piece not in err.replace("stop", "")


def test_a_bad_url_leaves_no_piece_of_the_password_in_a_traceback() -> None:
    """Of a program that calls the functions."""
    for url in ("postgresql://own:S3cr/et@h/db", "postgresql://own@h:S3cretOwn/db", "postgresql://own:S3cr@[h/db"):
        with pytest.raises(MigrationError) as refused:
            horsies_schema.upgrade(url)
        assert "S3cr" not in "".join(traceback.format_exception(refused.value)).replace(repr(url), "")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"password": "wrong"}, "cannot open the database: password authentication failed"),
        ({"database": "nowhere"}, 'cannot open the database: database "nowhere" does not exist'),
    ],
)
def test_a_database_that_does_not_open_is_told_in_one_sentence(
    with_password: Callable[..., str], migrate: Migrate, change: dict[str, str], words: str
) -> None:
    for verb in ("up", "check", "current"):
        code, out, err = migrate(verb, "--url", with_password(**change))
        assert (code, out) == (4, "")
        assert err.startswith(f"horsies-migrate: {words}")
        assert err.count("\n") == 1
    assert migrate("current", "--url", with_password())[0] == 0


@pytest.fixture(scope="module")
def with_password() -> Iterator[Callable[..., str]]:
    """URLs of a server that asks for a password."""
    with places.temporary_directory() as directory, embedded.start(directory) as server:
        plain = Database("postgres", server.url)
        plain.execute("CREATE ROLE own LOGIN PASSWORD 'topsecret'")
        rules = Path(plain.value("SHOW hba_file"))
        rules.write_text(f"local all own scram-sha-256\n{rules.read_text()}")
        plain.execute("SELECT pg_reload_conf()")
        query = urlsplit(server.url).query

        def url(*, password: str = "topsecret", database: str = "postgres") -> str:
            return f"postgresql://own:{password}@/{database}?{query}"

        yield url


@pytest.fixture
def plain_role(empty_db: Database) -> Iterator[Database]:
    """The empty database as a role sees it that may create nothing in it."""
    name = f"plain_{uuid.uuid4().hex[:8]}"
    plain = roles.login(empty_db, name)
    empty_db.execute("REVOKE CREATE ON SCHEMA public FROM PUBLIC")
    try:
        yield plain
    finally:
        empty_db.execute(f"DROP OWNED BY {name}; DROP ROLE {name}")


def test_missing_rights_are_told_with_a_remedy(empty_db: Database, plain_role: Database, migrate: Migrate) -> None:
    name = roles.account(plain_role)
    refused = "horsies-migrate: the database refused a statement: permission denied for"
    owner = empty_db.value("SELECT current_user")
    for arguments, thing, remedy in (
        (["up"], "schema public", f"let the owner GRANT CREATE ON SCHEMA public TO {name}"),
        (["up", "--schema", "jobs"], f"database {empty_db.name}", f"GRANT CREATE ON DATABASE {empty_db.name} TO"),
    ):
        code, out, err = migrate(*arguments, url=plain_role.url)
        assert (code, out) == (3, "")
        assert err.startswith(f"{refused} {thing}; the role is '{name}': run this as the owner, or ")
        assert remedy in err
        assert err.count("\n") == 1
    assert migrate("up", url=empty_db.url)[0] == 0
    code, out, err = migrate("up", url=plain_role.url)
    assert (code, out) == (3, "")
    told = f"table horsies_alembic_version; the role is '{name}': run this as '{owner}', which owns the horsies"
    assert err == f"{refused} {told} tables\n"
    told_what_to_grant(plain_role, migrate, "SELECT on table public.horsies_alembic_version")
    # a schema that the role may not even look into is none to it
    empty_db.execute("REVOKE USAGE ON SCHEMA public FROM PUBLIC")
    told_what_to_grant(plain_role, migrate, "USAGE on schema public")
    code, _, err = migrate("up", url=plain_role.url)
    assert (code, "the role is" in err, "GRANT" in err) == (3, True, True)


def told_what_to_grant(plain_role: Database, migrate: Migrate, right: str) -> None:
    """Where it suffices to read, in the words of `horsies`."""
    for verb in ("check", "current"):
        for more in ([], ["--schema", "public"]):
            code, out, err = migrate(verb, *more, url=plain_role.url)
            assert (code, out) == (3, "")
            assert err == f"horsies-migrate: {no_right(roles.account(plain_role), right)}\n"


@pytest.mark.parametrize("role", ["viewer", "operator", "producer", "worker"])
def test_any_granted_role_suffices_to_read_the_revision(db: Database, migrate: Migrate, role: str) -> None:
    with roles.accounts(db) as accounts:
        for verb in ("check", "current"):
            code, out, err = migrate(verb, url=accounts[role].url)
            assert (code, err) == (0, "")
            assert horsies_schema.head() in out


def test_a_connection_that_was_lost_is_told_as_that(db: Database) -> None:
    def end_itself(connection: Connection) -> None:
        connection.exec_driver_sql("SELECT pg_terminate_backend(pg_backend_pid())")

    with pytest.raises(MigrationError, match="the connection to the database was lost: ") as lost:
        on_connection(db.url, end_itself)
    assert lost.value.code == 4


def test_a_newer_database_passes_the_check(db: Database, migrate: Migrate) -> None:
    """As for client, worker and doctor (tests/integration/test_schema_guard.py)."""
    db.execute("UPDATE horsies_alembic_version SET version_num = '9999'")
    code, out, err = migrate("check", url=db.url)
    assert (code, err) == (0, "")
    assert out == f"the database is at revision 9999, newer than {horsies_schema.head()} of this package, which works\n"


def test_the_help_says_which_schema_is_meant(migrate: Migrate) -> None:
    assert "(default: public)" in " ".join(migrate("grants", "--help")[1].split())
    assert "CREATEROLE" in migrate("grants", "--help")[1]
    assert 'GRANT USAGE ON SCHEMA "public"' in migrate("grants")[1]
    assert "(default: by search_path)" in " ".join(migrate("up", "--help")[1].split())


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


def test_sql_leads_up_alone(migrate: Migrate) -> None:
    for revision, since in (("0002", "0005"), ("base", "0005"), ("0005", "head"), ("base", "head")):
        code, out, err = migrate("sql", revision, "--since", since)
        assert (code, out) == (2, "")
        assert err.startswith(
            f"horsies-migrate: revision {revision} is older than {since} of --since, and no SQL leads"
        )
        assert f"`horsies-migrate down {revision} --yes`" in err
    assert migrate("sql", "0005", "--since", "0002")[1].count("-- Running upgrade") == 3
    assert migrate("sql", "0005", "--since", "0005")[0] == 0
    assert migrate("sql", "4711", "--since", "0005")[0] == 2


@pytest.mark.parametrize("verb", ["up", "grants"])
@pytest.mark.parametrize(
    ("prefix", "why"),
    [
        ("", "it is empty: the roles would be called producer, worker, viewer and operator"),
        ("pg_", "PostgreSQL keeps names that begin with pg_ for itself"),
        ("x\n", "control characters"),
        ("a$$b", "control characters or $$"),
        ("x" * 56, "longer than 63 bytes"),
    ],
)
def test_prefixes_that_make_no_names(migrate: Migrate, db: Database, verb: str, prefix: str, why: str) -> None:
    more = ["--grants"] if verb == "up" else []
    code, out, err = migrate(verb, *more, "--prefix", prefix, url=db.url if more else None)
    assert (code, out) == (2, "")
    assert "argument --prefix" in err
    assert why in err
    with pytest.raises(MigrationError, match=re.escape(why)):
        horsies_schema.grants(prefix=prefix)


def test_a_prefix_without_grants_is_refused(migrate: Migrate, empty_db: Database) -> None:
    code, out, err = migrate("up", "--prefix", "shop_", url=empty_db.url)
    assert (code, out) == (2, "")
    assert "--prefix: it names the roles of --grants, which is not given" in err
    assert horsies_schema.current(empty_db.url) is None
