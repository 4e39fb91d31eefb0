"""Decides when a screen reads again: after notifications, gathered for a moment, and at regular intervals.

While the listener is connected, the interval is long: it refreshes ages, snapshots of workers and lost notifications.
While it is not, the interval is short. Under load notifications never stop, so two reads are at least `gap_s` apart.
"""

import asyncio
from collections.abc import Callable
from typing import Final

from horsies_tui.data.source import Source

DEBOUNCE_S: Final = 0.15
GAP_S: Final = 0.75
FAST_S: Final = 2.0
SLOW_S: Final = 5.0

Kinds = frozenset[str]


class Feed:
    """Runs until it is cancelled. `on_stale` gets the kinds that may have changed, `on_live` whether it listens."""

    def __init__(
        self,
        source: Source,
        on_stale: Callable[[Kinds], None],
        on_live: Callable[[bool], None],
        *,
        slow_s: float = SLOW_S,
        fast_s: float = FAST_S,
        debounce_s: float = DEBOUNCE_S,
        gap_s: float = GAP_S,
    ) -> None:
        self._source = source
        self._on_stale = on_stale
        self._on_live = on_live
        self._slow_s, self._fast_s = slow_s, min(fast_s, slow_s)
        self._debounce_s, self._gap_s = debounce_s, gap_s
        self._hinted: set[str] = set()
        self._wake = asyncio.Event()
        self.is_live = False

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._source.watch(self._hint, self._live))
            group.create_task(self._tell())

    def _hint(self, kind: str) -> None:
        self._hinted.add(kind)
        self._wake.set()

    def _live(self, is_live: bool) -> None:
        if is_live != self.is_live:
            self.is_live = is_live
            self._on_live(is_live)
            self._hint("all")  # notifications were missed

    async def _tell(self) -> None:
        loop = asyncio.get_running_loop()
        told_at = all_at = loop.time()
        while True:
            try:
                async with asyncio.timeout(self._slow_s if self.is_live else self._fast_s):
                    await self._wake.wait()
                await asyncio.sleep(max(self._debounce_s, told_at + self._gap_s - loop.time()))
            except TimeoutError:
                self._hinted.add("all")
            if loop.time() - all_at >= self._slow_s:  # constant notifications must not replace the full refresh
                self._hinted.add("all")
            self._wake.clear()
            kinds, self._hinted = frozenset(self._hinted), set()
            told_at = loop.time()
            all_at = told_at if "all" in kinds else all_at
            self._on_stale(kinds)
