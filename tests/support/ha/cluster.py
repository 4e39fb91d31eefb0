"""etcd and three nodes under Patroni: start them, ask who leads, hurt the leader, wait until all is well again."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg

from horsies_schema.embedded.account import server_account
from tests.support.ha.network import MEMBERS, Network, Place, cut, join
from tests.support.ha.patroni import configuration
from tests.support.waiting import eventually

UP_S = 120.0
PATRONI = "patroni[etcd3,psycopg3]==4.1.5"
"""Not the 3.0.2 of Debian 12: there a frozen leader that woke took the leader key back from its successor."""
_PYTHON = Path("/usr/bin/python3")
"""One that the account of the server can run: others lie in the home of root."""


def missing() -> str | None:
    """Why no cluster can be started here; None when it can."""
    if shutil.which("etcd") is None:
        return "etcd is not installed (apt-get install etcd-server)"
    if shutil.which("uv") is None or not _PYTHON.exists():
        return f"Patroni cannot be installed: that needs uv and {_PYTHON}"
    if _programs() is None:
        return "PostgreSQL's own programs are not installed (apt-get install postgresql)"
    return None


def _programs() -> Path | None:
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: int(path.parts[-3]))
    return found[-1].parent if found else None


class Node:
    """One Patroni and its PostgreSQL, in a directory of their own."""

    def __init__(self, name: str, place: Place, folder: Path) -> None:
        self.name = name
        self.place = place
        self.data = folder / "data"
        self.log = folder / "log"
        self.configuration = folder / "patroni.json"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        account = server_account()
        with self.log.open("ab") as sink:
            self.process = subprocess.Popen(
                [
                    *self.place.prefix,
                    # after `ip netns exec`, which needs root
                    *(
                        ("setpriv", f"--reuid={account.name}", f"--regid={account.gid}", "--clear-groups")
                        if account
                        else ()
                    ),
                    str(self.data.parents[1] / "patroni" / "bin" / "patroni"), str(self.configuration),
                ],
                stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, cwd=self.data.parent, start_new_session=True,
                env={
                    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
                    "HOME": pwd.getpwnam(account.name).pw_dir if account else os.environ.get("HOME", "/"),
                },
            )  # fmt: skip

    def url(self, database: str) -> str:
        return f"postgresql://postgres@{self.place.host}:{self.place.port}/{database}?connect_timeout=3"

    def has_database(self, name: str) -> bool:
        try:
            with psycopg.connect(self.url(name)):
                return True
        except psycopg.OperationalError:
            return False

    def postmaster(self) -> int | None:
        try:
            pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        except (FileNotFoundError, IndexError, ValueError):
            return None
        return pid if psutil.pid_exists(pid) else None

    def processes(self) -> list[psutil.Process]:
        """Patroni first, then the server and all its sessions."""
        roots = [pid for pid in (self.process.pid if self.process else None, self.postmaster()) if pid is not None]
        found: list[psutil.Process] = []
        for pid in roots:
            with suppress(psutil.NoSuchProcess):
                root = psutil.Process(pid)
                found += [root, *root.children(recursive=True)]
        return list(dict.fromkeys(found))

    def signal(self, number: signal.Signals) -> None:
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def crash(self) -> None:
        """SIGKILL the postmaster and its sessions, as a machine's end does; Patroni lives on and sees it."""
        pid = self.postmaster()
        assert pid is not None, f"{self.name} has no server"
        postmaster = psutil.Process(pid)
        sessions = postmaster.children(recursive=True)
        for process in (postmaster, *sessions):
            with suppress(psutil.NoSuchProcess):
                process.kill()

    def end(self) -> None:
        """Patroni and the server, at once."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGKILL)
        if self.process is not None:
            self.process.wait(20)


def _followers(leader: Node) -> int:
    """The standbys that have nearly all of the leader's log: what Patroni says of them is a few seconds old."""
    try:
        with psycopg.connect(leader.url("postgres")) as connection:
            row = connection.execute(
                "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'"
                " AND pg_current_wal_lsn() - replay_lsn < 1000000"
            ).fetchone()
    except psycopg.OperationalError:
        return 0
    return row[0] if row is not None else 0


