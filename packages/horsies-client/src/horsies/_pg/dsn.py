"""From a connection setting to what asyncpg is given; see `dsn_reader` for why it is not handed the URL."""

import os
from collections.abc import Mapping
from typing import Any, Final

from horsies._checks import Checks
from horsies._pg.dsn_reader import Dsn, parse
from horsies._pg.redaction import redact
from horsies._secret import Secret
from horsies.config.postgres import DEFAULT_APPLICATION_NAME, DEFAULT_CONNECT_TIMEOUT_MS, PostgresConfig
from horsies.errors import UsageError

__all__ = ["Dsn", "connect_arguments", "is_embedded", "normalize", "parse", "redact", "secrets_of"]

# Settings of the connection, not of the server: asyncpg takes them only inside a URL.
_URL_ONLY: Final = (
    "service", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version",
)  # fmt: skip
_ARGUMENTS: Final = ("passfile", "servicefile", "krbsrvname", "gsslib")
_OURS: Final = frozenset({*_URL_ONLY, *_ARGUMENTS, "sslmode", "target_session_attrs", "connect_timeout"})


def is_embedded(text: str) -> bool:
    """`embedded://…` names a PostgreSQL from a wheel; someone else starts it and knows its real URL."""
    return text.strip().lower().startswith("embedded://")


def normalize(text: str) -> str:
    """The same connection as one plain `postgresql://` URL, percent-encoded so that every parser agrees."""
    if is_embedded(text):
        return text.strip()
    dsn = parse(text)
    params = dict(dsn.params)
    if len(dsn.hosts) == 1 and dsn.hosts[0][0].startswith("/"):
        # A socket directory in the query is understood by everyone, in the authority by libpq and asyncpg only.
        params = {"host": dsn.hosts[0][0], **({"port": str(dsn.hosts[0][1])} if dsn.hosts[0][1] else {}), **params}
        hosts = ""
    else:
        params = {**({"port": str(dsn.port)} if dsn.port else {}), **params}
        hosts = ",".join(_host_text(host, port) for host, port in dsn.hosts)
    password = f":{_encode(dsn.password)}" if dsn.password else ""
    userinfo = f"{_encode(dsn.user or '')}{password}@" if dsn.user or password else ""
    database = f"/{_encode(dsn.database)}" if dsn.database else ""
    return f"postgresql://{userinfo}{hosts}{database}{_query(params)}"


def secrets_of(dsn: Dsn) -> tuple[str, ...]:
    """Every spelling in which this connection's secrets may turn up in a message."""
    plain = [value for value in (dsn.password, dsn.params.get("sslpassword")) if value]
    escaped = [value.replace("\\", "\\\\").replace("'", "\\'") for value in plain]
    return (*dsn.raw_secrets, *plain, *escaped, *map(_encode, plain), *(repr(value)[1:-1] for value in plain))


def connect_arguments(config: PostgresConfig, *, direct: bool = False) -> dict[str, Any]:
    """Arguments for `driver.connect`, which are asyncpg's.

    `direct` is for connections that live on a session (LISTEN, session locks): they go to
    `direct_url` where there is one, around the pooler.
    """
    url = config.direct_url if direct and config.direct_url else config.url
    if is_embedded(url):
        raise UsageError("an embedded:// URL has to be resolved to the server it starts before connecting")
    dsn = parse(url)
    pooled = config.pooler and not direct
    kwargs: dict[str, Any] = {key: dsn.params[key] for key in _ARGUMENTS if key in dsn.params}
    if dsn.hosts:
        kwargs["host"] = [host for host, _ in dsn.hosts]
        if any(port for _, port in dsn.hosts):
            # None of them given: asyncpg's own default, which honours PGPORT.
            kwargs["port"] = [port or 5432 for _, port in dsn.hosts]
    elif dsn.port:
        kwargs["port"] = dsn.port
    for key, value in (("user", dsn.user), ("password", dsn.password), ("database", dsn.database)):
        if value:
            kwargs[key] = value
    attrs = dsn.params.get("target_session_attrs")
    if attrs is None and len(dsn.hosts) > 1 and "PGTARGETSESSIONATTRS" not in os.environ:
        # After a failover the first host may be a standby that still answers; every statement of ours writes.
        attrs = "read-write"
    if attrs is not None:
        kwargs["target_session_attrs"] = attrs
    kwargs.update(_tls_arguments(config, dsn))
    kwargs["server_settings"] = _server_settings(config, dsn, pooled=pooled)
    kwargs["timeout"] = _connect_timeout(config, dsn)
    if config.command_timeout_ms is not None:
        kwargs["command_timeout"] = config.command_timeout_ms / 1000
    if pooled:
        # Named prepared statements live on a server session; the next transaction may get another one.
        kwargs["statement_cache_size"] = 0
    return kwargs


