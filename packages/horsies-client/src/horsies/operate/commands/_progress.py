"""The progress of work on many rows: a line on stderr that is written over, and an orderly end by Ctrl-C.

The line is shown only on a terminal that can erase it, and never with `--json`. The first Ctrl-C lets the batch that is
under way end, so that the count is exact; a second one stops at once.
"""

import asyncio
import shutil
import signal
import sys
import time
from types import TracebackType
from typing import Final, Self

from horsies._colours import is_able
from horsies.operate.commands._print import complain, plural

_CLEAR: Final = "\r\x1b[K"
_REDRAW_S: Final = 0.1
_BAR: Final = 20


class Progress:
    """Use it as a context around the batches: `add` after each, and end when `is_stopped`."""

    def __init__(
        self, past: str, noun: str, total: int, *, is_bounded: bool = False, is_quiet: bool = False,
        has_batches: bool = True,
    ) -> None:  # fmt: skip
        """`past`: what is done to each, such as `retried`; `is_bounded`: there may be more than `total`. A mere wait
        has no batches: Ctrl-C ends it at once."""
        self.done = 0
        self.is_stopped = False
        self._past, self._noun, self._total, self._is_bounded = past, noun, total, is_bounded
        self._is_shown = not is_quiet and sys.stderr.isatty() and is_able()
        self._began = time.monotonic()
        self._drawn = 0.0
        self._handles_signal = False
        self._has_batches = has_batches

    def __enter__(self) -> Self:
        if not self._has_batches:
            return self
        try:
            asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._stop)
            self._handles_signal = True
        except (ValueError, RuntimeError, NotImplementedError):
            pass  # not in the main thread: the caller has the signal
        self._draw(self.line())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._handles_signal:
            asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)
        self.clear()
        if self._has_batches and kind is not None and (self.done or not issubclass(kind, Exception)):
            complain(f"{self.told()}; the batch under way may be done as well")

    def add(self, count: int) -> None:
        """Count what one batch has done."""
        self.done += count
        if time.monotonic() - self._drawn >= _REDRAW_S:
            self._draw(self.line())

    def line(self) -> str:
        """What is shown now."""
        elapsed = time.monotonic() - self._began
        speed = self.done / elapsed if elapsed > 0 else 0.0
        is_known = self.done > 0 and elapsed >= 1
        rate = f"  {speed:,.0f}/s" if is_known and speed >= 1 else ""
        if self._is_bounded or self.done > self._total:
            return f"{self.told()}{rate}"
        share = self.done / self._total if self._total else 1.0
        bar = "#" * int(share * _BAR)
        left = f", {(self._total - self.done) / speed:,.0f} s left" if is_known else ""
        count = f"{self.done:,} of {plural(self._total, self._noun)}"
        return f"{self._past} {count} [{bar:-<{_BAR}}] {share:4.0%}{rate}{left}"

    def clear(self) -> None:
        """Erase the line, so that something else can be printed."""
        if self._is_shown:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()

    def show(self, text: str) -> None:
        """Show another text in place of the line."""
        self._draw(text)

    def note(self, text: str) -> None:
        """Print a line that stays, such as what is waited for."""
        self.clear()
        complain(text)

    def told(self) -> str:
        """What was done so far."""
        return f"{self._past} {plural(self.done, self._noun)}"

    def interrupted(self) -> str:
        """What to say when it was stopped."""
        of = "" if self._is_bounded else f" of {self._total:,}"
        return (
            f"interrupted: {self._past} {self.done:,}{of}; the rest is as it was, and the same command goes on with it"
        )

    def _draw(self, text: str) -> None:
        if self._is_shown:
            width = shutil.get_terminal_size().columns - 1
            sys.stderr.write(_CLEAR + text[:width])
            sys.stderr.flush()
            self._drawn = time.monotonic()

    def _stop(self) -> None:
        if self.is_stopped:
            raise KeyboardInterrupt
        self.is_stopped = True
        self.note("stopping after this batch; Ctrl-C again stops at once")
