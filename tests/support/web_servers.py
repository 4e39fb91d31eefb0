"""Real web servers for tests: started as users start them, called over HTTP, and always ended."""

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
UP_S = 40.0


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: Any


@dataclass(frozen=True, slots=True)
class WebServer:
    process: subprocess.Popen[bytes]
    port: int
    log: Path
    streams: "list[Stream]"

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json", **headers})
            response = connection.getresponse()
            text = response.read().decode()
            told = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, told, json.loads(text) if text[:1] in ("{", "[", '"') else text)
        finally:
            connection.close()

    def open(self, path: str, **headers: str) -> "Stream":
        """Send a GET, and leave the answer to come."""
        stream = Stream(self.port, path, headers)
        self.streams.append(stream)
        return stream


class Stream:
    """A client that reads what comes, until it hangs up."""

    def __init__(self, port: int, path: str, headers: Mapping[str, str]) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=30)
        lines = [f"GET {path} HTTP/1.1", "Host: localhost", *(f"{name}: {value}" for name, value in headers.items())]
        self._socket.sendall("\r\n".join([*lines, "", ""]).encode())
        self.text = ""

    def read_until(self, wanted: str, timeout: float = 20.0) -> str:
        deadline = time.monotonic() + timeout
        while wanted not in self.text:
            self._socket.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                chunk = self._socket.recv(65_536)
            except TimeoutError:
                chunk = b""
            assert chunk, f"no {wanted!r} in {self.text!r}"
            self.text += chunk.decode()
        return self.text

    def hang_up(self) -> None:
        self._socket.close()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


@contextmanager
def web_server(
    command: Sequence[str],
    port: int,
    folder: Path,
    environment: Mapping[str, str],
    *,
    cwd: Path = ROOT,
    is_quiet: bool = True,
) -> Iterator[WebServer]:
    """A server on this port. When the block ends it must stop by itself; `is_quiet`: without a traceback in its log."""
    log = folder / f"server-{port}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-m", *command], cwd=cwd, env={**os.environ, **environment}, stdout=sink, stderr=sink
        )
    streams: list[Stream] = []
    try:
        eventually(lambda: _answers(port) or process.poll() is not None, timeout=UP_S)
        assert process.poll() is None, log.read_text()
        yield WebServer(process, port, log, streams)
        process.terminate()
        process.wait(20)
        assert not is_quiet or "Traceback" not in log.read_text(), log.read_text()
    finally:
        for stream in streams:
            stream.hang_up()
        process.kill()
        process.wait(20)


@contextmanager
def uvicorn(
    target: str,
    folder: Path,
    environment: Mapping[str, str],
    *options: str,
    cwd: Path = ROOT,
    is_quiet: bool = True,
) -> Iterator[WebServer]:
    port = free_port()
    command = ["uvicorn", target, f"--port={port}", *options]
    with web_server(command, port, folder, environment, cwd=cwd, is_quiet=is_quiet) as server:
        yield server


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=1).close()
    except OSError:
        return False
    return True
