"""Writes the files of a new project: all of them or none, and never over something that exists."""

import os
import signal
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath


class ScaffoldError(Exception):
    """The project was not written; nothing of it is left."""


def in_the_way(directory: Path, paths: Iterable[PurePosixPath]) -> list[Path]:
    """What exists where the project would write: its files, and files or links where it needs a folder."""
    found: set[Path] = set()
    if os.path.lexists(directory) and not directory.is_dir():
        return [directory]
    for path in paths:
        for parent in path.parents[:-1]:
            folder = directory / parent
            # A linked folder would take files to a place outside of the project.
            if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
                found.add(folder)
        if os.path.lexists(directory / path):
            found.add(directory / path)
    return sorted(found)


def write(directory: Path, files: Mapping[PurePosixPath, str]) -> None:
    """Write the files below the directory, which is made if it does not exist. Raises `ScaffoldError`."""
    made: list[Path] = []
    with _signals_held() as held:
        try:
            for path, text in files.items():
                target = directory / path
                _make_folder(target.parent, made)
                with target.open("x", encoding="utf-8", newline="\n") as file:  # "x" refuses a file that came meanwhile
                    made.append(target)
                    file.write(text)
                if signal.sigpending() & held:
                    raise KeyboardInterrupt
        except BaseException as error:
            _remove(made)
            if isinstance(error, OSError):
                place = error.filename or directory
                raise ScaffoldError(f"cannot write {place}: {error.strerror or error}; nothing was written") from error
            raise


@contextmanager
def _signals_held() -> Generator[set[signal.Signals], None, None]:
    """Signals that would end the program come after the block. Between the moment when a file is made and the one when
    that is noted, Ctrl-C would leave the file behind."""
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    held = {one for one in ending if signal.getsignal(one) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield held
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _make_folder(folder: Path, made: list[Path]) -> None:
    missing = [one for one in (folder, *folder.parents) if not one.exists()]
    for one in reversed(missing):
        one.mkdir()
        made.append(one)


def _remove(made: list[Path]) -> None:
    for path in reversed(made):
        try:
            path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
        except OSError:  # it is gone, or another program has put a file there
            continue
