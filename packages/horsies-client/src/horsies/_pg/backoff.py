"""Waiting between tries: doubling, bounded, and jittered so that a fleet does not come back as a herd."""

import random

from horsies.config.resilience import ResilienceConfig


class Backoff:
    """Delays in seconds for one run of failures; `reset` after a success."""

    __slots__ = ("_config", "_failures")

    def __init__(self, config: ResilienceConfig) -> None:
        self._config = config
        self._failures = 0

    def next(self) -> float:
        """How long to wait now."""
        bound = self._config.reconnect_initial_ms * 2 ** min(self._failures, 30)
        delay = min(bound, self._config.reconnect_max_ms) / 1000
        self._failures += 1
        return delay * random.uniform(0.5, 1.0) if self._config.reconnect_jitter else delay

    def reset(self) -> None:
        self._failures = 0
