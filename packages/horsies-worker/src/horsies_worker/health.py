"""The mark that `horsies health` reads: a file whose age says when the database last answered.

The default lies in a directory that only this user can write to. In a shared one such as /tmp another user could put a
symbolic link at its name, and have this process overwrite a file of its own user's.
"""

import contextlib
import logging
import os
import stat
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_log = logging.getLogger("horsies.worker")

VARIABLE: Final = "HORSIES_HEALTH_FILE"
_EVERY_S: Final = 1.0


class HealthError(Exception):
    """Why there is no mark to go by, for a person."""


def default_health_file(role: str = "worker") -> Path:
    """One process of a kind per container is the rule; several on one machine name their own.

    Worker and scheduler never share one: the scheduler's has a suffix where the variable names the worker's.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given if role == "worker" else f"{given}-{role}")
    return _private_directory() / role


def _private_directory() -> Path:
    return Path(tempfile.gettempdir()) / f"horsies-{os.getuid()}"


@dataclass(slots=True)
class HealthFile:
    """`touch` it whenever the database has answered."""

    path: Path | None
    _touched: float = field(default=float("-inf"), init=False)

    def touch(self) -> None:
        """At most once a second; a file that cannot be written is given up, with a word in the log."""
        now = time.monotonic()
        if self.path is None or now - self._touched < _EVERY_S:
            return
        self._touched = now
        try:
            write_mark(self.path)
        except (OSError, HealthError) as error:
            _log.warning("no health file: %s; `horsies health` will find this process unhealthy", error)
            self.path = None


def write_mark(path: Path) -> None:
    """Put a new file in the place of the old one: readers see a whole one, and a symbolic link is not followed."""
    if path.parent == _private_directory():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _require_private(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        fresh.unlink()
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        os.write(descriptor, f"{os.getpid()}\n".encode())
    finally:
        os.close(descriptor)
    fresh.replace(path)


def read_mark(path: Path) -> tuple[int, float]:
    """Process id and age in seconds. FileNotFoundError, OSError or HealthError when there is nothing to go by."""
    if path.parent == _private_directory() and path.parent.exists():
        _require_private(path.parent)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise HealthError(f"{path} is not a file")
        text = os.read(descriptor, 100)
    finally:
        os.close(descriptor)
    try:
        return int(text), time.time() - found.st_mtime
    except ValueError:
        raise HealthError(f"{path} does not hold a process id") from None


def _require_private(directory: Path) -> None:
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise HealthError(
            f"{directory} is not a directory that only this user can write to: remove it, or name another file with "
            f"--health-file or {VARIABLE}"
        )
