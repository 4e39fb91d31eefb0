"""The driver of a dashboard that `--serve` starts for a visitor: bounds the visitor's window, ends with the server."""

import os
import threading
from typing import Any, Final

from textual import messages
from textual.drivers.web_driver import WebDriver

LARGEST: Final = (1_000, 500)
"""Columns and rows. The browser says how large its window is; 30,000 times 30,000 took 1.8 GB."""
_EXIT_S: Final = 5.0


class ServedDriver(WebDriver):
    def __init__(self, app: Any, *, debug: bool = False, mouse: bool = True, size: Any = None) -> None:
        super().__init__(app, debug=debug, mouse=mouse, size=size)
        self._size = (_bounded(self._size[0], 0), _bounded(self._size[1], 1))

    def on_meta(self, packet_type: str, payload: dict[str, object]) -> None:
        if packet_type == "resize":
            payload |= {"width": _bounded(payload.get("width"), 0), "height": _bounded(payload.get("height"), 1)}
        super().on_meta(packet_type, payload)

    def run_input_thread(self) -> None:
        super().run_input_thread()
        if not self.exit_event.is_set():  # the input has ended because the server has
            late = threading.Timer(_EXIT_S, os._exit, (1,))
            late.daemon = True
            late.start()
            self._app.post_message(messages.ExitApp())


def _bounded(given: object, axis: int) -> int:
    return max(1, min(given, LARGEST[axis])) if isinstance(given, int) else (80, 24)[axis]
