"""The settings of a connection: forms of the URL, pooler, TLS, ranges; no secret is shown."""

import dataclasses
from typing import Any

import pytest

from horsies.config import (
    AppConfig,
    PostgresConfig,
)
from horsies.errors import ConfigurationError
from tests.support.configs import URL, wheres


@pytest.fixture(autouse=True)
def no_url_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORSIES_DATABASE_URL", raising=False)


def test_postgres_defaults() -> None:
    config = PostgresConfig(URL)
    assert dataclasses.asdict(config) == {
        "database_url": URL,
        "direct_url": None,
        "replica_url": None,
        "schema": None,
        "pooler": False,
        "sslmode": None,
        "sslrootcert": None,
        "sslcert": None,
        "sslkey": None,
        "sslpassword": None,
        "pool_min_size": 0,
        "pool_max_size": 10,
        "connect_timeout_ms": 10_000,
        "command_timeout_ms": 60_000,
        "application_name": "horsies",
    }
    assert config.url == config.listen_url == URL


def test_the_url_comes_from_the_environment_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", URL)
    config = PostgresConfig()
    monkeypatch.setenv("HORSIES_DATABASE_URL", "postgresql://elsewhere/db")
    assert config.url == config.database_url == URL
    assert dataclasses.replace(config, pool_max_size=3).url == URL
    assert PostgresConfig("postgresql://given/db").url == "postgresql://given/db"


@pytest.mark.parametrize("value", [None, ""])
def test_no_url_at_all(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv("HORSIES_DATABASE_URL", value)
    with pytest.raises(ConfigurationError, match="HORSIES_DATABASE_URL is not set"):
        PostgresConfig()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h/db",
        "postgres://h",
        "postgresql+asyncpg://u:p@h/db",
        "postgresql+psycopg://u:p@h/db",
        "postgresql+psycopg2://u:p@h/db",
        "postgresql://u@h1:5432,h2:5433/db?target_session_attrs=read-write",
        "postgresql:///db?host=/tmp",
        "host=h password='a b' dbname=db",
        "embedded://",
        "embedded:///var/tmp/pg",
    ],
)
def test_accepted_url_forms(url: str) -> None:
    assert PostgresConfig(url).url == url


