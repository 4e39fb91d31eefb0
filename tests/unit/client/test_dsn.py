"""Connection settings arrive at asyncpg exactly as meant, judged by asyncpg's own parser; secrets stay in."""

import inspect
import shutil
import ssl
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from asyncpg import connect_utils
from hypothesis import given, strategies as st

from horsies._pg.dsn import connect_arguments
from horsies._redaction import redact
from horsies.config import PostgresConfig
from horsies.config.dsn import is_embedded, parse
from horsies.errors import ConfigurationError, UsageError

ODD = [
    "p@ss",
    "a:b",
    "a/b",
    "100%",
    "%41",
    "a?b#c",
    "ü ñ 雪 🐎",
    "it's",
    'say "hi"',
    "back\\slash",
    "a&b=c",
    "+plus+",
    "[x]",
    " ",
]

# Printable, including everything that means something in a URL or a DSN.
passwords = st.text(
    st.one_of(
        st.sampled_from("@:/%?#&=+'\"\\ []{}$,;|~"),
        st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zl", "Zp")),
    ),
    min_size=4,
    max_size=24,
)


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSSLMODE", "PGSERVICE", "PGPASSFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("PGTARGETSESSIONATTRS", "PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY", "PGSERVICEFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


def understood(**kwargs: Any) -> tuple[list[Any], Any, Any]:
    """What asyncpg makes of the arguments of `connect`: addresses, parameters, client settings."""
    defaults: dict[str, Any] = dict.fromkeys(inspect.signature(connect_utils._parse_connect_arguments).parameters)
    defaults |= {
        "statement_cache_size": 100,
        "max_cached_statement_lifetime": 300,
        "max_cacheable_statement_size": 15_360,
    }
    kwargs.pop("timeout", None)
    assert kwargs.keys() <= defaults.keys()
    return connect_utils._parse_connect_arguments(**defaults | kwargs)


def arrives(url: str, *, direct: bool = False, **fields: Any) -> tuple[list[Any], Any, Any]:
    return understood(**connect_arguments(PostgresConfig(url, **fields), direct=direct))


def problem_of(text: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    (problem,) = caught.value.problems
    assert problem.fix
    return problem.why


# -- what arrives ---------------------------------------------------------------------------------


@pytest.mark.parametrize("password", ODD)
def test_passwords_with_odd_characters_arrive_exactly(password: str) -> None:
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    for text in (
        f"postgresql://app:{quote(password, safe='')}@h/db",
        f"postgresql+asyncpg://app:{quote(password, safe='')}@h:5432/db",
        f"postgresql://app@h/db?password={quote(password, safe='')}",
        f"user=app password='{escaped}' host=h dbname=db",
        f"user = app password = '{escaped}' host=h dbname=db",
    ):
        addrs, params = arrives(text)[:2]
        assert (params.user, params.password, params.database) == ("app", password, "db")
        assert addrs == [("h", 5432)]


@given(passwords, passwords)
def test_any_password_and_user_arrive_exactly(user: str, password: str) -> None:
    text = f"postgresql://{quote(user, safe='')}:{quote(password, safe='')}@h/db?sslmode=disable"
    params = arrives(text)[1]
    assert (params.user, params.password) == (user, password)


def test_raw_characters_that_are_not_ambiguous_are_taken_as_written() -> None:
    for raw in ("p@ss", "a:b", "100%", "ü ñ 雪", "it's", "+plus+", "a&b=c"):
        addrs, params = arrives(f"postgresql://app:{raw}@h/db")[:2]
        assert params.password == raw
        assert addrs == [("h", 5432)]
    # A plus is a plus, also in the query, as in libpq; asyncpg alone would read a blank.
    assert arrives("postgresql://app@h/db?password=a+b")[1].password == "a+b"


def test_unquoted_dsn_values_with_backslashes() -> None:
    assert arrives(r"host=h password=a\ b\\c\'d dbname=db")[1].password == r"a b\c'd"
    assert arrives("host=h password=it's dbname=db")[1].password == "it's"


@pytest.mark.parametrize(
    ("url", "addrs"),
    [
        ("postgresql://u@h1:5432,h2:5433/db", [("h1", 5432), ("h2", 5433)]),
        ("postgresql://u@h1,h2:5433/db", [("h1", 5432), ("h2", 5433)]),
        ("postgresql://u@[::1]:5433/db", [("::1", 5433)]),
        ("postgresql://u@[::1]/db", [("::1", 5432)]),
        ("postgresql://u@[fe80::1%25eth0]:7/db", [("fe80::1%eth0", 7)]),
        ("postgresql://u@[::1]:1,[::2]:2/db", [("::1", 1), ("::2", 2)]),
        ("postgresql:///db?host=h1:1&host=h2:2", [("h1", 1), ("h2", 2)]),
        ("postgresql:///db?host=h1,h2&port=1,2", [("h1", 1), ("h2", 2)]),
        ("postgresql:///db?host=h1,h2&port=7", [("h1", 7), ("h2", 7)]),
        ("postgresql://ignored:1/db?host=h2&port=2", [("h2", 2)]),
        ("host=h1,h2 port=1,2", [("h1", 1), ("h2", 2)]),
        ("host=::1 port=5433", [("::1", 5433)]),
        ("postgresql:///db?host=/var/run/pg", ["/var/run/pg/.s.PGSQL.5432"]),
        ("postgresql://u@%2Ftmp%2Fmy%20dir:5433/db", ["/tmp/my dir/.s.PGSQL.5433"]),
        ("postgresql://u@/db?host=/tmp&port=5433", ["/tmp/.s.PGSQL.5433"]),
        ("host='/tmp/my dir' port=5433", ["/tmp/my dir/.s.PGSQL.5433"]),
        ("postgresql://u@%2Ftmp,h2:5433/db", ["/tmp/.s.PGSQL.5432", ("h2", 5433)]),
    ],
)
def test_hosts_and_sockets_arrive(url: str, addrs: list[Any]) -> None:
    assert arrives(url)[0] == addrs


def test_mixed_names_and_ipv6_arrive_although_urllib_would_refuse_them() -> None:
    # Newer Pythons raise on "h1,[::1]" in the authority, so no URL can carry it; separate arguments can.
    assert arrives("postgresql://u@h1:1,[::1]:2/db")[0] == [("h1", 1), ("::1", 2)]


def test_without_host_the_local_sockets_are_tried_at_the_given_port() -> None:
    for url in ("port=5433 dbname=db", "postgresql://:5433/db", "postgresql:///db?port=5433"):
        addrs = arrives(url)[0]
        assert addrs[0] == "/run/postgresql/.s.PGSQL.5433"
        assert addrs[-1] == ("localhost", 5433)


def test_the_environment_fills_what_the_url_leaves_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPORT", "6000")
    monkeypatch.setenv("PGPASSWORD", "from-env")
    addrs, params, _ = arrives("postgresql://u@h1,h2/db")
    assert addrs == [("h1", 6000), ("h2", 6000)]
    assert params.password == "from-env"
    assert arrives("postgresql://u:own@h/db")[1].password == "own"


def test_database_names_and_users_are_decoded() -> None:
    params = arrives("postgresql://me%40corp:x@h/my%2Fdb%20%C3%BC")[1]
    assert (params.user, params.database) == ("me@corp", "my/db ü")
    assert arrives("postgresql://h?user=u&dbname=d")[1].database == "d"
    assert arrives("postgresql://h?user=u&database=d")[1].database == "d"


def test_several_hosts_look_for_a_writable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    assert arrives("postgresql://u@h1,h2/db")[1].target_session_attrs == "read-write"
    assert arrives("postgresql://u@h1/db")[1].target_session_attrs == "any"
    assert arrives("postgresql://u@h1,h2/db?target_session_attrs=primary")[1].target_session_attrs == "primary"
    assert arrives("postgresql://u@h1,h2/db?target_session_attrs=any")[1].target_session_attrs == "any"
    monkeypatch.setenv("PGTARGETSESSIONATTRS", "primary")
    assert arrives("postgresql://u@h1,h2/db")[1].target_session_attrs == "primary"
    for attrs in ("standby", "read-only", "prefer-standby", "nonsense"):
        assert "writable" in problem_of(f"postgresql://h/db?target_session_attrs={attrs}")


def test_session_settings() -> None:
    _, params, client = arrives("postgresql://h/db", schema='my "jobs"', command_timeout_ms=1_500)
    assert params.server_settings == {
        "application_name": "horsies",
        "default_transaction_isolation": "read committed",
        "search_path": '"my ""jobs"""',
    }
    assert client.command_timeout == 1.5
    assert client.statement_cache_size == 100
    assert "command_timeout" not in connect_arguments(PostgresConfig("postgresql://h/db", command_timeout_ms=None))


def test_a_pooler_gets_no_session_settings_and_no_named_statements() -> None:
    fields = {"pooler": True, "direct_url": "postgresql://direct/db"}
    addrs, params, client = arrives("postgresql://pool/db", **fields)
    assert addrs == [("pool", 5432)]
    assert params.server_settings == {"application_name": "horsies"}
    assert client.statement_cache_size == 0

    addrs, params, client = arrives("postgresql://pool/db", direct=True, **fields)
    assert addrs == [("direct", 5432)]
    assert params.server_settings["default_transaction_isolation"] == "read committed"
    assert client.statement_cache_size == 100


def test_direct_without_a_direct_url_is_the_database_url() -> None:
    assert arrives("postgresql://h/db", direct=True)[0] == [("h", 5432)]


def test_url_settings_count_where_the_field_is_at_its_default() -> None:
    url = "postgresql://h/db?connect_timeout=3&application_name=web&search_path=x&statement_timeout=5s"
    kwargs = connect_arguments(PostgresConfig(url))
    assert kwargs["timeout"] == 3.0
    assert kwargs["server_settings"]["application_name"] == "web"
    assert kwargs["server_settings"]["search_path"] == "x"
    assert kwargs["server_settings"]["statement_timeout"] == "5s"
    assert "connect_timeout" not in kwargs["server_settings"]
    kwargs = connect_arguments(PostgresConfig(url, connect_timeout_ms=700, application_name="mine", schema="s"))
    assert kwargs["timeout"] == 0.7
    assert kwargs["server_settings"]["application_name"] == "mine"
    assert kwargs["server_settings"]["search_path"] == '"s"'
    # libpq: zero and less mean "no bound", which we do not offer.
    assert connect_arguments(PostgresConfig("postgresql://h/db?connect_timeout=0"))["timeout"] == 10.0
    assert connect_arguments(PostgresConfig("postgresql://h/db?connect_timeout=-1"))["timeout"] == 10.0


def test_our_isolation_level_wins_over_the_url() -> None:
    settings = arrives("postgresql://h/db?default_transaction_isolation=serializable")[1].server_settings
    assert settings["default_transaction_isolation"] == "read committed"


def test_libpq_only_settings_do_not_reach_the_server() -> None:
    url = (
        "postgresql://h/db?keepalives=1&keepalives_idle=5&tcp_user_timeout=3&channel_binding=prefer&gssencmode=disable"
    )
    assert arrives(url + "&client_encoding=UTF8&fallback_application_name=x")[1].server_settings.keys() == {
        "application_name",
        "default_transaction_isolation",
    }


@pytest.mark.parametrize(
    "setting",
    [
        "channel_binding=require",
        "hostaddr=10.0.0.1",
        "gssencmode=require",
        "require_auth=md5",
        "client_encoding=latin1",
    ],
)
def test_what_asyncpg_cannot_honour_is_refused_by_name(setting: str) -> None:
    assert setting.partition("=")[0] in problem_of(f"postgresql://h/db?{setting}")


# -- TLS ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")
    key, cert = folder / "own key.pem", folder / "own+cert.pem"
    command = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-days", "1", "-subj", "/CN=horsies"]
    subprocess.run(
        [*command, "-passout", "pass:p@ss &+word", "-keyout", str(key), "-out", str(cert)],
        check=True,
        capture_output=True,
    )
    return str(cert), str(key)


@pytest.mark.parametrize(
    ("mode", "verify", "hostname"),
    [
        ("allow", ssl.CERT_NONE, False),
        ("prefer", ssl.CERT_NONE, False),
        ("require", ssl.CERT_REQUIRED, False),
        ("verify-ca", ssl.CERT_REQUIRED, False),
        ("verify-full", ssl.CERT_REQUIRED, True),
    ],
)
def test_tls_words_and_files_arrive(
    certificate: tuple[str, str], mode: str, verify: ssl.VerifyMode, hostname: bool
) -> None:
    cert, key = certificate
    fields = {"sslrootcert": cert, "sslcert": cert, "sslkey": key, "sslpassword": "p@ss &+word"}
    in_url = "&".join(f"{name}={quote(value, safe='')}" for name, value in fields.items())
    for _, params, _ in (
        arrives("postgresql://h/db", sslmode=mode, **fields),
        arrives(f"postgresql://h/db?sslmode={mode}&{in_url}"),
        arrives("postgresql://h/db?sslmode=disable&sslrootcert=wrong.pem", sslmode=mode, **fields),
    ):
        assert params.sslmode == connect_utils.SSLMode.parse(mode)
        assert params.ssl.verify_mode == verify
        assert params.ssl.check_hostname is hostname


def test_the_key_password_really_is_used(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    with pytest.raises(ssl.SSLError):
        arrives("postgresql://h/db", sslmode="require", sslcert=cert, sslkey=key, sslpassword="wrong")


def test_disable_means_no_tls_and_looks_at_no_file() -> None:
    assert arrives("postgresql://h/db", sslmode="disable")[1].ssl is False
    assert arrives("postgresql://h/db?sslmode=disable&sslrootcert=none.pem")[1].ssl is False
    assert arrives("postgresql://h/db?ssl=true")[1].sslmode == connect_utils.SSLMode.require


def test_the_authorities_of_the_machine(certificate: tuple[str, str]) -> None:
    cert, key = certificate
    for fields in (
        {"sslrootcert": "system"},
        {"sslrootcert": "system", "sslcert": cert, "sslkey": key, "sslpassword": "p@ss &+word"},
    ):
        _, params, _ = arrives("postgresql://h/db", **fields)
        assert params.ssl.verify_mode == ssl.CERT_REQUIRED
        assert params.ssl.check_hostname is True
        assert params.sslmode == connect_utils.SSLMode.require  # no falling back to plain text
    with pytest.raises(ConfigurationError, match="cannot be combined with sslcrl"):
        arrives(f"postgresql://h/db?sslrootcert=system&sslcrl={quote(cert)}")


def test_missing_files_are_named_together_when_connecting() -> None:
    config = PostgresConfig("postgresql://h/db", sslmode="require", sslrootcert="/no/ca.pem", sslcert="/no/cert.pem")
    with pytest.raises(ConfigurationError) as caught:
        connect_arguments(config)
    assert [problem.where for problem in caught.value.problems] == [
        "PostgresConfig.sslrootcert",
        "PostgresConfig.sslcert",
    ]
    assert "/no/ca.pem" in str(caught.value)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("postgresql://u:hunter/22@h/db", "'@' after the first '/'"),
        ("postgresql://u:12/hunter@h/db", "'@' after the first '/'"),
        ("postgresql://u:hunter?22@h/db", "not key=value"),
        ("postgresql://u:hunter#22@h/db", "raw '#'"),
        ("postgresql://u:x@h:hunter/db", "port"),
        ("postgresql://u:x@h:0/db", "port"),
        ("postgresql://u:x@h:65536/db", "port"),
        ("postgresql://u:x@::1/db", "more than one ':'"),
        ("postgresql://u:x@h1,,h2/db", "empty host"),
        ("postgresql://u:x@h1,h2/db?port=1,2,3", "3 ports for 2 hosts"),
        ("postgresql://u:%ff@h/db", "not UTF-8"),
        ("postgresql://u:a%00b@h/db", "NUL"),
        ("postgresql://u:a\nb@h/db", "control character"),
        ("postgresql://u:\ud800@h/db", "surrogate"),
        ("postgresql://h/db?sslmode=on", "sslmode"),
        ("postgresql://h/db?connect_timeout=soon", "connect_timeout"),
        ("host=h password='hunter", "well-formed"),
        ("host=h password=hunter 22", "well-formed"),
        ("host=@abstract", "abstract socket"),
        ("host=:/", "no name"),
        ("postgresql://%40hunter:x@a%2Cb/db", "no name"),
        ("mysql://u:hunter@h/db", "neither"),
        ("mysql://u:hunter@h/db?x=1", "neither"),
        ("/var/lib/hunter", "neither"),
    ],
)
def test_refusals_say_why_and_never_quote(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse(text)
    assert why in " ".join(problem.why for problem in caught.value.problems)
    assert "hunter" not in str(caught.value)


@given(st.text(max_size=60))
def test_reading_anything_ends_in_a_dsn_or_a_configuration_error(text: str) -> None:
    for candidate in (text, f"postgresql://{text}", f"host={text}", f"password='{text}"):
        try:
            dsn = parse(candidate)
        except ConfigurationError:
            continue
        assert not any("\0" in value for value in (dsn.user or "", dsn.password or "", dsn.database or ""))


def test_an_embedded_url_cannot_connect_before_it_is_resolved() -> None:
    assert is_embedded(" embedded://")
    assert not is_embedded("postgresql://embedded/db")
    with pytest.raises(UsageError, match="embedded://"):
        connect_arguments(PostgresConfig("embedded://"))


def test_the_parsed_form_shows_no_secret() -> None:
    assert "hunter22" not in repr(parse("postgresql://u:hunter22@h/db?sslpassword=hunter22x"))


# -- redaction ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("postgresql://u:pw@h/db", "postgresql://u:***@h/db"),
        ("postgres://u:pw@h1:1,h2:2/db?sslmode=require", "postgres://u:***@h1:1,h2:2/db?sslmode=require"),
        ("postgresql+asyncpg://u:p@s:s/w@h/db", "postgresql+asyncpg://u:***@h/db"),
        ("postgresql://u@h/db?password=p@w&sslmode=require", "postgresql://u@h/db?password=***&sslmode=require"),
        ("postgresql://u@h/db?sslpassword=pw&password=x", "postgresql://u@h/db?sslpassword=***&password=***"),
        ("postgresql://u@h:5432/db", "postgresql://u@h:5432/db"),
        ("postgresql:///db?host=/tmp", "postgresql:///db?host=/tmp"),
        ("host=h password=pw dbname=db", "host=h password=*** dbname=db"),
        ("host=h password='p \\' w' dbname=db", "host=h password=*** dbname=db"),
        ("password = 'p w' sslpassword=x user=u", "password = *** sslpassword=*** user=u"),
        ("host=h password=my secret word dbname=db", "host=h password=*** dbname=db"),
        ("host=h password='it's' dbname=db", "host=h password=*** dbname=db"),
        ("dsn 'postgresql://u:p'w@h/db': refused", "dsn 'postgresql://u:***@h/db': refused"),
        ('dsn "postgresql://h/db?password=p w": refused', 'dsn "postgresql://h/db?password=***": refused'),
        ("from postgresql://u:a@h/x to postgresql://u:b@h/y", "from postgresql://u:***@h/x to postgresql://u:***@h/y"),
        ("postgresql://u:has postgresql://y:in it@h/db", "postgresql://u:***@h/db"),
        ("line\npostgresql://u:pw@h/db\nbob@example.com", "line\npostgresql://u:***@h/db\nbob@example.com"),
        ("bad 'host=h password=pw' here", "bad 'host=h password=*** here"),
        ("connect(host='h', password='p, w', port=1)", "connect(host='h', password=***, port=1)"),
        ("{'user': 'u', 'password': 'p\"w'}", "{'user': 'u', 'password': ***}"),
        ('{"password": "p\\"w", "user": "u"}', '{"password": ***, "user": "u"}'),
        ("env PGPASSWORD=pw psql", "env PGPASSWORD=*** psql"),
        ("redis://u:pw@h/0 and amqp://:pw@h", "redis://u:***@h/0 and amqp://:***@h"),
        ('password authentication failed for user "u"', 'password authentication failed for user "u"'),
        ("", ""),
    ],
)
def test_redact(text: str, expected: str) -> None:
    assert redact(text) == expected


