"""A PostgreSQL server that a test drives with PostgreSQL's own programs: archived, restored, or of another version.

with plain_server(archive=True) as server:
    db = server.create("queue")
    server.take_backup()
    ...
    server.restore(f"recovery_target_time = '{moment}'")     # at the same address
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from horsies_schema.embedded.account import server_account
from horsies_schema.embedded.binaries import clean_environment, locate
from tests.support import places
from tests.support.postgres import Database
from tests.support.waiting import eventually


def run_program(bin_dir: Path, folder: Path, program: str, *arguments: str, allowed: tuple[int, ...] = (0,)) -> None:
    """Run one of PostgreSQL's programs, as the account that servers run as."""
    account = server_account()
    who: dict[str, Any] = {}
    if account is not None:
        who = {"user": account.uid, "group": account.gid, "extra_groups": []}
    done = subprocess.run(
        [bin_dir / program, *arguments], cwd=folder, check=False, stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=clean_environment(), **who,
    )  # fmt: skip
    assert done.returncode in allowed, f"{program} {arguments}: {done.stderr}"


def own_directory(folder: Path) -> Path:
    """A new directory that belongs to the account that servers run as."""
    folder.mkdir()
    account = server_account()
    if account is not None:
        os.chown(folder, account.uid, account.gid)
    return folder


class PlainServer:
    """`folder` has the data, the socket, the log, the archive and the backup."""

    def __init__(self, folder: Path, bin_dir: Path, settings: dict[str, str]) -> None:
        self.folder, self.bin_dir = own_directory(folder), bin_dir
        self.data, self._backup, self._log = folder / "data", folder / "backup", folder / "log"
        self.archive = own_directory(folder / "archive")
        self._settings = {"listen_addresses": "", "unix_socket_directories": str(folder), "fsync": "off", **settings}

    @property
    def conninfo(self) -> str:
        return f"host={self.folder} port=5432 user=postgres"

    def database(self, name: str) -> Database:
        return Database(name, f"postgresql://postgres@/{name}?host={self.folder}&port=5432")

    def create(self, name: str) -> Database:
        self.database("postgres").execute(f"CREATE DATABASE \"{name}\" ENCODING 'UTF8' TEMPLATE template0")
        return self.database(name)

    def make(self, *options: str) -> None:
        self.run("initdb", "-D", str(self.data), "--encoding=UTF8", "--locale=C.UTF-8", "--auth=trust",
                 "--username=postgres", "--no-sync", *options)  # fmt: skip

    def upgrade_from(self, old: "PlainServer") -> None:
        """Take over the data of the other server, which is of an older version. Both are stopped, this one is empty."""
        shutil.rmtree(self.data)
        self.make("--no-data-checksums")  # which are off before PostgreSQL 18 unless asked for
        self.run("pg_upgrade", "-b", str(old.bin_dir), "-B", str(self.bin_dir), "-d", str(old.data), "-D",
                 str(self.data), "-U", "postgres", "--no-sync")  # fmt: skip
        self.start()

    def start(self) -> None:
        options = " ".join(f"-c {name}='{value}'" for name, value in self._settings.items())
        self._log.unlink(missing_ok=True)
        # without -w: pg_ctl's probe would take PGPORT and friends; we ask ourselves
        self.run("pg_ctl", "start", "-W", "-D", str(self.data), "-l", str(self._log), "-o", options)
        eventually(self._accepts_writes, timeout=40, describe="the server accepts writes")

    def stop(self, mode: str = "immediate") -> None:
        self.run("pg_ctl", "stop", "-m", mode, "-D", str(self.data))

    def take_backup(self) -> None:
        self.run("pg_basebackup", "-D", str(self._backup), "-d", self.conninfo, "-c", "fast", "-X", "none")

    def archive_all(self) -> None:
        """Return when everything that was written so far is in the archive."""
        db = self.database("postgres")
        name = db.value("SELECT pg_walfile_name(pg_switch_wal())")
        eventually((self.archive / name).exists, timeout=30, describe="the WAL is archived")

    def restore(self, target: str) -> None:
        """Put the base backup in the place of the data and replay the archive up to the target. `stop` comes first."""
        shutil.rmtree(self.data)
        self._backup.rename(self.data)
        with (self.data / "postgresql.auto.conf").open("a") as conf:
            conf.write(f"restore_command = 'cp {self.archive}/%f %p'\n{target}\nrecovery_target_action = 'promote'\n")
        (self.data / "recovery.signal").touch()
        self.start()

    def run(self, program: str, *arguments: str, allowed: tuple[int, ...] = (0,)) -> None:
        run_program(self.bin_dir, self.folder, program, *arguments, allowed=allowed)

    def _accepts_writes(self) -> bool:
        try:
            return not self.database("postgres").value("SELECT pg_is_in_recovery()")
        except psycopg.OperationalError:
            log = self._log.read_text() if self._log.exists() else ""
            assert "database system is shut down" not in log, log
            return False


@contextmanager
def plain_server(*, bin_dir: Path | None = None, archive: bool = False, **settings: str) -> Iterator[PlainServer]:
    """A server of an embedded PostgreSQL's programs, or of those in `bin_dir`, up and empty."""
    with places.temporary_directory() as place:
        folder = place / "server"
        if archive:
            archived = f"{folder}/archive/%f"  # under its name when it is complete: the server may be killed meanwhile
            settings |= {
                "archive_mode": "on",
                "archive_command": f"cp %p {archived}.part && mv {archived}.part {archived}",
            }
        server = PlainServer(folder, bin_dir or locate(server_account()), settings)
        server.make()
        server.start()
        try:
            yield server
        finally:
            server.run("pg_ctl", "stop", "-m", "immediate", "-D", str(folder / "data"), allowed=(0, 1))