class Cluster:
    def __init__(self, network: Network, folder: Path, mode: str) -> None:
        self.network = network
        self.folder = folder
        self.mode = mode
        self.nodes: dict[str, Node] = {}

    def url(self, database: str) -> str:
        hosts = ",".join(f"{place.host}:{place.port}" for place in self.network.places.values())
        return f"postgresql://postgres@{hosts}/{database}?target_session_attrs=read-write"

    # -- what the members say ---------------------------------------------------------------------

    def ask(self) -> list[dict[str, Any]]:
        """The members as the first node that answers sees them; empty while none does."""
        for place in self.network.places.values():
            try:
                with urllib.request.urlopen(f"http://{place.host}:{place.rest_port}/cluster", timeout=2) as answer:
                    return json.load(answer)["members"]
            except (OSError, ValueError):
                continue
        return []

    def leader(self, besides: str = "") -> Node | None:
        """The node that accepts writes as Patroni on it says, apart from one that is known to be hurt."""
        for name, place in self.network.places.items():
            if name == besides:
                continue
            address = f"http://{place.host}:{place.rest_port}/primary"
            with suppress(OSError), urllib.request.urlopen(address, timeout=2):
                return self.nodes[name]
        return None

    def wait_leader(self, besides: str = "", timeout: float = UP_S) -> Node:
        found = eventually(lambda: self.leader(besides), timeout=timeout, describe="a leader")
        assert found is not None
        return found

    def is_whole(self) -> bool:
        """One leader, two standbys that stream, and in sync mode one of them synchronous."""
        members = self.ask()
        roles = [member["role"] for member in members]
        states = {member["state"] for member in members}
        leader = self.leader()
        return (
            len(members) == len(MEMBERS)
            and roles.count("leader") == 1
            and states <= {"running", "streaming"}
            and (self.mode != "sync" or "sync_standby" in roles)
            and len({member.get("timeline") for member in members}) == 1
            and leader is not None
            and _followers(leader) == len(MEMBERS) - 1
        )

    def wait_whole(self, timeout: float = UP_S) -> None:
        try:
            eventually(self.is_whole, timeout=timeout, describe="a leader and two standbys that follow it")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.ask()}\n{self.tails()}") from None

    def tails(self) -> str:
        return "\n".join(f"-- {node.name}\n{node.log.read_text()[-2000:]}" for node in self.nodes.values())

    def create_database(self, name: str) -> None:
        """A driver that is given all hosts asks them in turn, and gives up at one that says that there is no such
        database: a standby that has the leader's log, and has not replayed it yet."""
        with psycopg.connect(self.url("postgres"), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        for node in self.nodes.values():
            eventually(lambda one=node: one.has_database(name), timeout=UP_S, describe=f"{name} on {node.name}")

    # -- what is done to them ---------------------------------------------------------------------

    def switch_over(self) -> str:
        """Ask Patroni to hand the lead to another node; the name of the old leader."""
        old = self.wait_leader()
        members = self.ask()
        ready = [m["name"] for m in members if m["role"] == ("sync_standby" if self.mode == "sync" else "replica")]
        self._post(old, "switchover", {"leader": old.name, "candidate": ready[0]})
        return old.name

    def _post(self, node: Node, path: str, body: dict[str, str]) -> None:
        request = urllib.request.Request(
            f"http://{node.place.host}:{node.place.rest_port}/{path}", json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )  # fmt: skip
        try:
            with urllib.request.urlopen(request, timeout=60):
                pass
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{path}: {error.code} {error.read().decode()}") from None

    @contextmanager
    def frozen(self, node: Node) -> Iterator[None]:
        node.signal(signal.SIGSTOP)
        try:
            yield
        finally:
            node.signal(signal.SIGCONT)

    @contextmanager
    def cut_off(self, node: Node) -> Iterator[None]:
        cut(node.place)
        try:
            yield
        finally:
            join(node.place)


@contextmanager
def cluster(network: Network, folder: Path, mode: str) -> Iterator[Cluster]:
    """Three nodes, whole when the block begins, gone when it ends."""
    programs = _programs()
    assert programs is not None
    account = server_account()
    made = Cluster(network, folder, mode)
    _install_patroni(folder / "patroni")
    with ExitStack() as stack:
        stack.enter_context(_etcd(network, folder))
        for name, place in network.places.items():
            home = folder / name
            home.mkdir()
            node = Node(name, place, home)
            node.configuration.write_text(configuration(network, name, mode, node.data, programs))
            if account is not None:
                shutil.chown(home, account.name)
            made.nodes[name] = node
            stack.callback(node.end)
            node.start()
        made.wait_whole()
        yield made


def _install_patroni(folder: Path) -> None:
    for command in (
        ["uv", "venv", "--quiet", "--no-config", "--python", str(_PYTHON), str(folder)],
        ["uv", "pip", "install", "--quiet", "--no-config", "--python", str(folder / "bin" / "python"), PATRONI],
    ):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextmanager
def _etcd(network: Network, folder: Path) -> Iterator[None]:
    """One member: that etcd itself survives faults is not what is tried here."""
    client, peer = (f"http://{network.etcd_host}:{port}" for port in network.etcd_ports)
    with (folder / "etcd.log").open("wb") as sink:
        process = subprocess.Popen(
            [
                shutil.which("etcd") or "etcd", "--name=only", f"--data-dir={folder / 'etcd'}",
                f"--listen-client-urls={client}", f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}", f"--initial-advertise-peer-urls={peer}", f"--initial-cluster=only={peer}",
            ],
            stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
        )  # fmt: skip
    try:
        eventually(lambda: _is_healthy(client), timeout=30, describe="etcd")
        yield
    finally:
        process.kill()
        process.wait(10)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return json.load(answer)["health"] == "true"
    except (OSError, ValueError):
        return False
