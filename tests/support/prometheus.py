"""A real Prometheus server for tests: scrapes every second, evaluates the rules of deploy/ every second.

with prometheus(tmp_path, {"horsies-exporter": [one.port]}) as server:
    server.wait_until_firing("HorsiesNoScheduler")
"""

import json
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.waiting import eventually

DEPLOY = Path(__file__).parents[2] / "deploy"
RULES = DEPLOY / "prometheus" / "alerts.yml"
LOCAL = "127.0.0.1"

needs_prometheus = pytest.mark.skipif(
    shutil.which("prometheus") is None or shutil.which("promtool") is None,
    reason="needs prometheus and promtool: apt-get install prometheus",
)


def promtool(*arguments: str | Path) -> str:
    """Run it to its end; what it says."""
    done = subprocess.run(["promtool", *map(str, arguments)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def quick_rules() -> str:
    """The rules of deploy/, which fire a second after their condition holds."""
    return re.sub(r"^( +for:) \w+$", r"\1 1s", RULES.read_text(), flags=re.MULTILINE)


class Prometheus:
    """A running server."""

    def __init__(self, port: int) -> None:
        self.port = port

    def firing(self) -> dict[str, list[dict[str, str]]]:
        """The labels of the alerts that fire, by the name of the alert."""
        found: dict[str, list[dict[str, str]]] = {}
        for alert in self._ask("/api/v1/alerts")["alerts"]:
            if alert["state"] == "firing":
                found.setdefault(alert["labels"]["alertname"], []).append(alert["labels"])
        return found

    def value(self, expression: str) -> float | None:
        """The value of the first series of an instant query."""
        result = self._ask(f"/api/v1/query?query={quote(expression)}")["result"]
        return float(result[0]["value"][1]) if result else None

    def wait_for(self, expression: str, value: float, *, timeout: float = 60.0) -> None:
        eventually(lambda: self.value(expression) == value, timeout=timeout, describe=f"{expression} is {value}")

    def wait_until_firing(self, *names: str, timeout: float = 120.0) -> dict[str, list[dict[str, str]]]:
        eventually(lambda: set(names) <= self.firing().keys(), timeout=timeout, interval=0.5, describe=f"{names} fire")
        return self.firing()

    def is_ready(self) -> bool:
        try:
            return self._get("/-/ready")[0] == 200
        except OSError:
            return False

    def _ask(self, path: str) -> Any:
        status, body = self._get(path)
        assert status == 200, body
        return json.loads(body)["data"]

    def _get(self, path: str) -> tuple[int, bytes]:
        connection = HTTPConnection(LOCAL, self.port, timeout=20)
        try:
            connection.request("GET", path)
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


@contextmanager
def prometheus(folder: Path, targets: Mapping[str, Sequence[int]]) -> Iterator[Prometheus]:
    """A server that scrapes these ports of this machine, by job; ended with the block."""
    (folder / "alerts.yml").write_text(quick_rules())
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["alerts.yml"],
        "scrape_configs": [
            {"job_name": job, "static_configs": [{"targets": [f"{LOCAL}:{port}" for port in ports]}]}
            for job, ports in targets.items()
        ],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with socket.create_server((LOCAL, 0)) as free:
        port = free.getsockname()[1]
    log = folder / "prometheus.log"
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={LOCAL}:{port}", "--log.level=warn",
    ]  # fmt: skip
    with log.open("wb") as sink:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink)
    try:
        server = Prometheus(port)
        eventually(lambda: server.is_ready() or process.poll() is not None, describe="Prometheus is ready")
        assert process.poll() is None, log.read_text()
        yield server
    finally:
        process.terminate()
        process.wait(30)