@pytest.mark.parametrize("url", ["", "mysql://u:hunter22@h/db", "just-hunter22", 7, b"postgresql://u:hunter22@h", "\0"])
def test_refused_url_forms_do_not_show_what_was_given(url: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PostgresConfig(url)
    assert [problem.where for problem in caught.value.problems] == ["PostgresConfig.database_url"]
    assert "hunter22" not in str(caught.value)


def test_a_pooler_needs_another_direct_url_and_says_why() -> None:
    with pytest.raises(ConfigurationError, match="LISTEN through a transaction-mode pooler is silently lost"):
        PostgresConfig(URL, pooler=True)
    assert wheres(PostgresConfig, URL, pooler=True, direct_url=URL) == ["PostgresConfig.direct_url"]
    config = PostgresConfig(URL, pooler=True, direct_url="postgresql://direct/db")
    assert config.listen_url == "postgresql://direct/db"
    # A direct URL without a pooler is allowed: it is simply where LISTEN goes.
    assert PostgresConfig(URL, direct_url="postgresql://direct/db").listen_url == "postgresql://direct/db"


def test_a_schema_works_through_a_pooler() -> None:
    config = PostgresConfig(URL, pooler=True, direct_url="postgresql://d/db", schema="jobs")
    assert config.schema == "jobs"


@pytest.mark.parametrize("schema", ["jobs", "My Jobs", 'a"b', "ä" * 31, "x" * 63, "pgx"])
def test_good_schemas(schema: str) -> None:
    assert PostgresConfig(URL, schema=schema).schema == schema


@pytest.mark.parametrize("schema", ["", "x" * 64, "ä" * 32, "a\0b", "pg_jobs", "\ud800", 5])
def test_bad_schemas(schema: Any) -> None:
    assert wheres(PostgresConfig, URL, schema=schema) == ["PostgresConfig.schema"]


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"])
def test_sslmode_words(mode: str) -> None:
    assert PostgresConfig(URL, sslmode=mode).sslmode == mode


@pytest.mark.parametrize("mode", ["", "on", "verify_full", "REQUIRE", True, 1, ["require"]])
def test_other_sslmodes_are_refused(mode: Any) -> None:
    assert wheres(PostgresConfig, URL, sslmode=mode) == ["PostgresConfig.sslmode"]


def test_tls_cross_checks() -> None:
    assert wheres(PostgresConfig, URL, sslmode="disable", sslrootcert="ca.pem") == ["PostgresConfig.sslmode"]
    assert wheres(PostgresConfig, URL + "?sslmode=disable", sslrootcert="ca.pem") == ["PostgresConfig.sslmode"]
    assert wheres(PostgresConfig, URL, sslkey="k.pem") == ["PostgresConfig.sslkey"]
    assert wheres(PostgresConfig, URL, sslpassword="pw") == ["PostgresConfig.sslpassword"]
    assert wheres(PostgresConfig, URL, sslrootcert="system", sslmode="require") == ["PostgresConfig.sslrootcert"]
    assert PostgresConfig(URL, sslcert="c.pem", sslkey="k.pem", sslpassword="pw").sslkey == "k.pem"
    assert PostgresConfig(URL + "?sslcert=c.pem", sslkey="k.pem").sslkey == "k.pem"
    assert PostgresConfig(URL, sslrootcert="system", sslmode="verify-full").sslrootcert == "system"
    assert PostgresConfig(URL, sslrootcert="system").sslmode is None


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("pool_max_size", 1, 1_000),
        ("connect_timeout_ms", 100, 300_000),
        ("command_timeout_ms", 100, 86_400_000),
    ],
)
def test_postgres_ranges(field: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(PostgresConfig(URL, **{field: value}), field) == value
    for value in (low - 1, high + 1, True, "5", 1.5):
        assert wheres(PostgresConfig, URL, **{field: value}) == [f"PostgresConfig.{field}"]


def test_pool_bounds_and_optional_timeouts() -> None:
    assert PostgresConfig(URL, pool_min_size=1_000, pool_max_size=1_000).pool_min_size == 1_000
    assert wheres(PostgresConfig, URL, pool_min_size=-1) == ["PostgresConfig.pool_min_size"]
    assert wheres(PostgresConfig, URL, pool_min_size=1_001, pool_max_size=1_000) == ["PostgresConfig.pool_min_size"]
    assert wheres(PostgresConfig, URL, pool_min_size=3, pool_max_size=2) == ["PostgresConfig.pool_min_size"]
    assert PostgresConfig(URL, command_timeout_ms=None).command_timeout_ms is None
    assert wheres(PostgresConfig, URL, connect_timeout_ms=None) == ["PostgresConfig.connect_timeout_ms"]


@pytest.mark.parametrize("name", ["", "x" * 64, None, 3, "a\0"])
def test_bad_application_names(name: Any) -> None:
    assert wheres(PostgresConfig, URL, application_name=name) == ["PostgresConfig.application_name"]


def test_all_problems_of_a_connection_at_once() -> None:
    found = wheres(
        PostgresConfig,
        "postgresql://h:port/db?sslmode=maybe",
        direct_url="nonsense",
        pooler="yes",
        schema="pg_x",
        sslmode="on",
        sslkey=3,
        pool_max_size=0,
        application_name=None,
    )
    assert sorted(set(found)) == [
        f"PostgresConfig.{field}"
        for field in (
            "application_name", "database_url", "direct_url", "pool_max_size", "pooler", "schema", "sslkey", "sslmode",
        )
    ]  # fmt: skip
    assert found.count("PostgresConfig.database_url") == 2


def test_the_text_forms_show_the_host_but_no_secret() -> None:
    config = PostgresConfig(
        URL, direct_url=URL + "?password=0ther-word", sslcert="c", sslkey="k", sslpassword="k3y-word"
    )
    for text in (repr(config), str(config), f"{config}", repr(AppConfig(config)), f"{[config]!r}"):
        assert "db.example" in text
        for secret in ("s3cr3t-word", "0ther-word", "k3y-word"):
            assert secret not in text


def test_a_config_redacts_its_own_secrets_standing_alone() -> None:
    config = PostgresConfig(
        "postgresql://app:p%40ss%2Fword@h/db",
        sslcert="c",
        sslpassword="k3y-word",
        direct_url="host=h password='it\\'s me'",
    )
    text = config.redact("bad p@ss/word, p%40ss%2Fword, k3y-word, it's me and it\\'s me at h")
    assert text == "bad ***, ***, ***, *** and *** at h"
