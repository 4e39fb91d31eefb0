"""A real streaming replica of a test's own embedded server, which a test may cut off, stop, start and promote."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg

import horsies_schema
from horsies_schema import embedded
from horsies_schema.embedded.account import server_account
from horsies_schema.embedded.binaries import locate
from tests.support import places
from tests.support.plain_server import own_directory, run_program
from tests.support.postgres import Database
from tests.support.waiting import eventually


class Replica:
    """`primary` and `db` are the same database on the two servers."""

    def __init__(self, folder: Path, primary: Database, socket: Path, primary_data: Path) -> None:
        self._bin = locate(server_account())
        self._folder, self._data, self._primary_socket = folder, folder / "data", socket
        self._primary_data = primary_data
        self.primary = primary
        self.db = Database(primary.name, f"postgresql://postgres@/{primary.name}?host={folder}&port=5432")

    def make(self) -> None:
        """Copy the primary and stream from it."""
        own_directory(self._folder)
        copy = (
            "-D",
            str(self._data),
            "-R",
            "-h",
            str(self._primary_socket),
            "-p",
            "5432",
            "-U",
            "postgres",
            "-c",
            "fast",
        )
        self._run("pg_basebackup", *copy)
        self.start()

    def start(self) -> None:
        options = f"-k {self._folder} -c listen_addresses='' -c wal_receiver_timeout=2s -c fsync=off"
        log = str(self._folder / "log")
        # without -w: pg_ctl's probe would take PGPORT and friends; we ask ourselves
        self._run("pg_ctl", "start", "-W", "-D", str(self._data), "-l", log, "-o", options)
        eventually(self._answers, timeout=30, describe="the replica answers")

    def stop(self) -> None:
        self._run("pg_ctl", "stop", "-m", "immediate", "-D", str(self._data))

    def promote(self) -> None:
        self._run("pg_ctl", "promote", "-D", str(self._data))

    @property
    def url(self) -> str:
        """Both servers, as producers and workers of a cluster name them."""
        return (
            f"postgresql://postgres@/{self.primary.name}?host={self._primary_socket},{self._folder}&port=5432,5432"
            "&target_session_attrs=read-write"
        )

    def fail_over(self) -> None:
        """The primary ends without a word, and the replica leads with what it has."""
        pid = int((self._primary_data / "postmaster.pid").read_text().splitlines()[0])
        psutil.Process(pid).send_signal(signal.SIGQUIT)
        eventually(lambda: not psutil.pid_exists(pid), timeout=20, describe="the end of the primary")
        self.promote()
        eventually(lambda: not self.db.value("SELECT pg_is_in_recovery()"), timeout=20, describe="the new primary")

    def cut(self) -> None:
        """It no longer receives anything."""
        self._set("primary_conninfo", "host=/nowhere")

    def join(self) -> None:
        self._set("primary_conninfo", f"user=postgres host={self._primary_socket} port=5432")

    def catch_up(self) -> None:
        """Return when it has replayed what the primary has written so far."""
        lsn = self.primary.value("SELECT pg_current_wal_flush_lsn()")
        eventually(
            lambda: self.db.value("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", lsn), timeout=30,
            describe="the replica catches up",
        )  # fmt: skip

    def _set(self, name: str, value: str) -> None:
        self.db.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        self.db.execute("SELECT pg_reload_conf()")

    def _answers(self) -> bool:
        try:
            return self.db.value("SELECT pg_is_in_recovery()")
        except psycopg.OperationalError:
            return False

    def _run(self, program: str, *arguments: str) -> None:
        run_program(self._bin, self._folder, program, *arguments)


@contextmanager
def replicated() -> Iterator[Replica]:
    """An own primary with a migrated database, and its replica, both up."""
    with places.temporary_directory() as place, embedded.start(place / "primary", settings={"fsync": "off"}) as server:
        server.create_database("queue")
        primary = Database("queue", server.url_for("queue"))
        horsies_schema.upgrade(primary.url)
        socket = Path(psycopg.conninfo.conninfo_to_dict(server.url)["host"])
        replica = Replica(place / "replica", primary, socket, place / "primary" / "data")
        replica.make()
        try:
            yield replica
        finally:
            try:
                replica.stop()
            except AssertionError:
                pass  # the test has stopped it
