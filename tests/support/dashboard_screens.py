"""Takes the pictures of docs/guides/dashboard.md: real terminal, real workers under load, one of them killed.

`just screens`. Look at them before you commit them.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.support import postgres
from tests.support.terminals import Terminal
from tests.support.waiting import eventually

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "docs" / "guides" / "dashboard"
SIZE = (120, 34)
COLOURS = TerminalTheme((16, 20, 27), (212, 219, 230), [(0, 0, 0)] * 8, [(128, 128, 128)] * 8)
APP = "tests.support.dashboard_shop:app"
FONTS = '"Fira Code", "Cascadia Mono", "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace'
WARM_UP_S = 55.0
"""So long under load before the first picture: a curve needs a past."""


def main() -> int:
    TARGET.mkdir(exist_ok=True)
    postgres.prepare_run()
    try:
        with postgres.database() as db, ExitStack() as stack, tempfile.TemporaryDirectory() as folder:
            os.environ["HORSIES_DATABASE_URL"] = db.url
            workers = [stack.enter_context(_Worker(name, Path(folder))) for name in ("web-1", "web-2", "web-3")]
            for worker in workers:
                eventually(lambda worker=worker: " is up" in worker.log, timeout=60)
            stop = threading.Event()
            load = threading.Thread(target=_load, args=(stop,))
            load.start()
            try:
                _take(db, workers)
            finally:
                stop.set()
                load.join()
                _close()
    finally:
        postgres.finish_run()
    return 0


def _take(db: postgres.Database, workers: "list[_Worker]") -> None:
    from tests.support.dashboard_shop import fulfil, transcode_video

    for n in range(7):
        transcode_video.send(n)
    for _ in range(6):
        fulfil.start()
    time.sleep(WARM_UP_S - 25)
    transcode_video.send_many([{"n": n} for n in range(4)])
    fulfil.start()
    time.sleep(10)
    workers[2].kill()
    url = {"HORSIES_DATABASE_URL": db.url, "COLORTERM": "truecolor", "PATH": os.environ["PATH"]}
    with Terminal([sys.executable, "-m", "horsies_tui"], SIZE, **url) as terminal:
        terminal.shows("1 Overview")
        terminal.keys("[", "[")
        terminal.keys("4")
        terminal.shows("✗ web-3", timeout=60)
        _save(terminal, "stale")
        for key, name in (
            ("1", "overview"),
            ("3", "workers"),
            ("6", "schedules"),
            ("7", "maintenance"),
            ("5", "workflows"),
        ):
            terminal.keys(key)
            time.sleep(3)
            _save(terminal, name)
        terminal.keys("Enter", "Down", "Down", "Down")
        time.sleep(2)
        _save(terminal, "workflow")
        terminal.keys("2")
        time.sleep(2)
        terminal.keys("f")
        time.sleep(3)
        _save(terminal, "tasks")
        terminal.keys("Enter")
        time.sleep(2)
        terminal.keys("Right", "Right", "Right", "Right")
        time.sleep(1)
        _save(terminal, "task")
        terminal.keys("Escape")
        time.sleep(1)
        terminal.keys("Space", "Space", "Space", "R")
        time.sleep(1)
        _save(terminal, "confirm")
        terminal.keys("Escape", "Escape", "q")


def _save(terminal: Terminal, name: str) -> None:
    text = terminal.text(colours=True)
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=SIZE[0], height=SIZE[1], file=nowhere, color_system="truecolor",
                          force_terminal=True, legacy_windows=False)  # fmt: skip
        for line in text.rstrip("\n").split("\n"):
            console.print(Text.from_ansi(_renamed(line)), no_wrap=True, overflow="crop", crop=True, soft_wrap=False)
    svg = console.export_svg(title="horsies tui", theme=COLOURS)
    (TARGET / f"{name}.svg").write_text(self_contained(svg))


def self_contained(svg: str) -> str:
    """The picture with fonts of the reader's machine: Rich's own rules fetch a font from another host."""
    svg = re.sub(r"\s*@font-face \{.*?\}", "", svg, flags=re.S)
    return svg.replace("font-family: Fira Code, monospace", f"font-family: {FONTS}")


def _renamed(line: str) -> str:
    """What belongs to this machine gets a name of the shop's, as long as its own."""
    for pattern, name in (
        (r"horsies_test_[0-9a-f]{16} as postgres", "shop as operator"),
        (r"horsies_test_[0-9a-f]{16}", "shop"),
        (re.escape(str(ROOT)) + r"/tests/support/dashboard_shop\.py", "/srv/shop/tasks.py"),
    ):
        while found := re.search(pattern, line):
            line = line[: found.start()] + name + line[found.end() :]
            line = _widened(line, len(found.group()) - len(name))
    return line


def _widened(line: str, spaces: int) -> str:
    """As wide as before: in front of the frame on the right, else at the end of the text on the left."""
    frame = line.rfind("│")
    place = line.rfind("\x1b", 0, frame) if frame >= 0 else re.search(r" {3}|$", line.lstrip()).start() + 1  # type: ignore[union-attr]
    return line[:place] + " " * spaces + line[place:]


def _close() -> None:
    from tests.support.dashboard_shop import app

    app.close()


def _load(stop: threading.Event) -> None:
    from tests.support.dashboard_shop import charge_card, resize_image, send_receipt, sync_inventory

    number = 0
    while not stop.wait(0.25):
        number += 1
        send_receipt.send_many([{"order": number * 10 + n} for n in range(4)])
        charge_card.send_many([{"order": number * 10 + n} for n in range(3 + number % 3)])
        resize_image.send(number)
        if number % 2:
            sync_inventory.send(number)


class _Worker:
    def __init__(self, name: str, folder: Path) -> None:
        self._path = folder / f"{name}.log"
        command = [sys.executable, "-m", "horsies_worker", APP, "--processes=6", "--with-scheduler",
                   f"--health-file={folder / name}"]  # fmt: skip
        with self._path.open("wb") as sink:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdout=sink, stderr=sink, env={**os.environ, "SHOP_HOST": name}
            )

    @property
    def log(self) -> str:
        return self._path.read_text()

    def kill(self) -> None:
        self._process.kill()
        self._process.wait(10)

    def __enter__(self) -> "_Worker":
        return self

    def __exit__(self, *exc: object) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(40)
            except subprocess.TimeoutExpired:
                self.kill()


if __name__ == "__main__":
    sys.exit(main())
