"""One HTTP client per child process. Needs `pip install horsies-client horsies-worker httpx`.

    HORSIES_DATABASE_URL=postgresql://... horsies worker httpx_tasks:app

The lifespan is async: it runs on the event loop of async tasks, which all share the client and its connections.
"""

from collections.abc import AsyncIterator

import httpx

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

app = Horsies(AppConfig(PostgresConfig()))


@app.lifespan
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=10) as opened:
        yield opened


@app.task("fetch")
async def fetch(url: str) -> TaskResult[str, TaskError]:
    response = await client.value.get(url)
    if response.is_error:
        return TaskResult(err=TaskError("BAD_ANSWER", f"{url} answered {response.status_code}"))
    return TaskResult(ok=response.text)
