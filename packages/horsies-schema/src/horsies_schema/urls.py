"""Why a database URL cannot be used, before asyncpg reads it: its own errors quote what they fail on.

What looks like a port may be half of a password, so no value of a URL is ever part of a message. The words are those of
the client's reader.
"""

import re
from typing import Final
from urllib.parse import unquote, unquote_to_bytes

_URL: Final = re.compile(r"postgres(?:ql)?(?:\+\w+)?://", re.IGNORECASE)
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


def url_problem(text: str) -> str | None:
    """One sentence with the remedy; None for a URL that can be read."""
    if any(ord(char) < 32 or ord(char) == 127 or 0xD800 <= ord(char) < 0xE000 for char in text):
        return "contains a control character or a lone surrogate: percent-encode it (newline is %0A)"
    if not _URL.match(text):
        given = "is a key=value DSN, which horsies-migrate does not read" if "=" in text else "is not a PostgreSQL URL"
        return (
            f"{given}: it must begin with postgresql://, postgres://, postgresql+asyncpg://, postgresql+psycopg:// or "
            "embedded://, as in postgresql://user:password@host:5432/database"
        )
    rest = text[text.index("://") + 3 :]
    if "#" in rest:
        return "has a raw '#': percent-encode it as %23"
    rest, _, query = rest.partition("?")
    authority, _, path = rest.partition("/")
    if "@" in path:
        return "has an '@' after the first '/': percent-encode / in a password as %2F, @ in a database name as %40"
    if not all(map(_is_port, _ports(authority.rpartition("@")[2]))):
        return (
            "has a port that is not a number from 1 to 65535: check the port; in a password percent-encode : / ? # @ "
            "as %3A %2F %3F %23 %40"
        )
    return _encoding_problem(rest) or _query_problem(query)


def server_of(text: str) -> str:
    """The host and port of a URL that `url_problem` finds nothing in, or the path of the socket; without a password."""
    rest, _, query = text.partition("://")[2].partition("?")
    asked: dict[str, str] = {}
    for item in query.split("&"):
        name, _, value = item.partition("=")
        asked[name] = value
    hosts = rest.partition("/")[0].rpartition("@")[2] or unquote(asked.get("host", ""))
    port = asked.get("port", "5432")
    if hosts.startswith("/"):
        return f"{hosts}/.s.PGSQL.{port}"
    return hosts if ":" in hosts or not hosts else f"{hosts}:{port}"


def _ports(hosts: str) -> list[str]:
    found: list[str] = []
    for host in hosts.split(","):
        bracketed = re.fullmatch(r"\[[^\]]+\](?::(.*))?", host)
        found.append((bracketed[1] or "") if bracketed else host.partition(":")[2])
    return found


def _is_port(text: str) -> bool:
    return not text or (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65_536)


def _encoding_problem(text: str) -> str | None:
    try:
        unquote_to_bytes(text).decode()
    except UnicodeDecodeError:
        return "has percent-encoding that is not UTF-8: encode the UTF-8 bytes of the character"
    return "contains NUL (%00): remove it; PostgreSQL has no NUL in text" if "%00" in text else None


def _query_problem(query: str) -> str | None:
    for item in query.split("&") if query else ():
        key, equals, value = item.partition("=")
        if not equals or not key:
            return "has a part after '?' that is not key=value: percent-encode ? as %3F and & as %26"
        if key == "sslmode" and value not in _SSL_MODES:
            return f"has an unknown sslmode: choose one of {', '.join(_SSL_MODES)}"
    return _encoding_problem(query)
