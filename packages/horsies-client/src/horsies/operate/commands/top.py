"""`horsies top`: workers, queues, rates, running and stale tasks, live in a bare terminal."""

import argparse
import asyncio
import os
import sys
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies._colours import is_able, uses_colours
from horsies._text import one_line, short, span
from horsies.errors import HorsiesError
from horsies.operate.commands._common import OK, Command, Desk
from horsies.operate.commands._print import say_json, say_safe
from horsies.operate.commands._top_reading import SORTS, TopFigures, read_top
from horsies.operate.commands._top_view import Look, picture

if TYPE_CHECKING:
    from horsies.operate.commands._screen import Screen

INTERVAL_S: Final = 2.0
_SLOW_S: Final = 2.0
"""A read that takes longer is shown as a problem."""
_WIDTH: Final = 160
"""The width of what is printed once and is not for a terminal."""


def build() -> Command:
    about = (
        "Show workers, queues, rates, running and stale tasks, again and again, in any terminal. Keys: q quits, p "
        "pauses and goes on, s changes the order of running tasks, r refreshes. In a pipe it prints once."
    )
    command = Command("top", about, _top)
    add = command.parser.add_argument
    add(
        "--interval", type=_seconds, default=INTERVAL_S, metavar="SECONDS",
        help="from one read to the next, 0.5 to 3600 (default: 2)",
    )  # fmt: skip
    add("--sort", choices=SORTS, default=SORTS[0], help="the order of running tasks (default: the longest first)")
    add("--once", action="store_true", help="print once, and end")
    return command


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.5 <= value <= 3_600:  # NaN is not
        raise argparse.ArgumentTypeError(f"{short(text)!r} is not a number of seconds from 0.5 to 3600")
    return value


async def _top(desk: Desk) -> int:
    options = desk.options
    seen = await read_top(desk.reader)
    if options.json:
        say_json({"at": seen.at, "figures": seen.figures, "running": seen.running, "stale": seen.stale})
        return OK
    is_terminal = sys.stdout.isatty()
    if options.once or not is_terminal or not is_able():
        width = os.get_terminal_size(sys.stdout.fileno()).columns if is_terminal else 0
        look = Look(width or _WIDTH, None, options.sort, uses_colours(sys.stdout), is_live=False)
        for line in picture(seen, look):
            say_safe(line)
        return OK
    return await _Live(desk, seen, options.sort, options.interval).run()


@dataclass
class _Live:
    """The view that refreshes itself until it is ended."""

    desk: Desk
    seen: TopFigures
    sort: str
    interval_s: float
    code: int | None = None
    """The exit code, once it has to end."""
    is_paused: bool = False
    wants_read: bool = False
    problem: str = ""
    asked_at: float = 0.0
    read_at: float = 0.0
    reading: "asyncio.Task[TopFigures] | None" = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> int:
        from horsies.operate.commands._screen import Screen  # not every system has terminals of this kind

        loop = asyncio.get_running_loop()
        self.read_at = self.asked_at = loop.time()
        with Screen(self._key, self._end, self.changed.set) as screen:
            try:
                while self.code is None:
                    self._take()
                    self._ask()
                    screen.draw(picture(self.seen, self._look(screen)))
                    await self._wait()
            finally:
                if self.reading is not None:
                    self.reading.cancel()
                    await asyncio.gather(self.reading, return_exceptions=True)
        return self.code

    def _ask(self) -> None:
        now = asyncio.get_running_loop().time()
        is_due = not self.is_paused and now - self.asked_at >= self.interval_s
        if self.reading is None and (is_due or self.wants_read):
            self.wants_read, self.asked_at = False, now
            self.reading = asyncio.create_task(read_top(self.desk.reader))
            self.reading.add_done_callback(lambda _: self.changed.set())

    def _take(self) -> None:
        if self.reading is None or not self.reading.done():
            return
        try:
            self.seen = self.reading.result()
            self.problem, self.read_at = "", asyncio.get_running_loop().time()
        except HorsiesError as error:
            self.problem = one_line(str(error))
        self.reading = None

    async def _wait(self) -> None:
        """Until something has changed, a read is due, or the age of the figures has to be shown anew."""
        due = self.asked_at + self.interval_s - asyncio.get_running_loop().time()
        is_waiting = self.is_paused or self.reading is not None
        try:
            await asyncio.wait_for(self.changed.wait(), 1.0 if is_waiting else max(due, 0.0))
        except TimeoutError:
            pass
        self.changed.clear()

    def _look(self, screen: "Screen") -> Look:
        width, height = screen.size
        return Look(width, height, self.sort, uses_colours(sys.stdout), self._notice(), self.is_paused)

    def _notice(self) -> str:
        now = asyncio.get_running_loop().time()
        age = span(timedelta(seconds=int(now - self.read_at)))
        if self.problem:
            return f"figures are {age} old, trying again: {self.problem}"
        if self.reading is not None and now - self.asked_at > _SLOW_S:
            return f"figures are {age} old: waiting for the database"
        return ""

    def _key(self, key: str) -> None:
        match key:
            case "q" | "Q" | "\x04":
                self.code = OK
            case "p" | " ":
                self.is_paused = not self.is_paused
            case "s":
                self.sort = SORTS[(SORTS.index(self.sort) + 1) % len(SORTS)]
            case "r":
                self.wants_read = True
            case _:
                return
        self.changed.set()

    def _end(self, number: int) -> None:
        self.code = 128 + number
        self.changed.set()
