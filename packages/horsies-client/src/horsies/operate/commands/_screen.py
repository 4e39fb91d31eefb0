"""A terminal that is drawn over: the alternate screen, single keys, and the terminal as it was at the end."""

import asyncio
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Final, Self

_ENTER: Final = "\x1b[?1049h\x1b[?25l\x1b[2J"
_LEAVE: Final = "\x1b[?25h\x1b[?1049l"
_ENDS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Screen:
    """Enter it inside a running event loop. `on_key` gets each key that is typed, `on_end` the number of the signal
    that ends the program, `on_change` is called when the terminal has another size or was covered."""

    def __init__(
        self, on_key: Callable[[str], None], on_end: Callable[[int], None], on_change: Callable[[], None]
    ) -> None:
        self._on_key, self._on_end, self._on_change = on_key, on_end, on_change
        self._input = sys.stdin.fileno()
        self._has_keys = sys.stdin.isatty()
        self._saved: list[Any] | None = None

    @property
    def size(self) -> tuple[int, int]:
        """Columns and lines; also where the environment has other ones, because a window can change."""
        try:
            found = os.get_terminal_size(sys.stdout.fileno())
        except OSError:
            found = shutil.get_terminal_size()
        return found.columns or 80, found.lines or 24

    def __enter__(self) -> Self:
        loop = asyncio.get_running_loop()
        for number in _ENDS:
            loop.add_signal_handler(number, self._on_end, int(number))
        loop.add_signal_handler(signal.SIGWINCH, self._on_change)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        if self._has_keys:
            loop.add_reader(self._input, self._read)
        self._cover()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        loop = asyncio.get_running_loop()
        self._uncover()
        if self._has_keys:
            loop.remove_reader(self._input)
        for number in (*_ENDS, signal.SIGWINCH, signal.SIGTSTP):
            loop.remove_signal_handler(number)

    def draw(self, lines: Sequence[str]) -> None:
        """Draw over what is there, line by line, so that nothing flickers."""
        self._write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")

    def _cover(self) -> None:
        if self._has_keys:
            self._saved = termios.tcgetattr(self._input)
            tty.setcbreak(self._input)
        self._write(_ENTER)

    def _uncover(self) -> None:
        self._write(_LEAVE)
        if self._saved is not None:
            termios.tcsetattr(self._input, termios.TCSADRAIN, self._saved)
            self._saved = None

    def _suspend(self) -> None:
        """Ctrl-Z: give the terminal back, stop, and take it again when the shell continues this process."""
        loop = asyncio.get_running_loop()
        self._uncover()
        # By its default action the kernel ignores it where no shell could continue this process.
        loop.remove_signal_handler(signal.SIGTSTP)
        os.kill(os.getpid(), signal.SIGTSTP)
        loop.add_signal_handler(signal.SIGTSTP, self._suspend)
        self._cover()
        self._on_change()

    def _read(self) -> None:
        try:
            typed = os.read(self._input, 64)
        except OSError:
            typed = b""
        if not typed:  # the terminal is gone
            self._on_end(int(signal.SIGHUP))
        elif not typed.startswith(b"\x1b"):  # an arrow key is no letter
            for key in typed.decode("utf-8", "ignore"):
                self._on_key(key)

    def _write(self, text: str) -> None:
        try:
            sys.stdout.write(text)
            sys.stdout.flush()
        except OSError:  # the terminal is gone
            self._on_end(int(signal.SIGHUP))
