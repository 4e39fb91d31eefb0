"""The configuration of an app. Plain frozen dataclasses, because `import horsies` must not load pydantic."""

from horsies.config.app import AppConfig
from horsies.config.limits import GroupPolicy, Limit, Rate
from horsies.config.postgres import DATABASE_URL_VARIABLE, PostgresConfig
from horsies.config.queues import DEFAULT_PRIORITY, DEFAULT_QUEUE, CustomQueueConfig, QueueMode
from horsies.config.recovery import RecoveryConfig
from horsies.config.resilience import ResilienceConfig

__all__ = [
    "DATABASE_URL_VARIABLE",
    "DEFAULT_PRIORITY",
    "DEFAULT_QUEUE",
    "AppConfig",
    "CustomQueueConfig",
    "GroupPolicy",
    "Limit",
    "PostgresConfig",
    "QueueMode",
    "Rate",
    "RecoveryConfig",
    "ResilienceConfig",
]
