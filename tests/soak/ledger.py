"""The ledger: lines that processes append to files of their own, each whole or not there."""

import json
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

FOLDER_VARIABLE = "HORSIES_TEST_LEDGER"
_open: dict[tuple[int, str, str], int] = {}


def _append(prefix: str, text: str) -> None:
    """By process: a child that was forked opens a file of its own."""
    folder = os.environ[FOLDER_VARIABLE]
    key = (os.getpid(), prefix, folder)
    if key not in _open:
        path = Path(folder) / f"{prefix}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        _open[key] = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_open[key], (text + "\n").encode())


def note_run(k: int, run: str, phase: str, group: str = "-") -> None:
    """A task body begins or ends."""
    _append("run", f"{k} {run} {phase} {os.getpid()} {time.time()!r} {group}")


def note_send(**fields: Any) -> None:
    """What a producer is about to do, or the answer that it got."""
    _append("send", json.dumps({**fields, "at": time.time()}))


class Line(NamedTuple):
    k: int
    run: str
    phase: str
    pid: int
    at: float
    group: str


class Run(NamedTuple):
    """One run of a task body."""

    k: int
    run: str
    pid: int
    group: str
    started: float
    ended: float | None
    """None: it was killed, or raised."""


def read_lines(folder: Path) -> list[Line]:
    found: list[Line] = []
    for text in _texts(folder, "run"):
        k, run, phase, pid, at, group = text.split()
        found.append(Line(int(k), run, phase, int(pid), float(at), group))
    return sorted(found, key=lambda line: line.at)


def read_sends(folder: Path) -> list[dict[str, Any]]:
    return sorted(map(json.loads, _texts(folder, "send")), key=lambda entry: entry["at"])


def runs_of(lines: list[Line]) -> list[Run]:
    ends = {(line.k, line.run): line.at for line in lines if line.phase == "end"}
    return [
        Run(line.k, line.run, line.pid, line.group, line.at, ends.get((line.k, line.run)))
        for line in lines
        if line.phase == "start"
    ]


def _texts(folder: Path, prefix: str) -> Iterator[str]:
    for file in folder.glob(f"{prefix}-*"):
        text = file.read_text()
        # a full disk, or a kill inside of write(), may leave the last line without its end
        yield from text[: text.rfind("\n") + 1].splitlines()
