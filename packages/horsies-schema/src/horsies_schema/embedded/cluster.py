"""The cluster on disk: make it whole or not at all, check that it is ours, and clear what a crash left behind.

Runs in the keeper, which holds keeper.lock, so no other process changes these files. Every directory whose owner or
mode changes is one that this module has just created.
"""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from horsies_schema.embedded.account import ACCOUNT_VARIABLE, Account
from horsies_schema.embedded.binaries import major_version
from horsies_schema.embedded.errors import EmbeddedError
from horsies_schema.embedded.layout import SUPERUSER, Layout
from horsies_schema.embedded.offspring import run_bound
from horsies_schema.embedded.plan import Plan

_SHORT_PARENT: Final = Path("/tmp")  # not $TMPDIR: on macOS that is itself 50 bytes long
_SHORT_PREFIX: Final = "horsies-pg-"

# Fast shutdown writes a checkpoint; immediate shutdown leaves recovery to the next start, which is always safe.
STOP_STEPS: Final = ((signal.SIGINT, 20.0), (signal.SIGQUIT, 10.0), (signal.SIGKILL, 5.0))


def ensure(plan: Plan, deadline: float) -> None:
    """Leave a cluster in `data` that this binary and this account can serve, and that nothing serves now."""
    layout = plan.layout
    for draft in layout.drafts():
        shutil.rmtree(draft)
    if layout.data.exists():
        _check(plan)
        _evict(layout)
    else:
        _create(plan, deadline)


def _create(plan: Plan, deadline: float) -> None:
    """initdb beside the final place, then rename: a kill at any moment leaves a draft, never half a cluster."""
    layout = plan.layout
    draft = Path(tempfile.mkdtemp(prefix="init-", dir=layout.directory))
    data, password_file, password = draft / "data", draft / "password", secrets.token_urlsafe(24)
    data.mkdir(mode=0o700)
    _write_private(password_file, password)
    if plan.account is not None:
        draft.chmod(0o711)
        for path in (data, password_file):
            os.chown(path, plan.account.uid, plan.account.gid)
    command = [
        f"{plan.bin_dir}/initdb",
        f"--pgdata={data}",
        f"--username={SUPERUSER}",
        f"--pwfile={password_file}",
        # Local trust rests on the 0700 socket directory alone; TCP always asks for the password.
        "--auth-local=trust",
        "--auth-host=scram-sha-256",
        # PostgreSQL's own locale: the same sort order and case rules on every platform and libc.
        "--encoding=UTF8",
        "--locale=C",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        *(["--no-sync"] if plan.temporary else []),
    ]
    try:
        made = run_bound(command, plan.account, max(1.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise EmbeddedError(f"initdb in {layout.directory} took too long") from None
    if made.returncode != 0:
        raise EmbeddedError(f"initdb in {layout.directory} failed (exit code {made.returncode}):\n{made.stdout}")
    # The password first: a cluster without one would be unreachable over TCP for ever.
    _write_private(layout.password, password)
    data.rename(layout.data)
    if not plan.temporary:
        _sync_directory(layout.directory)
    shutil.rmtree(draft)


def _check(plan: Plan) -> None:
    data = plan.layout.data
    try:
        found = (data / "PG_VERSION").read_text().strip()
        owner = data.stat().st_uid
    except OSError as error:
        raise EmbeddedError(f"{data} is not a PostgreSQL data directory that we can read: {error}") from error
    wanted = major_version(Path(plan.bin_dir))
    if found != wanted:
        raise EmbeddedError(
            f"{data} was made by PostgreSQL {found}, and the installed embedded server is PostgreSQL {wanted}: "
            f"to keep the data, dump it with version {found} and load the dump into a new directory; "
            f"otherwise name another directory or delete {plan.directory}"
        )
    expected = os.geteuid() if plan.account is None else plan.account.uid
    if owner != expected:
        raise EmbeddedError(
            f"{data} belongs to {_user_name(owner)}, but the server would run as {_user_name(expected)}: start it as "
            f"{_user_name(owner)} (root can set {ACCOUNT_VARIABLE}={_user_name(owner)}) or name another directory"
        )


def _evict(layout: Layout) -> None:
    """Stop a postmaster that outlived its keeper; remove the pid file when that pid now belongs to another program."""
    pid = layout.postmaster()
    if pid is None or not _exists(pid):
        return  # PostgreSQL itself clears the file of a dead postmaster
    if not _serves(pid, layout.data):
        # Pids are reused, in containers at once. PostgreSQL would refuse to start because of this file alone.
        layout.postmaster_pid.unlink(missing_ok=True)
        return
    for step, bound in STOP_STEPS:
        try:
            os.kill(pid, step)
        except ProcessLookupError:
            return
        deadline = time.monotonic() + bound
        while time.monotonic() < deadline:
            if not _exists(pid) or not _serves(pid, layout.data):
                return
            time.sleep(0.02)
    raise EmbeddedError(f"a PostgreSQL server (pid {pid}) without a keeper uses {layout.data} and does not stop")


def make_socket_directory(layout: Layout, account: Account | None) -> Path:
    """A 0700 directory of the server's account for the socket, where the kernel and every driver can reach it."""
    remove_socket_directory(layout)
    if layout.socket_path_works:
        directory = layout.socket
        directory.mkdir(mode=0o700)
    else:
        directory = Path(tempfile.mkdtemp(prefix=_SHORT_PREFIX, dir=_SHORT_PARENT))
        layout.socket.symlink_to(directory)  # a later clean-up finds the directory through this link
    if account is not None:
        os.chown(directory, account.uid, account.gid)
    return directory


def remove_socket_directory(layout: Layout) -> None:
    """Remove `socket` and, if it only points to one, the short directory; needs the server to be down."""
    if layout.socket.is_symlink():
        target = layout.socket.readlink()
        if target.parent == _SHORT_PARENT and target.name.startswith(_SHORT_PREFIX):
            # After a reboot another account may own this name: remove it only if it is the server account's own.
            try:
                if target.lstat().st_uid == layout.data.stat().st_uid and stat.S_ISDIR(target.lstat().st_mode):
                    shutil.rmtree(target, ignore_errors=True)
            except FileNotFoundError:
                pass
        layout.socket.unlink()
    elif layout.socket.is_dir():
        shutil.rmtree(layout.socket)


def _write_private(path: Path, text: str) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _serves(pid: int, data: Path) -> bool:
    """Is `pid` a postmaster on `data`? By its command line: /proc/<pid>/cwd is closed to root in containers."""
    if sys.platform == "linux":
        try:
            arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return arguments[0].endswith(b"postgres") and os.fsencode(data) in arguments
    query = ["ps", "-ww", "-o", "command=", "-p", str(pid)]
    listing = subprocess.run(query, check=False, capture_output=True, text=True)
    return "postgres" in listing.stdout and str(data) in listing.stdout


def _user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
