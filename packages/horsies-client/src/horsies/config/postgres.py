"""`PostgresConfig`: the database and its connections. Its `repr` never shows a secret.

`config.dsn` is imported where it is used: its patterns and urllib take 9 ms, which `import horsies` does not pay.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Final

from horsies._checks import Checks
from horsies._hints import known_settings
from horsies._secret import Secret
from horsies.errors import ConfigurationError

DATABASE_URL_VARIABLE: Final = "HORSIES_DATABASE_URL"
REPLICA_URL_VARIABLE: Final = "HORSIES_REPLICA_URL"
"""Of commands whose database comes from HORSIES_DATABASE_URL; `PostgresConfig` does not read it."""
DEFAULT_APPLICATION_NAME: Final = "horsies"
DEFAULT_CONNECT_TIMEOUT_MS: Final = 10_000

_IDENTIFIER_BYTES: Final = 63
_TLS_FIELDS: Final = ("sslrootcert", "sslcert", "sslkey", "sslpassword")


@known_settings
@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PostgresConfig:
    """Settings of the connection. A setting in the URL counts where the field has its default value."""

    database_url: str | None = field(default=None, kw_only=False)
    """`postgresql://` URL (also `postgres://`, `+driver`, several hosts), key=value DSN, or `embedded://`.
    None: the environment variable HORSIES_DATABASE_URL. May be given by position."""

    direct_url: str | None = None
    """The same database without the pooler, for LISTEN and session locks. Required when `pooler`."""

    replica_url: str | None = None
    """A streaming replica of the same database, for the dashboard, the exporter and commands that list. Everything
    else, and these while the replica is away, goes to `database_url`."""

    schema: str | None = None
    """Schema of the horsies tables, up to 63 bytes, not `pg_...`. Statements name it, so it works through a pooler and
    on a caller's own connection. None: the connection's search_path decides."""

    pooler: bool = False
    """Whether a transaction-mode pooler such as PgBouncer stands in front. Needs a `direct_url`, because LISTEN through
    such a pooler is silently lost. No statement is kept prepared, no session setting is sent."""

    sslmode: str | None = None
    """disable, allow, prefer, require, verify-ca or verify-full; None: the URL's, else that of `PGSSLMODE`, else
    prefer."""

    sslrootcert: str | None = None
    """File of the trusted authorities, or `system` for those of the machine, always with verify-full."""

    sslcert: str | None = None
    """File of the client's certificate."""

    sslkey: str | None = None
    """File of the certificate's private key."""

    sslpassword: str | None = None
    """Password of the private key."""

    pool_min_size: int = 0
    """Connections kept open while idle; at most `pool_max_size`."""

    pool_max_size: int = 10
    """The most connections."""

    connect_timeout_ms: int = DEFAULT_CONNECT_TIMEOUT_MS
    """Time limit for opening a connection, for all hosts together. 100 ms to 5 min."""

    command_timeout_ms: int | None = 60_000
    """Time limit for an answer, of one statement or of the short transaction of an operation, so that a half-open
    connection cannot block a caller for ever. What has none by then fails (a send can be repeated), and its connection
    is closed. None: no limit."""

    application_name: str = DEFAULT_APPLICATION_NAME
    """What pg_stat_activity shows. At most 63 bytes."""

    def __post_init__(self) -> None:
        checks = Checks("PostgresConfig")
        if self.database_url is None:
            # read once: `config.url` and copies by dataclasses.replace must not follow a changing environment
            object.__setattr__(self, "database_url", os.environ.get(DATABASE_URL_VARIABLE) or None)
        for name in ("database_url", "direct_url", "replica_url", "sslpassword"):
            value = getattr(self, name)
            if isinstance(value, str):
                object.__setattr__(self, name, Secret(value))
        if self.database_url is None:
            checks.add(
                "database_url",
                f"no URL was given and {DATABASE_URL_VARIABLE} is not set",
                f"pass database_url= or set {DATABASE_URL_VARIABLE}=postgresql://user:password@host:5432/database",
            )
        in_url: Mapping[str, str] = {}
        if self.database_url is not None:
            in_url = _check_url(checks, "database_url", self.database_url)
        if self.direct_url is not None:
            _check_url(checks, "direct_url", self.direct_url)
        self._check_replica(checks)
        self._check_pooler(checks)
        self._check_tls(checks, in_url)
        if checks.text("schema", self.schema, optional=True) and self.schema is not None:
            _check_bytes(checks, "schema", self.schema)
            if self.schema.startswith("pg_"):
                checks.add("schema", "PostgreSQL keeps the prefix pg_ for itself", "choose a name without it")

        low_ok = checks.integer("pool_min_size", self.pool_min_size, 0, 1_000)
        high_ok = checks.integer("pool_max_size", self.pool_max_size, 1, 1_000)
        if low_ok and high_ok and self.pool_min_size > self.pool_max_size:
            checks.add(
                "pool_min_size",
                f"{self.pool_min_size} is more than pool_max_size ({self.pool_max_size})",
                f"lower it to {self.pool_max_size}, or raise pool_max_size to {self.pool_min_size}",
            )
        checks.integer("connect_timeout_ms", self.connect_timeout_ms, 100, 300_000, unit="ms")
        checks.integer("command_timeout_ms", self.command_timeout_ms, 100, 86_400_000, optional=True, unit="ms")
        if checks.text("application_name", self.application_name):
            _check_bytes(checks, "application_name", self.application_name)
        checks.finish()

    def _check_replica(self, checks: Checks) -> None:
        if self.replica_url is None:
            return
        from horsies.config.dsn import is_embedded

        _check_url(checks, "replica_url", self.replica_url, reads_only=True)
        if is_embedded(str(self.replica_url)):
            checks.add("replica_url", "an embedded server has no replica", "give the URL of a streaming replica")
        elif self.replica_url in (self.database_url, self.direct_url):
            same = "database_url" if self.replica_url == self.database_url else "direct_url"
            checks.add("replica_url", f"is the same as {same}", "leave it out, or give the URL of a streaming replica")

    def _check_pooler(self, checks: Checks) -> None:
        if not checks.boolean("pooler", self.pooler) or not self.pooler:
            return
        lost = "LISTEN through a transaction-mode pooler is silently lost, without any error"
        fix = "set direct_url to the PostgreSQL server itself, past the pooler"
        if self.direct_url is None:
            checks.add("direct_url", f"is required with pooler=True: {lost}", fix)
        elif self.direct_url == self.database_url:
            checks.add("direct_url", f"is the same as database_url, with pooler=True: {lost}", fix)

    def _check_tls(self, checks: Checks, in_url: Mapping[str, str]) -> None:
        from horsies.config.dsn import SSL_MODES

        checks.word("sslmode", self.sslmode, SSL_MODES, optional=True)
        for name in _TLS_FIELDS:
            checks.text(name, getattr(self, name), optional=True, secret=name == "sslpassword")
        given = [name for name in _TLS_FIELDS if getattr(self, name) is not None]
        mode = self.sslmode or in_url.get("sslmode")
        if mode == "disable" and given:
            checks.add(
                "sslmode",
                f"'disable' means no TLS, so {', '.join(given)} would never be used",
                "remove the certificates, or choose "
                + ("verify-full" if self.sslrootcert == "system" else "require, verify-ca or verify-full"),
            )
        if self.sslcert is None and "sslcert" not in in_url:
            for name in ("sslkey", "sslpassword"):
                if name in given:
                    checks.add(name, "has no sslcert to belong to", "give sslcert as well, or remove it")
        if self.sslrootcert == "system" and mode not in (None, "disable", "verify-full"):
            checks.add(
                "sslrootcert",
                f"'system' with sslmode={mode} would trust any host that a public authority vouches for",
                "use sslmode='verify-full'",
            )

    @property
    def url(self) -> str:
        """The database URL as given, or as found in the environment. Contains the password."""
        if self.database_url is None:  # __post_init__ refuses it
            raise AssertionError("a PostgresConfig without URL cannot exist")
        return self.database_url

    @property
    def listen_url(self) -> str:
        """The URL for connections that need their session: `direct_url`, or else `url`. Contains the password."""
        return self.direct_url or self.url

    def redact(self, text: str) -> str:
        """The message without this configuration's secrets, in any spelling."""
        from horsies._redaction import redact
        from horsies.config.dsn import is_embedded, parse, secrets_of

        secrets = [self.sslpassword] if self.sslpassword else []
        for url in (self.database_url, self.direct_url, self.replica_url):
            if url is not None and not is_embedded(url):
                secrets += secrets_of(parse(url, reads_only=url == self.replica_url))
        return redact(text, secrets=secrets)

    def __repr__(self) -> str:
        """The fields that differ from their defaults, without secrets."""
        from horsies._redaction import redact

        parts: list[str] = []
        for item in fields(self):
            value = getattr(self, item.name)
            if value == item.default:
                continue
            if item.name in ("database_url", "direct_url", "replica_url"):
                value = redact(str(value))
            elif item.name == "sslpassword":
                value = "***"
            parts.append(f"{item.name}={value!r}")
        return f"PostgresConfig({', '.join(parts)})"


def _check_url(checks: Checks, name: str, url: object, *, reads_only: bool = False) -> Mapping[str, str]:
    """Check the URL and return its settings."""
    from horsies.config.dsn import is_embedded, parse

    if not checks.text(name, url, secret=True) or not isinstance(url, str) or is_embedded(url):
        return {}
    try:
        return parse(url, f"{checks.subject}.{name}", reads_only=reads_only).params
    except ConfigurationError as error:
        checks.problems.extend(error.problems)
        return {}


def _check_bytes(checks: Checks, name: str, value: str) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        checks.add(name, "contains a lone surrogate", "give text that UTF-8 can carry")
        return
    if size > _IDENTIFIER_BYTES:
        checks.add(name, f"has {size} bytes; PostgreSQL cuts names at 63", "shorten it to 63 bytes of UTF-8")
