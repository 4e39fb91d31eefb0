"""Hosts of a small network, as Linux network namespaces: PostgreSQL on one, workers and producers on the others.

    with network("a", "b") as net:                 # skips the test without root and iproute2
        net.db                                     # seen from the test itself, through the unix socket
        net.url                                    # seen from the hosts
        net.command("a")                           # put before a command that shall run on host a
        net.cut("a"); net.mend("a")                # pull the cable, and plug it in again

The bridge between the hosts is in the database's namespace; nothing of it is seen outside. Namespaces are removed with
the block, and those that a killed run left are removed before the next one.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psutil
import psycopg
import pytest

import horsies_schema
from horsies_schema.embedded.account import server_account
from horsies_schema.embedded.binaries import clean_environment, locate
from tests.support import places
from tests.support.postgres import Database
from tests.support.waiting import eventually

PREFIX = "horsies-test-"
SUBNET = "10.213.77"


def _ip(*words: str, inside: str | None = None) -> None:
    command = ["ip", *(("-n", inside) if inside else ()), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr.strip()}"


class Network:
    def __init__(self, names: tuple[str, ...], folder: Path) -> None:
        self._names, self._folder, self._run = names, folder, f"{PREFIX}{os.getpid()}"
        self._data, self._log = folder / "data", folder / "log"
        self._account, self._made = server_account(), list[str]()
        self.url = f"postgresql://postgres@{SUBNET}.1:5432/queue"
        self.db = Database("queue", f"postgresql://postgres@/queue?host={folder}&port=5432")

    def space(self, host: str) -> str:
        return f"{self._run}-{host}"

    def command(self, host: str, *words: str) -> tuple[str, ...]:
        """`ip netns exec` becomes the command itself: the process id is the command's."""
        return ("ip", "netns", "exec", self.space(host), *words)

    def cut(self, host: str) -> None:
        """Packets of both directions are lost; no end is told."""
        _ip("link", "set", f"to-{host}", "down", inside=self.space("db"))

    def mend(self, host: str) -> None:
        _ip("link", "set", f"to-{host}", "up", inside=self.space("db"))

    # -- making and removing it ------------------------------------------------------------------

    def build(self) -> None:
        for host in ("db", *self._names):
            _ip("netns", "add", self.space(host))
            self._made.append(self.space(host))
            _ip("link", "set", "lo", "up", inside=self.space(host))
        database = self.space("db")
        _ip("link", "add", "bridge", "type", "bridge", inside=database)
        _ip("addr", "add", f"{SUBNET}.1/24", "dev", "bridge", inside=database)
        _ip("link", "set", "bridge", "up", inside=database)
        for number, host in enumerate(self._names, 2):
            own = self.space(host)
            _ip("link", "add", f"to-{host}", "type", "veth", "peer", "name", "eth0", "netns", own, inside=database)
            _ip("link", "set", f"to-{host}", "master", "bridge", "up", inside=database)
            _ip("addr", "add", f"{SUBNET}.{number}/24", "dev", "eth0", inside=own)
            _ip("link", "set", "eth0", "up", inside=own)

    def start_server(self) -> None:
        self._program("initdb", "-D", str(self._data), "-U", "postgres", "--auth=trust", "--no-sync", "-E", "UTF8")
        with (self._data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {SUBNET}.0/24 trust\n")
        options = f"-k {self._folder} -c listen_addresses={SUBNET}.1 -c fsync=off"
        self._program("pg_ctl", "start", "-W", "-D", str(self._data), "-l", str(self._log), "-o", options)
        eventually(self._is_up, timeout=30, describe="PostgreSQL answers")
        with psycopg.connect(self.db.url.replace("/queue?", "/postgres?"), autocommit=True) as connection:
            connection.execute("CREATE DATABASE queue")
        horsies_schema.upgrade(self.db.url)

    def stop_server(self) -> None:
        if (self._data / "postmaster.pid").exists():
            self._program("pg_ctl", "stop", "-m", "immediate", "-D", str(self._data))

    def remove(self) -> None:
        for name in self._made:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def _is_up(self) -> bool:
        try:
            psycopg.connect(self.db.url.replace("/queue?", "/postgres?")).close()
        except psycopg.OperationalError:
            return False
        return True

    def _program(self, name: str, *arguments: str) -> None:
        words = [str(locate(self._account) / name), *arguments]
        if self._account is not None:
            ids = (f"--reuid={self._account.uid}", f"--regid={self._account.gid}", "--clear-groups")
            words = ["setpriv", *ids, *words]
        done = subprocess.run(
            self.command("db", *words), cwd=self._folder, env=clean_environment(), stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stderr}"


def _remove_left() -> None:
    """Of runs that were killed: their process is gone."""
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=False).stdout
    for line in listed.splitlines():
        name = line.split()[0] if line.strip() else ""
        if name.startswith(PREFIX) and not psutil.pid_exists(int(name.removeprefix(PREFIX).split("-")[0])):
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


@contextmanager
def network(*hosts: str) -> Iterator[Network]:
    """The hosts, and one more with a migrated database."""
    if os.geteuid() != 0:
        pytest.skip("network namespaces need root")
    for program in ("ip", "setpriv"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed (iproute2, util-linux)")
    _remove_left()
    probe = f"{PREFIX}{os.getpid()}-probe"
    made = subprocess.run(["ip", "netns", "add", probe], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"this machine allows no network namespaces: {made.stderr.strip()}")
    subprocess.run(["ip", "netns", "del", probe], check=False)
    with ExitStack() as stack:
        folder = stack.enter_context(places.temporary_directory())
        net = Network(hosts, folder)
        if (account := server_account()) is not None:
            os.chown(folder, account.uid, account.gid)
        stack.callback(net.remove)
        net.build()
        stack.callback(net.stop_server)
        net.start_server()
        yield net
