"""Commands whose output goes to a real pseudo-terminal, or to a pipe, each stream by itself."""

import os
import pty
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tests.support.waiting import eventually


@dataclass(frozen=True, slots=True)
class Said:
    code: int
    out: str
    err: str


class Run:
    """A running `horsies` command; `terminals` names the streams that are terminals."""

    def __init__(
        self, *arguments: str, url: str, terminals: tuple[str, ...] = ("out", "err"), **environment: str
    ) -> None:
        ours = {
            key: value
            for key, value in os.environ.items()
            if key not in ("NO_COLOR", "FORCE_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS")
        }
        self._texts = {"out": b"", "err": b""}
        ends: dict[str, tuple[int, int]] = {
            name: pty.openpty() if name in terminals else os.pipe() for name in self._texts
        }
        self._process = subprocess.Popen(
            [sys.executable, "-m", "horsies.cli", *arguments],
            stdin=subprocess.DEVNULL, stdout=ends["out"][1], stderr=ends["err"][1],
            env={**ours, "TERM": "xterm", "HORSIES_DATABASE_URL": url, **environment},
        )  # fmt: skip
        self._readers: list[threading.Thread] = []
        for name, (mine, its) in ends.items():
            os.close(its)
            self._readers.append(threading.Thread(target=self._read, args=(name, mine), daemon=True))
            self._readers[-1].start()

    def _read(self, name: str, end: int) -> None:
        while True:
            try:
                piece = os.read(end, 65_536)
            except OSError:  # how a pseudo-terminal says that all writers are gone
                piece = b""
            if not piece:
                os.close(end)
                return
            self._texts[name] += piece

    def text(self, name: str) -> str:
        return self._texts[name].decode()

    def until(self, condition: Callable[[Self], bool]) -> Self:
        eventually(lambda: condition(self), timeout=30, interval=0.005)
        return self

    def interrupt(self) -> None:
        os.kill(self._process.pid, signal.SIGINT)

    def ended(self) -> Said:
        code = self._process.wait(60)
        for reader in self._readers:
            reader.join(10)
        return Said(code, self.text("out").replace("\r\n", "\n"), self.text("err").replace("\r\n", "\n"))


def said(*arguments: str, url: str, terminals: tuple[str, ...] = ("out", "err"), **environment: str) -> Said:
    return Run(*arguments, url=url, terminals=terminals, **environment).ended()
