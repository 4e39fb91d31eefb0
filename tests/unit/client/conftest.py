"""Fixtures of the definitions' tests, which need no database."""

from typing import Any

import pytest

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult


@pytest.fixture
def app() -> Horsies:
    return Horsies(AppConfig(PostgresConfig("postgresql://u@localhost/d")))


@pytest.fixture
def number(app: Horsies) -> Any:
    @app.task("number")
    def number(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)

    return number
