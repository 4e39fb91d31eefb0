"""A real PgBouncer in front of a test's database, as an account that is not root."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict
from psycopg.rows import dict_row

from horsies_schema.embedded.account import server_account
from tests.support.postgres import Database
from tests.support.waiting import eventually


class PgBouncer:
    """`url` leads through it; `restart` ends every connection of both sides."""

    def __init__(self, db: Database, folder: Path, *, pool_size: int, mode: str, ignored: str) -> None:
        self._program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        target = conninfo_to_dict(db.url)
        words = {"host": target["host"], "port": target.get("port", 5432), "dbname": db.name, "user": target["user"]}
        if target.get("password"):
            words["password"] = target["password"]
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self._port = probe.getsockname()[1]
        self._user = target["user"]
        self.url = f"postgresql://{self._user}@127.0.0.1:{self._port}/{db.name}"
        # fewer server sessions than clients: consecutive transactions of one client land in different ones
        (folder / "pgbouncer.ini").write_text(
            f"""[databases]
{db.name} = {" ".join(f"{key}='{value}'" for key, value in words.items())}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {self._port}
unix_socket_dir =
auth_type = any
pool_mode = {mode}
ignore_startup_parameters = {ignored}
default_pool_size = {pool_size}
max_client_conn = 200
logfile = {folder / "pgbouncer.log"}
server_login_retry = 1
"""
        )
        self._account = server_account()
        if self._account is not None:
            for path in (folder, folder / "pgbouncer.ini"):
                os.chown(path, self._account.uid, self._account.gid)

    def start(self) -> None:
        if self._program is None:
            pytest.skip("pgbouncer is not installed")
        account = self._account
        as_account = {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}
        self._process = subprocess.Popen(
            [self._program, "-q", str(self._folder / "pgbouncer.ini")], cwd=self._folder, stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **as_account,  # type: ignore[arg-type]
        )  # fmt: skip
        eventually(self._answers, timeout=20, describe="PgBouncer answers")

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "pgbouncer.log").read_text()
        with contextlib.suppress(psycopg.OperationalError), psycopg.connect(self.url, prepare_threshold=None) as one:
            return one.execute("SELECT 1").fetchone() == (1,)
        return False

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)  # at once, open transactions included
            self._process.wait(20)

    def show(self, what: str) -> list[dict[str, Any]]:
        """The rows of a SHOW command of its console, which knows the simple protocol alone."""
        console = f"postgresql://{self._user}@127.0.0.1:{self._port}/pgbouncer"
        with psycopg.connect(
            console, autocommit=True, cursor_factory=psycopg.ClientCursor[dict[str, Any]], row_factory=dict_row
        ) as one:
            return one.execute(f"SHOW {what}").fetchall()  # type: ignore[arg-type]

    def restart(self) -> None:
        self.stop()
        self.start()


@contextlib.contextmanager
def pgbouncer(db: Database, *, pool_size: int = 3, mode: str = "transaction", ignored: str = "") -> Iterator[PgBouncer]:
    """`ignored`: start-up settings that it swallows instead of refusing the client."""
    with tempfile.TemporaryDirectory(prefix="horsies-pgbouncer-") as folder:
        proxy = PgBouncer(db, Path(folder), pool_size=pool_size, mode=mode, ignored=ignored)
        proxy.start()
        try:
            yield proxy
        finally:
            proxy.stop()
