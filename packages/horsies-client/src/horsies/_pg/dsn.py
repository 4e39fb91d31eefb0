"""Turns a `PostgresConfig` into the arguments of asyncpg. See `config/dsn.py` for why asyncpg does not get the URL."""

import os
from typing import Any, Final

from horsies._checks import Checks
from horsies._secret import Secret
from horsies.config.dsn import Dsn, is_embedded, parse, url_encode
from horsies.config.postgres import DEFAULT_APPLICATION_NAME, DEFAULT_CONNECT_TIMEOUT_MS, PostgresConfig
from horsies.errors import UsageError

# Settings of the connection, not of the server: asyncpg takes them only inside a URL.
_URL_ONLY: Final = (
    "service", "sslrootcert", "sslcert", "sslkey", "sslpassword", "sslcrl", "sslnegotiation",
    "ssl_min_protocol_version", "ssl_max_protocol_version",
)  # fmt: skip
_ARGUMENTS: Final = ("passfile", "servicefile", "krbsrvname", "gsslib")
_OURS: Final = frozenset({*_URL_ONLY, *_ARGUMENTS, "sslmode", "target_session_attrs", "connect_timeout"})


def connect_arguments(config: PostgresConfig, *, direct: bool = False, replica: bool = False) -> dict[str, Any]:
    """The arguments of `driver.connect`, which are those of asyncpg.

    `direct` is for connections that need their session (LISTEN, session locks): they use `direct_url` if it is set,
    past the pooler. `replica` is for reads from `replica_url`.
    """
    url = config.direct_url if direct and config.direct_url else config.url
    if replica and config.replica_url is not None:
        url = config.replica_url
    if is_embedded(url):
        raise UsageError("an embedded:// URL has to be resolved to the server it starts before connecting")
    dsn = parse(url, reads_only=replica)
    pooled = config.pooler and not direct
    kwargs: dict[str, Any] = {key: dsn.params[key] for key in _ARGUMENTS if key in dsn.params}
    if dsn.hosts:
        kwargs["host"] = [host for host, _ in dsn.hosts]
        if any(port for _, port in dsn.hosts):
            # Without any port asyncpg uses its own default, which honours PGPORT.
            kwargs["port"] = [port or 5432 for _, port in dsn.hosts]
    elif dsn.port:
        kwargs["port"] = dsn.port
    for key, value in (("user", dsn.user), ("password", dsn.password), ("database", dsn.database)):
        if value:
            kwargs[key] = value
    attrs = dsn.params.get("target_session_attrs")
    if attrs is None and len(dsn.hosts) > 1 and "PGTARGETSESSIONATTRS" not in os.environ:
        # After a failover the first host may be a standby that still answers, and horsies must write.
        attrs = "prefer-standby" if replica else "read-write"
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
        # PgBouncer refuses start-up settings that it does not track, so these are only sent to a server.
        # The statements lock rows and read again: under a stricter isolation level they would fail with 40001.
        settings["default_transaction_isolation"] = "read committed"
        if config.schema is not None:
            # Without public: missing tables must be noticed, and not found in another schema.
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
        query = "&".join(f"{url_encode(key)}={url_encode(value)}" for key, value in in_url.items())
        kwargs["dsn"] = Secret(f"postgresql://?{query}")
    return kwargs


def _system_context(files: dict[str, str]) -> Any:
    """The context for `sslrootcert=system`, libpq's word for the machine's authorities; asyncpg would open a file of
    that name.

    Removes the files that it loads from `files`: asyncpg loads certificates only into a context of its own.
    """
    import ssl

    del files["sslrootcert"]
    context = ssl.create_default_context()
    certificate, key, secret = (files.pop(name, None) for name in ("sslcert", "sslkey", "sslpassword"))
    if certificate is not None:
        context.load_cert_chain(certificate, key, lambda: secret or "")
    return context


def _require_files(files: dict[str, str], *, system: bool) -> None:
    """Check that the files exist: the FileNotFoundError of the ssl module does not name the file."""
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