@given(passwords)
def test_no_password_survives_in_urls_dsns_and_messages(password: str) -> None:
    encoded = quote(password, safe="")
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    # Judged by equality: a second half of the password left standing would be a leak too.
    for template, written in (
        ("postgresql://app:{}@db/work", password),
        ("postgresql://app:{}@db/work", encoded),
        ("could not reach postgresql://app:{}@db/work?sslmode=require", password),
        ("could not reach 'postgresql://app:{}@db/work', giving up", password),
        ("postgresql://db/work?password={}", password),
        ("postgresql://app@db/work?sslpassword={}&sslmode=require", password),
        ("postgresql://db/work?user=app&password={}&sslmode=require", encoded),
        ("postgresql+psycopg://a:{}@db/work?sslpassword=***", password),
        ("host=db dbname=work password={}", password.lstrip()),
    ):
        assert redact(template.format(written)) == template.format("***")
    # A raw password that begins with a quote has no certain end: then all that follows is hidden.
    assert redact(f"host=db password={password.lstrip()} dbname=work") in (
        "host=db password=*** dbname=work",
        "host=db password=***",
    )
    assert redact(f"host=db password='{escaped}' dbname=work") == "host=db password=*** dbname=work"
    assert redact(f"invalid: host=db password='{escaped}'") == "invalid: host=db password=***"


