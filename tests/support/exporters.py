"""`horsies exporter` as a process, and what a scrape of a metrics endpoint says.

with exporter(db, tmp_path) as one:
    one.wait_for("horsies_up", 1)
    assert one.scrape()["horsies_queue_ready_tasks", "default"] == 3
"""

import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import ROOT, WorkerProcess, ended

LOCAL = "127.0.0.1"
FRONT_DOOR = (sys.executable, "-m", "horsies.cli", "exporter")

Scrape = Mapping[str | tuple[str, ...], float]
"""Values by name, or by name and the values of the labels in the order of their names."""


def environment(**changes: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key != "HORSIES_DATABASE_URL"}
    return {**kept, "PYTHONUNBUFFERED": "1", **changes}


def ask(port: int, path: str) -> tuple[int, str]:
    """Status and body."""
    connection = HTTPConnection(LOCAL, port, timeout=20)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode()
    finally:
        connection.close()


def parsed(text: str) -> Scrape:
    found: dict[str | tuple[str, ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = tuple(value for _, value in sorted(sample.labels.items()))
            found[(sample.name, *labels) if labels else sample.name] = sample.value
    return found


class Exporter:
    """A running one."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process

    @property
    def log(self) -> str:
        return self.process.log

    @property
    def port(self) -> int:
        """As the log says it, once it is up."""
        found = re.search(r"http://\S+:(\d+)/metrics", self.log)
        assert found is not None, self.log
        return int(found[1])

    def scrape(self) -> Scrape:
        status, text = ask(self.port, "/metrics")
        assert status == 200, text
        return parsed(text)

    def ready(self) -> tuple[int, str]:
        return ask(self.port, "/readyz")

    def wait_for(self, name: str | tuple[str, ...], value: float, *, timeout: float = 60.0) -> Scrape:
        """The first scrape with that value."""
        last: list[Scrape] = []

        def found() -> bool:
            last[:] = [self.scrape()]
            return last[0].get(name) == value

        eventually(found, timeout=timeout, interval=0.1, describe=f"{name} is {value}")
        return last[0]


def start_exporter(where: Database | str | None, folder: Path, *arguments: str, **changes: str) -> WorkerProcess:
    """Start one on a free port and return at once; the caller ends it. It asks the database every second."""
    given = [] if where is None else ["--database-url", where if isinstance(where, str) else where.url]
    command = [*FRONT_DOOR, f"--host={LOCAL}", "--port=0", "--interval=1", *given, *arguments]
    return WorkerProcess(command, environment(**changes), folder, cwd=ROOT)


@contextmanager
def exporter(where: Database | str | None, folder: Path, *arguments: str, **changes: str) -> Iterator[Exporter]:
    """One that is up; ended with the block, and it must end well."""
    with ended(start_exporter(where, folder, *arguments, **changes)) as process:
        process.wait_up()
        yield Exporter(process)
