"""What lies where in an embedded server's directory, and what a running server says about itself.

<directory>/            ours; searchable by the server's account when that is not us
    start.lock          exclusive while a process starts or leaves; created first, so it marks the directory
    users.lock          shared by every user, exclusive by the keeper while it stops the server
    keeper.lock         exclusive for the life of the keeper
    data/               the cluster, owned by the server's account, 0700; appears complete or not at all
    socket/             the unix socket, 0700; a symlink to a short directory when this path will not do
    server.log          what PostgreSQL and the keeper print
    password            of the superuser, asked for on TCP only, 0600
    init-*/             a cluster in the making; rubbish if no keeper is at work
"""

from __future__ import annotations

import os
import re
import socket
import struct
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

from horsies_schema.embedded.account import ACCOUNT_VARIABLE, Account, first_unreachable
from horsies_schema.embedded.errors import EmbeddedError

SUPERUSER: Final = "postgres"
SOCKET_PORT: Final = 5432  # without TCP the port is only a part of the socket's name

# sun_path holds 108 bytes on Linux and 104 on macOS, with the closing NUL.
_SOCKET_PATH_LIMIT: Final = 103
# Drivers read a host as a list: libpq and asyncpg split it at commas, SQLAlchemy at colons. Be plain.
_SOCKET_PATH_PLAIN: Final = re.compile(r"[A-Za-z0-9_./+=-]*")
# What a client sends before the real thing to learn whether the server speaks TLS; any server answers with one byte.
_SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)
_LONGEST_SOCKET_NAME: Final = ".s.PGSQL.65535"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that accepts connections, as its postmaster.pid describes it."""

    pid: int
    port: int
    socket_directory: str
    listens_on_tcp: bool

    def url(self, database: str, password: str | None) -> str:
        """The URL of `database`: over loopback with a password, else over the unix socket."""
        name = quote(database, safe="")
        if password is not None:
            return f"postgresql://{SUPERUSER}:{quote(password, safe='')}@127.0.0.1:{self.port}/{name}"
        # The port is spelled out, because drivers would else take $PGPORT, which belongs to another server.
        return f"postgresql://{SUPERUSER}@/{name}?host={quote(self.socket_directory)}&port={self.port}"


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths inside one directory."""

    directory: Path

    @property
    def start_lock(self) -> Path:
        return self.directory / "start.lock"

    @property
    def users_lock(self) -> Path:
        return self.directory / "users.lock"

    @property
    def keeper_lock(self) -> Path:
        return self.directory / "keeper.lock"

    @property
    def data(self) -> Path:
        return self.directory / "data"

    @property
    def postmaster_pid(self) -> Path:
        return self.data / "postmaster.pid"

    @property
    def socket(self) -> Path:
        return self.directory / "socket"

    @property
    def socket_path_works(self) -> bool:
        """Whether the kernel and every driver can take the socket's path here."""
        longest = self.socket / _LONGEST_SOCKET_NAME
        fits = len(os.fsencode(longest)) <= _SOCKET_PATH_LIMIT
        return fits and _SOCKET_PATH_PLAIN.fullmatch(str(longest)) is not None

    @property
    def log(self) -> Path:
        return self.directory / "server.log"

    @property
    def password(self) -> Path:
        return self.directory / "password"

    def drafts(self) -> Iterator[Path]:
        """Clusters that an earlier keeper did not finish."""
        return self.directory.glob("init-*")

    def postmaster(self) -> int | None:
        """The pid in postmaster.pid, running or not."""
        lines = self._postmaster_lines()
        return int(lines[0]) if lines and lines[0].isdigit() else None

    def running(self) -> Running | None:
        """The server, if it says that it is ready and its socket answers."""
        lines = self._postmaster_lines()
        if len(lines) < 8 or lines[7].strip() != "ready":
            return None
        running = Running(
            pid=int(lines[0]), port=int(lines[3]), socket_directory=lines[4], listens_on_tcp=bool(lines[5].strip())
        )
        return running if _answers(running) else None

    def _postmaster_lines(self) -> list[str]:
        try:
            return self.postmaster_pid.read_text().splitlines()
        except FileNotFoundError:
            return []


def _answers(running: Running) -> bool:
    # A file survives kill -9 of the postmaster. A listening socket does for a moment, while the process is torn down,
    # so connecting proves nothing: wait for a byte that only a living postmaster can have caused.
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(5.0)
        try:
            probe.connect(f"{running.socket_directory}/.s.PGSQL.{running.port}")
            probe.sendall(_SSL_REQUEST)
            return bool(probe.recv(1))
        except OSError:
            return False


def prepare(directory: Path, account: Account | None) -> Layout:
    """Make sure that `directory` exists, is ours to use, and can be entered by the server's account."""
    directory = directory.expanduser().resolve()
    blocker = first_unreachable(account, directory)
    if blocker is not None and account is not None:
        raise EmbeddedError(
            f"the embedded server runs as {account.name}, because PostgreSQL refuses root, and {account.name} cannot "
            f"enter {blocker}: choose a directory elsewhere (such as /var/lib/horsies/postgres), "
            f"allow it with `chmod o+x {blocker}`, or name another account in {ACCOUNT_VARIABLE}"
        )
    try:
        for parent in reversed(directory.parents):
            _make(parent, None if account is None else 0o755)
        _make(directory, 0o700 if account is None else 0o711)
        names = {entry.name for entry in directory.iterdir()}
    except OSError as error:
        raise EmbeddedError(f"cannot use {directory} for the embedded server: {error}") from error
    layout = Layout(directory)
    if names and layout.start_lock.name not in names:
        raise EmbeddedError(
            f"{directory} holds other files and no embedded server: name an empty or a new directory for it"
        )
    return layout


def prepare_temporary(account: Account | None) -> Layout:
    """A new directory for one server, in the first temporary place that the server's account can enter."""
    for place in dict.fromkeys((tempfile.gettempdir(), "/tmp", "/var/tmp")):
        parent = Path(place).resolve()
        if parent.is_dir() and first_unreachable(account, parent) is None:
            directory = Path(tempfile.mkdtemp(prefix="horsies-pg-", dir=parent))
            if account is not None:
                directory.chmod(0o711)
            return Layout(directory)
    raise EmbeddedError("no temporary directory can be entered by the account of the embedded server: set TMPDIR")


def _make(path: Path, mode: int | None) -> None:
    # The mode is set only on what we made, and explicitly, because root's umask may be 077.
    if path.is_dir():
        return
    try:
        path.mkdir()
    except FileExistsError:
        return
    if mode is not None:
        path.chmod(mode)
