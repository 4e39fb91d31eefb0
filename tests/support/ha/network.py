"""An address for each node: a network namespace of its own where that is possible, else a port on loopback.

Namespaces need root and `ip` (Debian: iproute2). Only with them can a node be cut off: its cable is taken down, and
packets in both directions vanish without a refusal.
"""

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

MEMBERS = ("node1", "node2", "node3")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a node listens, and how a program is started there."""

    host: str
    port: int
    rest_port: int
    prefix: tuple[str, ...] = ()
    cable: str | None = None
    """The end of the node's cable in the outer namespace; None: the node cannot be cut off."""


@dataclass(frozen=True, slots=True)
class Network:
    places: dict[str, Place]
    etcd_host: str
    etcd_ports: tuple[int, int]
    """For clients, and for the other members that etcd does not have here."""


@contextmanager
def network() -> Iterator[Network]:
    """Three places and one for etcd; namespaces and cables are removed at the end."""
    if os.geteuid() == 0 and shutil.which("ip") is not None and _can_make_namespaces():
        with _namespaces() as made:
            yield made
    else:
        ports = iter(_free_ports(2 * len(MEMBERS) + 2))
        places = {name: Place("127.0.0.1", next(ports), next(ports)) for name in MEMBERS}
        yield Network(places, "127.0.0.1", (next(ports), next(ports)))


def cut(place: Place) -> None:
    assert place.cable is not None, "a node on loopback cannot be cut off"
    _ip("link", "set", place.cable, "down")


def join(place: Place) -> None:
    assert place.cable is not None
    _ip("link", "set", place.cable, "up")


def _can_make_namespaces() -> bool:
    name = f"hatry{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], check=False, capture_output=True)
    if made.returncode == 0:
        _ip("netns", "del", name)
    return made.returncode == 0


@contextmanager
def _namespaces() -> Iterator[Network]:
    mark = os.getpid() % 65_536
    bridge, net = f"hab{mark}", f"10.{100 + mark // 256 % 100}.{mark % 256}"
    with ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        _ip("addr", "add", f"{net}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        places: dict[str, Place] = {}
        for at, name in enumerate(MEMBERS, 1):
            space, outer, inner = f"ha{mark}n{at}", f"ha{mark}o{at}", f"ha{mark}i{at}"
            _ip("netns", "add", space)
            stack.callback(_ip, "netns", "del", space)
            _ip("link", "add", outer, "type", "veth", "peer", "name", inner)
            _ip("link", "set", inner, "netns", space)
            _ip("link", "set", outer, "master", bridge)
            _ip("link", "set", outer, "up")
            inside = ("ip", "netns", "exec", space)
            for command in (
                ["ip", "addr", "add", f"{net}.{10 + at}/24", "dev", inner],
                ["ip", "link", "set", inner, "up"],
                ["ip", "link", "set", "lo", "up"],
            ):
                _run([*inside, *command])
            places[name] = Place(f"{net}.{10 + at}", 5432, 8008, inside, outer)
        yield Network(places, f"{net}.1", (2379, 2380))


def _ip(*words: str) -> None:
    _run(["ip", *words])


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports
