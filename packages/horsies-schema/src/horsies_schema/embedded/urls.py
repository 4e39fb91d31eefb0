"""`embedded://` URLs: the directory and database they mean, and the server behind them for the life of the process."""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from horsies_schema.embedded.account import first_unreachable, server_account
from horsies_schema.embedded.errors import EmbeddedError
from horsies_schema.embedded.server import EmbeddedPostgres, start

DIRECTORY_VARIABLE: Final = "HORSIES_EMBEDDED_DIR"
_SCHEME: Final = "embedded"
_ROOT_FALLBACK: Final = Path("/var/lib/horsies/postgres")

_lock = threading.RLock()
_servers: dict[Path, EmbeddedPostgres] = {}


@dataclass(frozen=True, slots=True)
class _Target:
    directory: Path
    database: str | None


def is_embedded(url: str) -> bool:
    """Whether `url` asks for an embedded server."""
    return url.startswith(f"{_SCHEME}://")


def resolve(url: str) -> str:
    """The `postgresql://` URL behind an `embedded://` URL; starts the server if it does not run.

    `embedded://` is the default directory, `embedded:///some/dir` that directory; `?dbname=x` is database x, created if
    missing. The server stays until this process ends, or longer if others use it. Further calls are cheap: they look
    whether the server still answers and start it again if it was killed. After a fork the child is no user until it
    calls this itself. Blocks while the server starts, seconds at the first use of a directory.
    """
    target = _parse(url)
    with _lock:
        server = _servers.get(target.directory)
        if server is None or not server.is_running:
            fresh = start(target.directory)
            if server is None:
                atexit.register(release, target.directory)
            else:
                server.stop()  # after the new one is a user, so that nothing stops in between
            server = _servers[target.directory] = fresh
    if target.database is None:
        return server.url
    server.create_database(target.database)
    return server.url_for(target.database)


def default_directory() -> Path:
    """Where `embedded://` lives: $HORSIES_EMBEDDED_DIR, else in the user's data directory.

    For root the latter is usually closed to the account that the server runs as; then /var/lib/horsies/postgres.
    """
    named = os.environ.get(DIRECTORY_VARIABLE)
    if named:
        return Path(named)
    data_home = os.environ.get("XDG_DATA_HOME")
    home = Path(data_home) if data_home else Path.home() / ".local" / "share"
    directory = home / "horsies" / "postgres"
    return directory if first_unreachable(server_account(), directory) is None else _ROOT_FALLBACK


def _parse(url: str) -> _Target:
    parts = urlsplit(url)  # no message has the place of the host, which may hold a password
    problems: list[str] = []
    if parts.scheme != _SCHEME or not is_embedded(url):
        problems.append("it does not start with embedded://")
    if parts.netloc:
        problems.append("a host or a name stands where a directory should: write three slashes before it")
    if parts.fragment:
        problems.append("a # begins a fragment: write %23 in a directory's name")
    query = parse_qsl(parts.query, keep_blank_values=True)
    unknown = sorted({name for name, _ in query} - {"dbname"})
    if unknown:
        problems.append(f"unknown: {', '.join(unknown)}; the only parameter is dbname")
    databases = [value for name, value in query if name == "dbname"]
    if len(databases) > 1 or "" in databases:
        problems.append("dbname needs one value")
    if problems:
        shown = f"{parts.scheme}://{'...' if parts.netloc else ''}{parts.path}"
        raise EmbeddedError(f"{shown!r} is not a URL of an embedded database: {'; '.join(problems)}")
    path = Path(unquote(parts.path)) if parts.path.strip("/") else default_directory()
    return _Target(path.expanduser().resolve(), databases[0] if databases else None)


def release(directory: Path) -> None:
    """Stop using the servers in and below this directory; one that no other process uses stops. `resolve` calls this
    when the process ends. In a forked child it does nothing: the servers are its parent's."""
    for mine in [path for path in list(_servers) if path.is_relative_to(directory)]:
        _servers.pop(mine).stop()


def _forget_in_child() -> None:
    # The lock may be held by a thread that does not exist here.
    global _lock
    _lock = threading.RLock()
    _servers.clear()


os.register_at_fork(after_in_child=_forget_in_child)
