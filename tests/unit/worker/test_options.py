"""The options of the command line: every number has a lower and an upper bound."""

import math
from dataclasses import fields
from typing import Any

import pytest

from horsies import AppConfig, ConfigurationError, Horsies, PostgresConfig, TaskError, TaskResult
from horsies_worker.options import WorkerOptions

NUMBERS = [item.name for item in fields(WorkerOptions) if any(kind in str(item.type) for kind in ("int", "float"))]


def app() -> Horsies:
    made = Horsies(AppConfig(PostgresConfig("postgresql://u@h/d")))

    @made.task("nothing")
    def nothing() -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    return made


@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("value", [-1, 10**10, 10**400, math.inf, math.nan])
def test_every_number_has_two_bounds(name: str, value: Any) -> None:
    with pytest.raises(ConfigurationError) as raised:
        WorkerOptions(locator="m:app", **{name: value}).check(app())
    (problem,) = raised.value.problems
    assert problem.where == f"worker.{name.removesuffix('_s')}"


def test_usual_numbers_are_accepted() -> None:
    WorkerOptions(
        locator="m:app", processes=64, async_concurrency=1_000, max_claim_batch=5_000, max_claim_per_worker=100_000,
        max_tasks_per_child=10_000_000, max_memory_per_child_mb=1_048_576, max_child_age_s=30 * 86_400,
        database_timeout_s=3_600, shutdown_timeout_s=0,
    ).check(app())  # fmt: skip
