"""Reads a connection setting, a URL or a key=value DSN, by libpq's rules into a `Dsn`.

asyncpg (read in 0.32) takes only URLs, sends every query key that it does not know to the server as a setting
(`connect_timeout=10` then fails the connection), reads `+` in a query as a blank, ends the userinfo at the first `@`,
drops tabs and newlines, and lets urllib raise errors that quote the password. So horsies reads the setting itself. No
problem ever quotes a value: an apparent port may be half of a password.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from horsies._secret import Secret
from horsies.errors import ConfigurationError, Problem

_URL = re.compile(r"postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
_PAIR = re.compile(r"\s*(\w+)\s*=\s*(?:'((?:\\.|[^'\\])*)'|((?:\\.|[^\s\\'])(?:\\.|[^\s\\])*|))(?=\s|\Z)", re.DOTALL)
# A socket directory, an IPv6 address perhaps with a zone, or a name: no separator can hide in any of them.
_HOST = re.compile(r"/[^,]*|[0-9A-Fa-f:.]+(?:%\w+)?|[^\s:/?#@\[\],]+")
SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")
_WRITABLE: Final = ("any", "primary", "read-write")
_READABLE: Final = ("any", "standby", "prefer-standby", "read-only")

# libpq socket settings that asyncpg does not support. They change no result, so they are ignored.
_IGNORED: Final = (
    "keepalives",
    "keepalives_idle",
    "keepalives_interval",
    "keepalives_count",
    "tcp_user_timeout",
    "fallback_application_name",
)
# libpq settings that asyncpg does not support and that matter, with the values that are harmless.
_REFUSED: Final[Mapping[str, tuple[tuple[str, ...], str]]] = {
    "hostaddr": ((), "write the address as the host"),
    "channel_binding": (("prefer", "disable"), "remove it; sslmode=verify-full protects against the same attacker"),
    "gssencmode": (("prefer", "disable"), "remove it and use sslmode"),
    "load_balance_hosts": (("disable",), "remove it; hosts are tried in the order they are written"),
    "require_auth": ((), "remove it and restrict the methods in pg_hba.conf"),
    "requirepeer": ((), "remove it"),
    "replication": (("false", "off", "no", "0"), "remove it; a queue needs an ordinary connection"),
    "sslcrldir": ((), "use sslcrl with one file"),
    "sslcompression": (("0",), "remove it"),
    "sslsni": (("1",), "remove it"),
    "client_encoding": (("utf8", "utf-8", "unicode", "auto"), "remove it; asyncpg always speaks UTF-8"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dsn:
    """A decoded connection setting, without defaults."""

    hosts: tuple[tuple[str, int | None], ...] = ()
    port: int | None = None
    """The port of the local socket, only without hosts."""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    database: str | None = None
    params: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    raw_secrets: tuple[str, ...] = field(default=(), repr=False)
    """Secrets as they were written, still percent-encoded, for `redact`."""


def parse(text: str, where: str = "database_url", *, reads_only: bool = False) -> Dsn:
    """Read a URL or a key=value DSN; raises ConfigurationError with all problems. `reads_only`: a standby will do."""
    reader = _Reader(where, reads_only=reads_only)
    dsn = reader.read(text.strip())
    if reader.problems:
        raise ConfigurationError(reader.problems, subject=where)
    return dsn


def is_embedded(text: str) -> bool:
    """True for `embedded://...`: `horsies_schema.embedded` starts that server and knows its real URL."""
    return text.strip().lower().startswith("embedded://")


def secrets_of(dsn: Dsn) -> tuple[str, ...]:
    """Every spelling in which this connection's secrets may appear in a message."""
    plain = [value for value in (dsn.password, dsn.params.get("sslpassword")) if value]
    escaped = [value.replace("\\", "\\\\").replace("'", "\\'") for value in plain]
    return (*dsn.raw_secrets, *plain, *escaped, *map(url_encode, plain), *(repr(value)[1:-1] for value in plain))


