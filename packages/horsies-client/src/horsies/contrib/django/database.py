# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""Turns an entry of `settings.DATABASES` into the URL that horsies connects with.

Both must reach the same database: what Django passes to psycopg is passed on, or refused where asyncpg cannot do it.
"""

from collections.abc import Mapping
from typing import Any, Final, cast
from urllib.parse import quote

from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from horsies._secret import Secret

_OF_PSYCOPG: Final = frozenset(
    {
        "isolation_level", "server_side_binding", "pool", "cursor_factory", "row_factory", "prepare_threshold",
        "context", "autocommit", "client_encoding",
    }
)  # fmt: skip
"""Options that say how Django uses its own connections."""


def databases() -> Mapping[str, Mapping[str, Any]]:
    """`settings.DATABASES` with its defaults, as it is now: a test run changes it."""
    return cast("Any", connections.settings)


def database_url(alias: str, settings: Mapping[str, Any]) -> Secret:
    """The URL of the database that Django connects to under this alias. Raises ImproperlyConfigured."""
    _require_postgresql(alias, settings)
    options = dict(cast("Mapping[str, Any]", settings.get("OPTIONS") or {}))
    name = str(settings.get("NAME") or "")
    if not name and "service" not in options:
        raise ImproperlyConfigured(f"DATABASES[{alias!r}] has no NAME, and horsies needs one: name the database")
    found: dict[str, str] = {}
    for key, given in (("host", "HOST"), ("port", "PORT")):
        if settings.get(given):
            found[key] = str(settings[given])
    role = options.pop("assume_role", None)
    if role:
        found["role"] = str(role)
    for key, value in options.items():
        if key not in _OF_PSYCOPG and value is not None:
            found[key] = str(value)
    user, password = str(settings.get("USER") or ""), str(settings.get("PASSWORD") or "")
    query = "&".join(f"{_encoded(key)}={_encoded(value)}" for key, value in found.items())
    owner = _encoded(user) + (f":{_encoded(password)}" if password else "")
    return Secret(f"postgresql://{owner}{'@' if owner else ''}/{_encoded(name)}{'?' if query else ''}{query}")


def _require_postgresql(alias: str, settings: Mapping[str, Any]) -> None:
    engine = str(settings.get("ENGINE") or "")
    if "sqlite" in engine or "mysql" in engine or "oracle" in engine or engine.endswith(".dummy") or not engine:
        told = f"is {engine!r}" if engine and not engine.endswith(".dummy") else "is not set"
        raise ImproperlyConfigured(
            f"horsies needs PostgreSQL, and the ENGINE of DATABASES[{alias!r}] {told}: use "
            "'django.db.backends.postgresql', or name another alias with HORSIES = {'DATABASE': ...}"
        )


def _encoded(text: str) -> str:
    return quote(text, safe="")
