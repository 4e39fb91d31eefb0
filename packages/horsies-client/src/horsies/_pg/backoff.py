"""Exponential backoff with a bound, and with jitter so that many processes do not reconnect at the same moment."""

import random

from horsies.config.resilience import ResilienceConfig


class Backoff:
    """The delays, in seconds, between consecutive failures; call `reset` after a success."""

    __slots__ = ("_config", "_failures")

    def __init__(self, config: ResilienceConfig) -> None:
        self._config = config
        self._failures = 0

    def next(self) -> float:
        """The next delay."""
        bound = self._config.reconnect_initial_ms * 2 ** min(self._failures, 30)
        delay = min(bound, self._config.reconnect_max_ms) / 1000
        self._failures += 1
        return delay * random.uniform(0.5, 1.0) if self._config.reconnect_jitter else delay

    def reset(self) -> None:
        self._failures = 0
