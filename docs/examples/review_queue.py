"""A review queue: articles wait until an editor says yes or no. Needs `pip install horsies-client fastapi uvicorn`, and
`horsies-worker` where the tasks run.

    HORSIES_DATABASE_URL=postgresql://... horsies worker review_queue:queue
    HORSIES_DATABASE_URL=postgresql://... uvicorn review_queue:app

The article and its run are written by one transaction, and so are the review and the signal: no article
without a run that asks for its review, no review that its run does not get.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

import asyncpg
from fastapi import Depends, FastAPI, HTTPException, Request
from pydantic import BaseModel

from horsies import (
    AppConfig,
    Horsies,
    PostgresConfig,
    SignalError,
    TaskError,
    TaskResult,
    WorkflowDefinition,
    WorkflowSpec,
    from_node,
    wait_for_signal,
)

DATABASE_URL = os.environ["HORSIES_DATABASE_URL"]

MAGAZINE = """
CREATE TABLE IF NOT EXISTS articles (
    id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, title text, state text NOT NULL DEFAULT 'new', workflow_id text);
CREATE TABLE IF NOT EXISTS reviews (article_id int PRIMARY KEY, editor text NOT NULL, is_good boolean NOT NULL);
"""
# horsies' tables may be read freely, and an index serves this; `get_broker().workflows.waiting("review")` has no join
WAITING = """
SELECT a.id, a.title, n.started_at AS since
  FROM horsies_workflow_tasks n JOIN articles a ON a.workflow_id = n.workflow_id
 WHERE n.status = 'WAITING' AND n.signal_name = 'review' ORDER BY n.started_at
"""

queue = Horsies(AppConfig(PostgresConfig(DATABASE_URL)))


class Verdict(BaseModel):
    editor: str
    is_good: bool


@queue.task("is_good")
def is_good(verdict: Verdict) -> TaskResult[bool, TaskError]:
    return TaskResult(ok=verdict.is_good)


@queue.task("set_state")
async def set_state(article_id: int, state: str) -> TaskResult[None, TaskError]:
    connection = await asyncpg.connect(DATABASE_URL)
    try:
        await connection.execute("UPDATE articles SET state = $2 WHERE id = $1", article_id, state)
    finally:
        await connection.close()
    return TaskResult(ok=None)


review = wait_for_signal("review", Verdict)


class Article(WorkflowDefinition[None], app=queue, name="article"):
    check_with = ({"article_id": 1},)

    @classmethod
    def build_with(cls, article_id: int) -> WorkflowSpec[None]:
        good = is_good.node()(from_node(review))
        published = set_state.node(node_id="published", when=good)(article_id, "published")
        returned = set_state.node(node_id="returned", unless=good)(article_id, "returned")
        return cls.workflow([review, good, published, returned])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(DATABASE_URL, min_size=1) as pool, queue:
        await pool.execute(MAGAZINE)
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


async def transaction(request: Request) -> AsyncIterator[asyncpg.Connection]:
    """One transaction around the request: committed when the endpoint returns, rolled back when it raises."""
    async with request.app.state.pool.acquire() as connection, connection.transaction():
        yield connection


Transaction = Annotated[asyncpg.Connection, Depends(transaction, scope="function")]


class Draft(BaseModel):
    title: str


@app.post("/articles", status_code=201)
async def submit(draft: Draft, connection: Transaction) -> dict[str, Any]:
    article_id = await connection.fetchval("INSERT INTO articles (title) VALUES ($1) RETURNING id", draft.title)
    run = await Article.build_with(article_id).start_async(connection=connection)
    await connection.execute("UPDATE articles SET workflow_id = $2 WHERE id = $1", article_id, run.workflow_id)
    return {"article_id": article_id}


@app.get("/reviews")
async def waiting(connection: Transaction) -> list[dict[str, Any]]:
    return [dict(row) for row in await connection.fetch(WAITING)]


@app.post("/reviews/{article_id}")
async def decide(article_id: int, verdict: Verdict, connection: Transaction) -> dict[str, Any]:
    workflow_id = await connection.fetchval("SELECT workflow_id FROM articles WHERE id = $1", article_id)
    if workflow_id is None:
        raise HTTPException(404, "no such article")
    try:
        await connection.execute("INSERT INTO reviews VALUES ($1, $2, $3)", article_id, verdict.editor, verdict.is_good)
        await queue.workflow_handle(workflow_id).signal_async(review, verdict, connection=connection)
    except asyncpg.UniqueViolationError:
        raise HTTPException(409, "the review was answered already") from None
    except SignalError as error:
        raise HTTPException(409, str(error)) from error  # the review is rolled back with it
    return {"article_id": article_id, "is_good": verdict.is_good}


@app.get("/articles/{article_id}")
async def read(article_id: int, connection: Transaction) -> dict[str, Any]:
    state = await connection.fetchval("SELECT state FROM articles WHERE id = $1", article_id)
    if state is None:
        raise HTTPException(404, "no such article")
    return {"article_id": article_id, "state": state}