@given(passwords)
def test_no_password_survives_in_a_config(password: str) -> None:
    encoded = quote(password, safe="")
    escaped = password.replace("\\", "\\\\").replace("'", "\\'")
    for url, hidden in (
        (f"postgresql://app:{encoded}@db/work", "postgresql://app:***@db/work"),
        (f"postgresql://app@db/work?password={encoded}", "postgresql://app@db/work?password=***"),
        (f"host=db password='{escaped}' dbname=work", "host=db password=*** dbname=work"),
    ):
        config = PostgresConfig(url, sslcert="c", sslpassword=password)
        assert repr(config) == f"PostgresConfig(database_url={hidden!r}, sslcert='c', sslpassword='***')"
        for written in (password, encoded, escaped):
            assert config.redact(f"\N{SNOWMAN}{written}\N{SNOWMAN}") == "\N{SNOWMAN}***\N{SNOWMAN}"


def test_a_secret_that_begins_another_does_not_uncover_its_rest() -> None:
    assert redact("it was abcdefgh", secrets=["abcd", "abcdefgh"]) == "it was ***"


def test_very_short_secrets_are_hidden_by_place_not_by_value() -> None:
    config = PostgresConfig("postgresql://app:a@h/db")
    assert config.redact("a bad day at postgresql://app:a@h/db") == "a bad day at postgresql://app:***@h/db"
