"""Configurations of tests, and the problems of one that cannot be made."""

from typing import Any

import pytest

from horsies.config import (
    AppConfig,
    PostgresConfig,
)
from horsies.errors import ConfigurationError

URL = "postgresql://app:s3cr3t-word@db.example/work"
QUICK = {"runner_heartbeat_interval_ms": 1_000, "claimer_heartbeat_interval_ms": 1_000}
"""Settings of a recovery that beats often."""


def wheres(build: Any, *args: Any, **fields: Any) -> list[str]:
    """The `where` of every problem that a construction reports."""
    with pytest.raises(ConfigurationError) as caught:
        build(*args, **fields)
    assert all(problem.why and problem.fix for problem in caught.value.problems)
    return [problem.where for problem in caught.value.problems]


def app(**fields: Any) -> AppConfig:
    return AppConfig(PostgresConfig(URL), **fields)
