"""Where test servers keep their files."""

import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

_RUN = "horsies-tests-"
_held = ExitStack()
"""The lock on the directory of this process's run, until it ends."""


def spacious_memory() -> str | None:
    """A directory in memory, or None: no suitable one here.

    Files cost little there. A clone of the migrated template took 20 ms where the disk's took 60 to 400, nearly all of
    it processor time of the file system; initdb of a durable cluster 0.6 s against up to 5 on a busy disk.
    """
    memory = Path("/dev/shm")
    usable = memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 2 << 30
    return str(memory) if usable else None


def directory(prefix: str = "horsies-test-") -> Path:
    """A new one that the server's account can enter when we are root; the caller removes it."""
    made = Path(tempfile.mkdtemp(prefix=prefix, dir=spacious_memory())).resolve()
    made.chmod(0o755)
    return made


@contextmanager
def temporary_directory() -> Iterator[Path]:
    made = directory()
    try:
        yield made
    finally:
        shutil.rmtree(made)


def run_directory() -> Path:
    """The directory of a whole run, locked while this process lives. What killed runs have left is removed:
    memory is too dear to be forgotten."""
    root = Path(spacious_memory() or tempfile.gettempdir())
    for left in root.glob(f"{_RUN}*"):
        try:
            # a run that begins now has its directory a moment before its lock
            if left.stat().st_mtime < time.time() - 60:
                with _locked(left):
                    shutil.rmtree(left, ignore_errors=True)
        except OSError:
            continue  # in use, of another account, or removed meanwhile
    made = directory(_RUN)
    _held.enter_context(_locked(made))
    return made


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """BlockingIOError if another process holds it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)
