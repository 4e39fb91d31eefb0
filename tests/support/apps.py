"""Apps for tests: on a given database, with short waits where a test would otherwise wait, and closed afterwards."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from horsies import AppConfig, Horsies, PostgresConfig, ResilienceConfig, TaskError, TaskResult
from horsies.tasks import TaskFunction
from tests.support.postgres import Database

UNREACHABLE = "postgresql://nobody:hunter2@127.0.0.1:1/nowhere"
"""Port 1 refuses at once: a server that is down."""

QUICK = {"reconnect_initial_ms": 10, "reconnect_max_ms": 100}


def make_app(where: Database | str, *, broker: dict[str, Any] | None = None, **config: Any) -> Horsies:
    """An app; the caller closes it. `resilience` and `broker` take the fields of their configuration."""
    url = where if isinstance(where, str) else where.url
    resilience = ResilienceConfig(**{**QUICK, **config.pop("resilience", {})})
    return Horsies(AppConfig(PostgresConfig(url, **(broker or {})), resilience=resilience, **config))


@contextmanager
def app_on(where: Database | str, **config: Any) -> Iterator[Horsies]:
    """For the synchronous verbs."""
    with make_app(where, **config) as app:
        yield app


@asynccontextmanager
async def async_app_on(where: Database | str, **config: Any) -> AsyncIterator[Horsies]:
    """For the verbs of the running loop (and the synchronous ones in threads)."""
    async with make_app(where, **config) as app:
        yield app


def add_task(app: Horsies, name: str = "add", **options: Any) -> TaskFunction[[int, int], int]:
    """The task that most tests send."""

    @app.task(name, **options)
    def add(a: int, b: int = 0) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a + b)

    return add
