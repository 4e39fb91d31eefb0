"""The health file that `horsies health` reads: its age shows when the database last answered.

By default it is in a directory that only this user can write to. In a shared directory such as /tmp, another user could
place a symbolic link at its path and make this process overwrite one of its own files.
"""

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
TOUCH_EVERY_S: Final = 1.0


class HealthError(Exception):
    """Why the health file cannot be used."""


def default_health_file(role: str = "worker") -> Path:
    """The default path, for one worker and one scheduler per container; further ones need paths of their own.

    Worker and scheduler never share a file: the scheduler's path has a suffix where the variable names the worker's.
    """
    given = os.environ.get(VARIABLE)
    if given:
        return Path(given if role == "worker" else f"{given}-{role}")
    return _private_directory() / role


def is_other_than_file(path: Path) -> bool:
    """Whether something else is there, such as a directory or a device. An empty path is the current directory."""
    return os.path.exists(path) and not os.path.isfile(path)  # noqa: PTH110, PTH113  (no error in a closed directory)


def _private_directory() -> Path:
    return Path(tempfile.gettempdir()) / f"horsies-{os.getuid()}"


@dataclass(slots=True)
class HealthFile:
    """Call `touch` whenever the database has answered."""

    path: Path | None
    _touched: float = field(default=float("-inf"), init=False)
    _written: tuple[int, ...] | None = field(default=None, init=False)
    """What identifies the file that this process wrote or touched last."""
    _failing: bool = field(default=False, init=False)

    def touch(self) -> None:
        """Write the file, at most once a second. Log the first of several failures, and the success after them."""
        now = time.monotonic()
        if self.path is None or now - self._touched < TOUCH_EVERY_S:
            return
        self._touched = now
        try:
            if not self._touch_again(self.path):
                write_mark(self.path)
            self._written = _identity(self.path)
        except (OSError, HealthError) as error:
            if not self._failing:
                _log.warning(
                    "the health file cannot be written, trying again every second: %s; `horsies health` will find this "
                    "process unhealthy",
                    error,
                )
            self._failing = True
        else:
            if self._failing:
                _log.warning("the health file %s is written again", self.path)
            self._failing = False

    def _touch_again(self, path: Path) -> bool:
        """Touch the file if it is still the one that this process wrote: 8 µs instead of 200 for writing it."""
        if self._written is None or self._written != _identity(path):
            return False
        os.utime(path, follow_symlinks=False)
        return True


def _identity(path: Path) -> tuple[int, ...] | None:
    """Not the inode alone: that of a deleted file is used again."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino, found.st_mode, found.st_mtime_ns


def write_mark(path: Path) -> None:
    """Replace the file atomically, without following a symbolic link."""
    if path.parent == _private_directory():
        path.parent.mkdir(mode=0o700, exist_ok=True)
        _require_private(path.parent)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(f"{os.getpid()}\n".encode())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise


def read_mark(path: Path) -> tuple[int, float]:
    """Process id and age in seconds. Raises FileNotFoundError, OSError or HealthError."""
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
