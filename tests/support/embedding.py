"""Embedded servers seen from outside: where they live, their processes, and other processes that use them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

from horsies_schema.embedded import account as accounts, layout, urls
from tests.support import places
from tests.support.waiting import eventually

AS_ROOT = os.geteuid() == 0
needs_root = pytest.mark.skipif(not AS_ROOT, reason="only root lends an account to the server")
linux_only = pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG or PR_SET_CHILD_SUBREAPER")

USE = """
import sys
from horsies_schema import embedded
server = embedded.start(sys.argv[1])
print(server.url, flush=True)
sys.stdin.read()
"""


@contextmanager
def place() -> Iterator[Path]:
    """A directory that the server's account can enter. In the end no process may be left that names it."""
    directory = places.directory()
    yield directory
    urls.release(directory)
    try:
        eventually(lambda: not processes(directory), describe=f"no process left in {directory}")
    finally:
        for process in processes(directory):
            process.kill()
        shutil.rmtree(directory)


def commands(directory: Path) -> list[tuple[psutil.Process, list[str]]]:
    """Keepers, postmasters and initdbs of servers below `directory`, each with the words of its command line, read
    once: a short-lived one may be gone before a second look."""
    found: list[tuple[psutil.Process, list[str]]] = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
        except (psutil.NoSuchProcess, psutil.ZombieProcess):
            continue
        if any(str(directory) in word for word in words) and process.pid != os.getpid():
            found.append((process, words))
    return found


def processes(directory: Path) -> list[psutil.Process]:
    return [process for process, _ in commands(directory)]


def keeper_of(directory: Path) -> psutil.Process:
    (keeper,) = [process for process, words in commands(directory) if "horsies_schema.embedded.keeper" in words]
    return keeper


def postmaster_of(directory: Path) -> psutil.Process:
    pid = layout.Layout(directory).postmaster()
    assert pid is not None
    return psutil.Process(pid)


def query(url: str, statement: str) -> object:
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)  # type: ignore[arg-type]
        row = cursor.fetchone() if cursor.description else None
        return row[0] if row else None


def environment(**changes: str) -> dict[str, str]:
    return {**os.environ, **changes}


class User:
    """Another process that uses the server of `directory` until it is told to end."""

    def __init__(self, directory: Path, script: str = USE, env: Mapping[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=dict(env or os.environ),
        )

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


def server_identity() -> dict[str, object]:
    """Arguments that make subprocess run something as the server's own account."""
    account = accounts.server_account()
    return {} if account is None else {"user": account.uid, "group": account.gid, "extra_groups": account.groups}
