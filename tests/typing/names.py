# pyright: strict
"""A name that horsies does not have is refused, although names are loaded on first use."""

from typing import assert_type

import horsies
from horsies import AppConfig, PostgresConfig

horsies.Celery("shop")  # type: ignore[attr-defined]

assert_type(AppConfig(PostgresConfig("postgresql://localhost/shop")), AppConfig)
AppConfig(PostgresConfig("postgresql://localhost/shop"), task_routes={})  # type: ignore[call-arg]
PostgresConfig("postgresql://localhost/shop", pool_size=5)  # type: ignore[call-arg]
