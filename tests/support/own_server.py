"""A server that a test may stop and start."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import psutil

from horsies_schema import embedded
from tests.support.postgres import Database
from tests.support.waiting import eventually


@contextmanager
def own_server(folder: Path, **settings: str) -> Iterator[SimpleNamespace]:
    """`up()`, `down()` and `db`, an empty database; it is up when the block begins."""
    held: list[embedded.EmbeddedPostgres] = []

    def up() -> None:
        held.append(embedded.start(folder, settings={"fsync": "off", **settings}))

    def down() -> None:
        pid = int((folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        psutil.Process(pid).send_signal(signal.SIGQUIT)  # immediate: as after a power cut
        eventually(lambda: not psutil.pid_exists(pid), timeout=20)
        eventually(lambda: not held[-1].is_running, timeout=20)
        # Its keeper removes the directory a moment later, also one that was made anew in between.
        eventually(lambda: not os.path.lexists(folder / "socket"), timeout=20)

    up()
    try:
        held[0].create_database("queue")
        yield SimpleNamespace(up=up, down=down, db=Database("queue", held[0].url_for("queue")))
    finally:
        for use in reversed(held):
            use.stop()
