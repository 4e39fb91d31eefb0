"""What an app can be told. Plain frozen dataclasses: `import horsies` must not pay for pydantic."""

from horsies.config.app import AppConfig
from horsies.config.postgres import DATABASE_URL_VARIABLE, PostgresConfig
from horsies.config.queues import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    QUEUE_NAME_PATTERN,
    CustomQueueConfig,
    QueueMode,
    queue_name_problem,
)
from horsies.config.recovery import RecoveryConfig
from horsies.config.resilience import ResilienceConfig

__all__ = [
    "DATABASE_URL_VARIABLE",
    "DEFAULT_PRIORITY",
    "DEFAULT_QUEUE",
    "QUEUE_NAME_PATTERN",
    "AppConfig",
    "CustomQueueConfig",
    "PostgresConfig",
    "QueueMode",
    "RecoveryConfig",
    "ResilienceConfig",
    "queue_name_problem",
]
