"""PgBouncer in transaction mode in front of one database, for the length of a scenario."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from bench.compare.install import Absent
from horsies_schema.embedded.account import server_account

POOL_SIZE = 10


@contextlib.contextmanager
def pooler(url: str, directory: Path) -> Iterator[str]:
    """The URL that leads through it. Absent when there is no PgBouncer."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
    if program is None:
        raise Absent("pgbouncer is not installed")
    target: dict[str, Any] = conninfo_to_dict(url)
    name = target["dbname"]
    words = {"host": target["host"], "port": target.get("port", 5432), "dbname": name, "user": target["user"]}
    if target.get("password"):
        words["password"] = target["password"]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = directory / "pgbouncer"
    folder.mkdir(exist_ok=True)
    configuration = folder / "pgbouncer.ini"
    configuration.write_text(
        f"[databases]\n{name} = {' '.join(f'{key}={value!r}' for key, value in words.items())}\n"
        f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
        f"pool_mode = transaction\ndefault_pool_size = {POOL_SIZE}\nmax_client_conn = 200\nlogfile = {folder / 'log'}\n"
    )
    account = server_account()  # like PostgreSQL it refuses root
    if account is not None:
        for path in (folder, configuration):
            os.chown(path, account.uid, account.gid)
    borrowed: dict[str, Any] = (
        {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": []}
    )
    process = subprocess.Popen(
        [program, "-q", str(configuration)], cwd=folder, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL, **borrowed,
    )  # fmt: skip
    try:
        _wait(process, port)
        yield f"postgresql://{target['user']}@127.0.0.1:{port}/{name}"
    finally:
        process.terminate()
        process.wait(20)


def _wait(process: "subprocess.Popen[bytes]", port: int) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return
        time.sleep(0.05)
    raise Absent("pgbouncer did not start")
