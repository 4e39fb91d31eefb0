"""The server of the soak: durable, on a small disk of its own where that is possible, with a clock that can be set."""

import os
import pwd
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
from psycopg.conninfo import make_conninfo

from horsies_schema import migrate
from tests.soak.app import BUSINESS
from tests.soak.machine import FAKETIME
from tests.soak.settings import SECRET
from tests.support.own_server import own_server
from tests.support.postgres import Database, bin_dir

SETTINGS = {
    "fsync": "on", "max_connections": "100", "max_wal_size": "192MB", "log_min_messages": "warning",
    "superuser_reserved_connections": "3", "listen_addresses": "",
}  # fmt: skip


class Server:
    """`db`: the database under test, past all proxies."""

    def __init__(self, folder: Path, db: Database, clock: Path | None) -> None:
        self._folder, self._clock = folder, clock
        self._account = pwd.getpwuid((folder / "data").stat().st_uid) if os.geteuid() == 0 else None
        self._process: subprocess.Popen[bytes] | None = None
        self.db = db
        self.url_with_secret = make_conninfo(db.url, password=SECRET)

    @property
    def log(self) -> str:
        return (self._folder.parent.parent / "server.log").read_text(errors="replace")

    def start(self) -> None:
        """Not through the embedded server's keeper: the library that fakes the clock disturbs Python's own sleeps."""
        sockets = self._folder / "socket"  # it went with the server that was stopped
        sockets.mkdir(exist_ok=True)
        account = self._account
        if account is not None:
            os.chown(sockets, account.pw_uid, account.pw_gid)
        variables = {"PATH": os.environ["PATH"], "LC_ALL": "C"}
        if self._clock is not None:
            variables |= {
                "LD_PRELOAD": str(FAKETIME), "FAKETIME_TIMESTAMP_FILE": str(self._clock), "FAKETIME_NO_CACHE": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }  # fmt: skip
        options = [part for name, value in SETTINGS.items() for part in ("-c", f"{name}={value}")]
        with (self._folder.parent.parent / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [bin_dir() / "postgres", "-D", self._folder / "data", "-k", sockets, *options],
                env=variables, user=account and account.pw_uid, group=account and account.pw_gid,
                extra_groups=[] if account else None, cwd=self._folder, stderr=log, stdout=log,
            )  # fmt: skip

    def end(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(60)
        for left in ("faketime_shm_", "sem.faketime_sem_"):  # of a library that was killed with its process
            Path(f"/dev/shm/{left}{self._process.pid}").unlink(missing_ok=True)

    def crash(self) -> None:
        """Immediate: as after a power cut."""
        self.end(signal.SIGQUIT)

    def _all(self) -> list[psutil.Process]:
        assert self._process is not None
        postmaster = psutil.Process(self._process.pid)
        return [postmaster, *postmaster.children()]

    def freeze(self) -> None:
        for process in self._all():
            try:
                process.suspend()
            except psutil.NoSuchProcess:
                pass

    def thaw(self) -> None:
        for process in reversed(self._all()):
            try:
                process.resume()
            except psutil.NoSuchProcess:
                pass

    def is_up(self) -> bool:
        try:
            with psycopg.connect(self.db.url, connect_timeout=3):
                return True
        except psycopg.Error:
            return False

    def wait_up(self) -> None:
        """After trouble: start it again if it has given up."""
        until = time.monotonic() + 60
        while not self.is_up():
            if self._process is None or self._process.poll() is not None:
                self.start()
            assert time.monotonic() < until, f"the server does not come back:\n{self.log[-3000:]}"
            time.sleep(0.1)

    def set_clock(self, offset_s: float) -> None:
        assert self._clock is not None
        draft = self._clock.with_name("next")
        draft.write_text(f"{offset_s:+g}s")
        draft.replace(self._clock)

    def fill_disk(self) -> None:
        filler = os.open(self._folder.parent / "filler", os.O_WRONLY | os.O_CREAT)
        try:
            while True:
                os.write(filler, b"\0" * 65536)
        except OSError:
            pass
        finally:
            os.close(filler)

    def free_disk(self) -> None:
        (self._folder.parent / "filler").unlink(missing_ok=True)


@contextmanager
def soak_server(folder: Path) -> Iterator[Server]:
    """On the disk `folder`; migrated, with the table that tasks write to."""
    clock: Path | None = None
    if FAKETIME.exists():
        clock = folder.parent / "clock"
        clock.write_text("+0s")
    with own_server(folder / "server", fsync="on") as own:
        own.down()
        server = Server(folder / "server", own.db, clock)
        server.start()
        try:
            server.wait_up()
            migrate.upgrade(server.db.url)
            server.db.execute(BUSINESS)
            yield server
        finally:
            server.end(signal.SIGINT)
