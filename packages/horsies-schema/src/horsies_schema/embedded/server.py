"""The user's side: join a running server or have one started, and leave it.

The order of locks is start.lock, then users.lock or keeper.lock. start.lock is held only while starting or leaving, so
it serialises newcomers; users.lock (shared) is what being a user means. This process starts no server itself: it
starts a keeper, which outlives it if others still use the server.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Final

from horsies_schema.embedded import binaries
from horsies_schema.embedded.account import Account, server_account
from horsies_schema.embedded.errors import EmbeddedError
from horsies_schema.embedded.layout import Running, prepare, prepare_temporary
from horsies_schema.embedded.locks import EXCLUSIVE, POLL_SECONDS, SHARED, LockFile
from horsies_schema.embedded.plan import START_SECONDS, Plan, checked_port, checked_settings

# Longer than all the keeper's steps together would be a bug there, and an exiting process should not show it.
_LEAVE_SECONDS: Final = 40.0


def start(
    directory: str | Path | None = None,
    *,
    port: int | None = None,
    settings: Mapping[str, str] | None = None,
    temporary: bool = False,
) -> EmbeddedPostgres:
    """Start the server of `directory`, or join it when another process already runs it.

    directory: where it lives; created if missing. None means a temporary directory, deleted with the server, whose data
        is not protected against a crash of the machine.
    port: None for a unix socket only, 0 for a free port on 127.0.0.1, or that port; TCP asks for a password.
    settings: PostgreSQL settings, used if this call is the one that starts the server.
    temporary: delete `directory` with the server, however its last user ended, and do not protect its data against a
        crash of the machine. All users of one directory must say the same.

    Blocks until the server accepts connections, at most 60 seconds. Raises EmbeddedError. The server runs until the
    last process that uses it has called `stop()` or has ended.
    """
    if isinstance(directory, str) and "://" in directory:
        scheme = directory.partition("://")[0]
        raise EmbeddedError(f"start() takes a directory, and this is a URL ({scheme}://...): resolve() takes those")
    wanted_port, wanted_settings = checked_port(port), checked_settings(settings)
    account = server_account()
    bin_dir = binaries.locate(account)
    while True:
        layout = prepare_temporary(account) if directory is None else prepare(Path(directory), account)
        plan = Plan(
            directory=str(layout.directory),
            bin_dir=str(bin_dir),
            account=account,
            temporary=temporary or directory is None,
            port=wanted_port,
            settings=wanted_settings,
        )
        try:
            use = _Use(plan, is_shared=directory is not None)
        except OSError as error:
            if temporary and isinstance(error, FileNotFoundError):
                continue  # the last user has left, and the keeper has just deleted the directory
            raise EmbeddedError(f"cannot lock {layout.directory}: {error}{_hint(account)}") from error
        try:
            running = use.join()
            password = None if wanted_port is None else layout.password.read_text()
        except _Deleted:
            use.leave()
        except BaseException:
            use.leave()
            raise
        else:
            return EmbeddedPostgres(use, running, password)


class EmbeddedPostgres:
    """One process's use of an embedded server; also a context manager that ends it."""

    __slots__ = ("_password", "_running", "_use")

    def __init__(self, use: _Use, running: Running, password: str | None) -> None:
        self._use = use
        self._running = running
        self._password = password

    @property
    def url(self) -> str:
        """The URL of the database `postgres`, for asyncpg, psycopg and libpq; the user is a superuser."""
        return self.url_for("postgres")

    @property
    def directory(self) -> Path:
        """Where the server lives: `data`, `server.log`, the socket and the locks."""
        return self._use.layout.directory

    @property
    def bin_dir(self) -> Path:
        """The server's programs: `psql`, `pg_dump`, `createdb` and so on."""
        return Path(self._use.plan.bin_dir)

    @property
    def is_running(self) -> bool:
        """Whether this process still counts as a user and the server answers; False in a forked child."""
        return self._use.is_held and self._use.layout.running() is not None

    def url_for(self, database: str) -> str:
        """The URL of another database of this server."""
        return self._running.url(database, self._password)

    def create_database(self, name: str) -> None:
        """Create `name` if it is missing; safe when several processes do so at once."""
        created = subprocess.run(
            [
                self.bin_dir / "createdb",
                "--no-password",
                f"--maintenance-db={self._running.url('postgres', None)}",
                "--",
                name,
            ],
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=binaries.clean_environment(),
        )
        if created.returncode != 0 and "already exists" not in created.stderr:
            raise EmbeddedError(f"cannot create the database {name}: {created.stderr.strip()}")

    def stop(self) -> None:
        """Give up this process's use. If it was the last one, return when the server has stopped.

        Calling it again does nothing, and neither does calling it in a forked child: the use is the parent's.
        """
        self._use.leave()

    def __enter__(self) -> EmbeddedPostgres:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"EmbeddedPostgres(directory={str(self.directory)!r})"  # the URL may hold a password


class _Deleted(Exception):
    """The temporary directory went away with its last user, while this one waited for a lock there."""


