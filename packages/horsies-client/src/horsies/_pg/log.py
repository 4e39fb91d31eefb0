"""Logging for code that also runs on the background thread of the synchronous methods.

The caller of such a method may be a signal handler that interrupted `logging` while it held the lock of a log handler.
If the background thread waited for that lock, both would wait for ever. So its lines are written by a short-lived
thread. Other threads write directly.
"""

import _thread
import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

_logger = logging.getLogger("horsies")
_threads: Final[set[int]] = set()
"""The threads that must not wait for a log handler."""


@contextmanager
def from_a_thread_of_its_own() -> Generator[None]:
    """Inside this context, lines of the calling thread are written by another thread."""
    me = threading.get_ident()
    _threads.add(me)
    try:
        yield
    finally:
        _threads.discard(me)


def info(text: str, *args: object) -> None:
    _write(logging.INFO, text, args)


def warning(text: str, *args: object) -> None:
    _write(logging.WARNING, text, args)


def error(text: str, *args: object, exc_info: Any = None) -> None:
    _write(logging.ERROR, text, args, exc_info=exc_info)


def _write(level: int, text: str, args: tuple[object, ...], **extra: Any) -> None:
    if threading.get_ident() not in _threads:
        _logger.log(level, text, *args, stacklevel=3, **extra)
        return
    try:
        _thread.start_new_thread(_logger.log, (level, text, *args), extra)
    except RuntimeError:
        pass  # the interpreter is exiting and starts no more threads
