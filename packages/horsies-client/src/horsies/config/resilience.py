"""`ResilienceConfig`: polling, reconnecting and retries of sends."""

from dataclasses import dataclass

from horsies._checks import Checks
from horsies._hints import known_settings


@known_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class ResilienceConfig:
    """Behaviour when notifications are lost, or the database is slow or gone."""

    notify_poll_interval_ms: int = 5_000
    """Interval of polls, because notifications can be lost. 100 ms to 5 min."""

    reconnect_initial_ms: int = 100
    """Delay before the first reconnect; it doubles with every failure. 10 ms to 1 min."""

    reconnect_max_ms: int = 30_000
    """The longest delay between two reconnects. 100 ms to 10 min, not below `reconnect_initial_ms`."""

    reconnect_jitter: bool = True
    """Randomize the delays, so that all processes do not reconnect to a restarted server at once."""

    send_attempts: int = 4
    """Attempts of a send before a transient failure is raised; 1 means no retry. 1 to 20."""

    send_retry_budget_ms: int = 5_000
    """No further attempt of a send begins after this time, so that a web request does not hang. 0 to 5 min."""

    def __post_init__(self) -> None:
        checks = Checks("ResilienceConfig")
        checks.integer("notify_poll_interval_ms", self.notify_poll_interval_ms, 100, 300_000, unit="ms")
        initial_ok = checks.integer("reconnect_initial_ms", self.reconnect_initial_ms, 10, 60_000, unit="ms")
        max_ok = checks.integer("reconnect_max_ms", self.reconnect_max_ms, 100, 600_000, unit="ms")
        if initial_ok and max_ok and self.reconnect_max_ms < self.reconnect_initial_ms:
            checks.add(
                "reconnect_max_ms",
                f"{self.reconnect_max_ms:_} ms is below reconnect_initial_ms ({self.reconnect_initial_ms:_} ms)",
                f"raise it to {self.reconnect_initial_ms:_} or more, or lower reconnect_initial_ms to"
                f" {self.reconnect_max_ms:_}",
            )
        checks.boolean("reconnect_jitter", self.reconnect_jitter)
        checks.integer("send_attempts", self.send_attempts, 1, 20)
        checks.integer("send_retry_budget_ms", self.send_retry_budget_ms, 0, 300_000, unit="ms")
        checks.finish()