def _server_settings(config: PostgresConfig, dsn: Dsn, *, pooled: bool) -> dict[str, str]:
    settings = {key: value for key, value in dsn.params.items() if key not in _OURS}
    if config.application_name != DEFAULT_APPLICATION_NAME or "application_name" not in settings:
        settings["application_name"] = config.application_name
    if not pooled:
        # PgBouncer refuses start-up settings that it does not track, so these only go to a server.
        # Our statements lock rows and look again: under a stricter default they would fail with 40001.
        settings["default_transaction_isolation"] = "read committed"
        if config.schema is not None:
            # Alone, without public: tables missing here must be noticed, not found elsewhere.
            settings["search_path"] = '"' + config.schema.replace('"', '""') + '"'
    return settings


def _connect_timeout(config: PostgresConfig, dsn: Dsn) -> float:
    in_url = int(dsn.params.get("connect_timeout", "0"))
    if in_url > 0 and config.connect_timeout_ms == DEFAULT_CONNECT_TIMEOUT_MS:
        return float(in_url)
    return config.connect_timeout_ms / 1000


def _tls_arguments(config: PostgresConfig, dsn: Dsn) -> dict[str, Any]:
    mode = config.sslmode or dsn.params.get("sslmode")
    in_url = {key: dsn.params[key] for key in _URL_ONLY if key in dsn.params}
    for key in ("sslrootcert", "sslcert", "sslkey", "sslpassword"):
        value: str | None = getattr(config, key)
        if value is not None:
            in_url[key] = value
    kwargs: dict[str, Any] = {"ssl": mode} if mode else {}
    if mode != "disable":
        system = in_url.get("sslrootcert") == "system"
        _require_files(in_url, system=system)
        if system:
            kwargs["ssl"] = _system_context(in_url)
    if in_url:
        kwargs["dsn"] = Secret(f"postgresql://{_query(in_url)}")
    return kwargs


def _system_context(files: dict[str, str]) -> Any:
    """For `sslrootcert=system`, libpq's word for the machine's own authorities; asyncpg would open a file of that name.

    Takes what it uses out of `files`: asyncpg loads certificates only into a context of its own.
    """
    import ssl

    del files["sslrootcert"]
    context = ssl.create_default_context()
    certificate, key, secret = (files.pop(name, None) for name in ("sslcert", "sslkey", "sslpassword"))
    if certificate is not None:
        context.load_cert_chain(certificate, key, lambda: secret or "")
    return context


def _require_files(files: dict[str, str], *, system: bool) -> None:
    """Named here, because the ssl module's own FileNotFoundError does not say which file."""
    from pathlib import Path

    checks = Checks("PostgresConfig")
    for key in ("sslrootcert", "sslcert", "sslkey", "sslcrl"):
        name = files.get(key)
        if name is None or (system and key == "sslrootcert"):
            continue
        if not Path(name).is_file():
            checks.add(key, f"no such file: {name!r}", "give the path of a readable PEM file")
    if system and (unused := files.keys() & {"sslcrl", "ssl_min_protocol_version", "ssl_max_protocol_version"}):
        why = f"'system' cannot be combined with {', '.join(sorted(unused))}"
        checks.add("sslrootcert", why, "name a file of authorities instead of system")
    checks.finish()


def _encode(value: str) -> str:
    # urllib.parse costs 4 ms of import: paid by who connects, not by `import horsies`.
    from urllib.parse import quote

    return quote(value, safe="")


def _query(params: Mapping[str, str]) -> str:
    return "?" + "&".join(f"{_encode(key)}={_encode(value)}" for key, value in params.items()) if params else ""


def _host_text(host: str, port: int | None) -> str:
    name = "[" + host.replace("%", "%25") + "]" if ":" in host else _encode(host)
    return f"{name}:{port}" if port else name