class _Use:
    """The locks of one user of one directory."""

    __slots__ = ("_is_shared", "_keeper", "_start", "_users", "layout", "plan")

    def __init__(self, plan: Plan, *, is_shared: bool) -> None:
        self._is_shared = is_shared
        self.plan = plan
        self.layout = plan.layout
        self._start = LockFile(self.layout.start_lock)  # first: it marks the directory as ours
        self._users = LockFile(self.layout.users_lock)
        self._keeper = LockFile(self.layout.keeper_lock)

    @property
    def is_held(self) -> bool:
        return self._users.is_open

    def join(self) -> Running:
        """Become a user and make sure that a server runs."""
        deadline = time.monotonic() + START_SECONDS
        if not self._start.lock(EXCLUSIVE, deadline):
            raise EmbeddedError(f"another process has been starting the server in {self.plan.directory} for too long")
        try:
            # Waits while a keeper that saw no user stops its server; after that no keeper can take it from us.
            if not self._users.lock(SHARED, deadline):
                raise EmbeddedError(f"the previous server in {self.plan.directory} does not stop")
            while True:
                if self._keeper.try_lock(EXCLUSIVE):
                    if not self._start.is_in_place:
                        raise _Deleted
                    self._start_keeper(deadline)
                running = self.layout.running()
                if running is not None:
                    return self._fitting(running)
                # A keeper is at work for a starter that was killed, or is about to end with its server.
                if time.monotonic() >= deadline:
                    raise EmbeddedError(f"no server in {self.plan.directory} within {START_SECONDS:.0f} seconds")
                time.sleep(POLL_SECONDS)
        finally:
            self._start.unlock()

    def leave(self) -> None:
        """Stop using the server; the last user waits for the keeper to end."""
        if not self._users.is_open:
            return
        self._users.unlock()
        deadline = time.monotonic() + _LEAVE_SECONDS
        try:
            while not self._is_settled() and time.monotonic() < deadline:
                time.sleep(POLL_SECONDS)
        finally:
            for lock_file in (self._users, self._keeper, self._start):
                lock_file.close()
        if self.plan.temporary and not self._is_shared:
            shutil.rmtree(self.layout.directory, ignore_errors=True)  # in case the keeper was killed

    def _is_settled(self) -> bool:
        """True when the keeper is gone, or stays for other users."""
        # Without start.lock, two processes leaving at once would take each other's probes for users.
        if not self._start.try_lock(EXCLUSIVE):
            return False
        try:
            if self._keeper.try_lock(EXCLUSIVE):
                self._keeper.unlock()
                return True
            if self._users.try_lock(EXCLUSIVE):
                self._users.unlock()
                return False  # the keeper has yet to wake up
            if self._users.try_lock(SHARED):
                self._users.unlock()
                return True  # others share it
            return False  # the keeper holds it and is stopping the server
        finally:
            self._start.unlock()

    def _start_keeper(self, deadline: float) -> None:
        package_root = Path(__file__).resolve().parents[2]
        try:
            process = subprocess.Popen(
                # -S and -P: the keeper imports the standard library and this package only.
                [sys.executable, "-S", "-P", "-m", "horsies_schema.embedded.keeper", self.plan.directory],
                cwd="/",
                env={**os.environ, "PYTHONPATH": str(package_root)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=(self._keeper.fileno(),),
                start_new_session=True,
            )
        finally:
            # From here the lock lives and dies with the keeper; ours is opened anew, to probe it later.
            self._keeper.close()
            self._keeper = LockFile(self.layout.keeper_lock)
        with process:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(self.plan.to_json().encode())
                process.stdin.close()
            except BrokenPipeError:
                pass
            _raise_unless_ready(_first_line(process.stdout, deadline), self.plan.directory)

    def _fitting(self, running: Running) -> Running:
        wanted = self.plan.port
        if wanted is None or (running.listens_on_tcp and wanted in (0, running.port)):
            return running
        has = f"on port {running.port}" if running.listens_on_tcp else "without a TCP port"
        raise EmbeddedError(
            f"the server in {self.plan.directory} already runs {has}: "
            "join it with port=None, or end its users before asking for another port"
        )


def _first_line(pipe: IO[bytes], deadline: float) -> str:
    """What the keeper prints up to the end of its first line, its own end, or the deadline."""
    received = b""
    while not received.endswith(b"\n"):
        ready, _, _ = select.select([pipe], [], [], max(0.0, deadline - time.monotonic()))
        chunk = os.read(pipe.fileno(), 65536) if ready else b""
        if not chunk:
            break
        received += chunk
    return received.decode(errors="replace")


def _raise_unless_ready(said: str, directory: str) -> None:
    try:
        outcome: dict[str, object] = json.loads(said)
    except ValueError:
        reason = f"it said:\n{said}" if said else "it said nothing (killed, or not ready in time)"
        raise EmbeddedError(f"the keeper of the embedded server in {directory} failed: {reason}") from None
    if "error" in outcome:
        raise EmbeddedError(str(outcome["error"]))


def _hint(account: Account | None) -> str:
    return "; it belongs to another account" if account is None else ""
