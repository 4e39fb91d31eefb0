"""The end of a command whose output goes to a pipe: what it printed is flushed here, where a failure has an exit code.

Python flushes at the end of the process, prints a traceback when that fails, and exits with 120.
"""

import errno
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TextIO

CLOSED: Final = 141
"""128 + SIGPIPE: the exit code that a shell shows of a program whose reader has closed the pipe."""
_NOT_WRITTEN: Final = 1


def until_flushed(command: Callable[[], int], name: str = "horsies") -> int:
    """Run a command and flush what it printed. The exit code is 141 when the reader has closed the pipe (`| head`), and
    1 when the output cannot be written, as on a full disk. Another code of the command than 0 stands."""
    open_missing()
    try:
        code = command()
    except BrokenPipeError:
        code = CLOSED
    except SystemExit as stop:  # argparse
        ended = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
        if (code := _flushed(ended, name)) != ended:
            raise SystemExit(code) from None
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        silence(sys.stdout)
        code = _complain(error, name)
    return _flushed(code, name)


def open_missing() -> None:
    """Lead what the shell has closed (`>&-`, `2>&-`) to nowhere. Without that Python has None for the stream, and the
    next socket gets its number, into which a library may write."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(number, True)  # or it is closed again in the programs that this one starts
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            # The number itself: children of a worker lead it elsewhere.
            stream = open(number, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def silence(stream: TextIO) -> None:
    """Lead a stream whose other end is closed to nowhere: what it still holds would fail again at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _flushed(code: int, name: str) -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            silence(stream)
            code = code or CLOSED
        except OSError as error:
            silence(stream)
            code = code or _complain(error, name)
    return code


def _complain(error: OSError, name: str) -> int:
    with suppress(OSError):
        sys.stderr.write(f"{name}: the output cannot be written: {error.strerror}\n")
    return _NOT_WRITTEN