def url_encode(text: str) -> str:
    from urllib.parse import quote  # takes 4 ms to import

    return quote(text, safe="")


class _Reader:
    """Reads one setting; collects problems, and never quotes its text."""

    def __init__(self, where: str, *, reads_only: bool = False) -> None:
        self.where = where
        self.attributes, self.kind = (_READABLE, "standby") if reads_only else (_WRITABLE, "writable server")
        self.problems: list[Problem] = []
        self.raw_secrets: list[str] = []

    def problem(self, why: str, fix: str) -> None:
        if not any(problem.why == why for problem in self.problems):
            self.problems.append(Problem(where=self.where, why=why, fix=fix))

    def read(self, text: str) -> Dsn:
        if any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) < 0xE000 for char in text):
            self.problem("contains a control character or a lone surrogate", "percent-encode it (newline is %0A)")
            return Dsn()
        if _URL.match(text):
            return self._url(text)
        if "://" not in text.partition("=")[0] and "=" in text:
            return self._pairs(text)
        self.problem(
            "is neither a PostgreSQL URL nor a key=value DSN",
            "write postgresql://user:password@host:5432/database, or 'host=... dbname=...', or embedded://",
        )
        return Dsn()

    def _url(self, text: str) -> Dsn:
        rest = text[text.index("://") + 3 :]
        if "#" in rest:
            self.problem("has a raw '#'", "percent-encode it as %23")
            return Dsn()
        rest, _, query = rest.partition("?")
        authority, slash, path = rest.partition("/")
        if "@" in path:
            self.problem(
                "has an '@' after the first '/'", "percent-encode / in a password as %2F, @ in a database name as %40"
            )
            return Dsn()
        userinfo, _, hostlist = authority.rpartition("@")
        user, _, password = userinfo.partition(":")
        fields: dict[str, str] = {}
        for key, raw in (("user", user), ("password", password), ("dbname", path if slash else "")):
            if raw:
                fields[key] = self._decode(raw)
        if password:
            self.raw_secrets.append(password)
        hosts = self._hosts(hostlist.split(","), encoded=True) if hostlist else ()
        named: list[str] = []
        for item in query.split("&") if query else ():
            raw_key, equals, raw = item.partition("=")
            if not equals or not raw_key:
                self.problem("has a part after '?' that is not key=value", "percent-encode ? as %3F and & as %26")
                continue
            key, value = self._decode(raw_key), self._decode(raw)
            if key == "host":
                named += value.split(",")
            else:
                fields[{"database": "dbname"}.get(key, key)] = value
            if raw and key in ("password", "sslpassword"):
                self.raw_secrets.append(raw)
        # As in libpq, the query wins over the authority.
        return self._assemble(fields, self._hosts(named) if named else hosts)

    def _pairs(self, text: str) -> Dsn:
        fields: dict[str, str] = {}
        at = 0
        while at < len(text):
            match = _PAIR.match(text, at)
            if match is None:
                self.problem(
                    "is not a well-formed key=value DSN",
                    r"quote values with blanks ('...'), and write \' and \\ for a quote and a backslash",
                )
                return Dsn()
            raw = match[2] if match[2] is not None else match[3]
            fields[match[1]] = re.sub(r"\\(.)", r"\1", raw, flags=re.DOTALL)
            if raw and match[1] in ("password", "sslpassword"):
                self.raw_secrets.append(raw)
            at = match.end()
        host = fields.pop("host", "")
        hosts = tuple((name, None) for name in host.split(",")) if host else ()
        return self._assemble(fields, hosts)

    def _decode(self, raw: str) -> str:
        from urllib.parse import unquote_to_bytes

        try:
            value = unquote_to_bytes(raw).decode()
        except UnicodeDecodeError:
            self.problem("has percent-encoding that is not UTF-8", "encode the UTF-8 bytes of the character")
            return ""
        if "\0" in value:
            self.problem("contains NUL (%00)", "remove it; PostgreSQL has no NUL in text")
        return value

    def _hosts(self, specs: list[str], *, encoded: bool = False) -> tuple[tuple[str, int | None], ...]:
        hosts: list[tuple[str, int | None]] = []
        for spec in specs:
            bracketed = re.fullmatch(r"\[([^\]]+)\](?::(.*))?", spec)
            if bracketed:
                name, port = bracketed[1], bracketed[2] or ""
            elif spec.startswith("/") or (spec.count(":") > 1 and not encoded):
                name, port = spec, ""
            else:
                name, _, port = spec.partition(":")
            if ":" in port:
                self.problem("has a host with more than one ':'", "put an IPv6 address in brackets: [::1]:5432")
                continue
            decoded = self._decode(name) if encoded else name
            hosts.append((decoded, self._port(self._decode(port) if encoded else port)))
        return tuple(hosts)

    def _port(self, text: str) -> int | None:
        if not text:
            return None
        if text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65_536:
            return int(text)
        self.problem(
            "has a port that is not a number from 1 to 65535",
            "check the port; in a password percent-encode : / ? # @ as %3A %2F %3F %23 %40",
        )
        return None

    def _assemble(self, fields: dict[str, str], hosts: tuple[tuple[str, int | None], ...]) -> Dsn:
        if len(hosts) == 1 and not hosts[0][0]:
            # `postgresql://:5433/db` is the local socket at that port.
            fields.setdefault("port", str(hosts[0][1] or ""))
            hosts = ()
        ports = [self._port(port) for port in fields.pop("port", "").split(",") if port]
        if ports and hosts:
            if len(ports) not in (1, len(hosts)):
                self.problem(f"names {len(ports)} ports for {len(hosts)} hosts", "give one port, or one for each host")
            else:
                hosts = tuple((host, ports[at % len(ports)]) for at, (host, _) in enumerate(hosts))
        for host, _ in hosts:
            if not host:
                self.problem("has an empty host in its list", "give each a name, an address or a socket directory")
            elif host.startswith("@"):
                self.problem("names an abstract socket, which asyncpg cannot reach", "use a socket directory")
            elif not _HOST.fullmatch(host):
                self.problem("has a host that is no name, address or path", "in a password percent-encode @ and /")
        params = self._params({k: v for k, v in fields.items() if k not in ("user", "password", "dbname")})
        return Dsn(
            hosts=hosts,
            port=ports[0] if ports and not hosts else None,
            user=fields.get("user") or None,
            password=Secret(fields["password"]) if fields.get("password") else None,
            database=fields.get("dbname") or None,
            params=params,
            raw_secrets=tuple(map(Secret, self.raw_secrets)),
        )

    def _params(self, params: dict[str, str]) -> dict[str, str]:
        if params.pop("ssl", "false") == "true":
            # The spelling of JDBC, which libpq accepts as well.
            params.setdefault("sslmode", "require")
        for key, (harmless, fix) in _REFUSED.items():
            value = params.pop(key, None)
            if value is not None and value.lower() not in harmless:
                self.problem(f"asks for {key}, which asyncpg cannot do", fix)
        if params.get("sslmode", "prefer") not in SSL_MODES:
            self.problem("has an unknown sslmode", f"choose one of {', '.join(SSL_MODES)}")
        if params.get("target_session_attrs", "any") not in self.attributes:
            self.problem(
                f"has a target_session_attrs that admits no {self.kind}", f"choose one of {', '.join(self.attributes)}"
            )
        if not re.fullmatch(r"-?[0-9]{1,6}", params.get("connect_timeout", "0")):
            self.problem("has a connect_timeout that is not a number of seconds", "write a whole number, such as 10")
        return {
            key: Secret(value) if key == "sslpassword" else value
            for key, value in params.items()
            if key not in _IGNORED and value
        }
