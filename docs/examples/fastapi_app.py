"""A shop's web app. Needs `pip install horsies-client fastapi uvicorn`; the tasks themselves run elsewhere.

    DATABASE_URL=postgresql://... uvicorn fastapi_app:app

The receipt of an order is a task that a worker of another code base runs. It is enqueued in the
transaction that writes the order: no order without its receipt, no receipt of an order that was rolled back.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal
from typing import Annotated, Any

import asyncpg
from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from pydantic import BaseModel, PositiveInt

from horsies import (
    AppConfig,
    CancelResult,
    Horsies,
    OperationalErrorCode,
    PostgresConfig,
    RetrievalCode,
    TaskError,
    TaskResult,
)

DATABASE_URL = os.environ["DATABASE_URL"]

SHOP = """
CREATE TABLE IF NOT EXISTS shop_orders (id int GENERATED ALWAYS AS IDENTITY, email text, pieces int);
CREATE TABLE IF NOT EXISTS shop_stock (item int PRIMARY KEY, pieces int);
INSERT INTO shop_stock VALUES (1, 10) ON CONFLICT DO NOTHING;
"""

queue = Horsies(AppConfig(PostgresConfig(DATABASE_URL)))


class Receipt(BaseModel):
    number: str
    total: Decimal


# only the signature: `send_receipt.send_async(...)` is typed by it, and so is the result
@queue.declare("send_receipt")
def send_receipt(order_id: int, email: str, *, copies: int = 1) -> TaskResult[Receipt, TaskError]: ...


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with asyncpg.create_pool(DATABASE_URL, min_size=1) as pool, queue:
        await pool.execute(SHOP)
        app.state.pool = pool
        yield


app = FastAPI(lifespan=lifespan)


async def transaction(request: Request) -> AsyncIterator[asyncpg.Connection]:
    """One transaction around the request: committed when the endpoint returns, rolled back when it raises."""
    async with request.app.state.pool.acquire() as connection, connection.transaction():
        yield connection


# scope="function": committed before the response is sent, not after it
Transaction = Annotated[asyncpg.Connection, Depends(transaction, scope="function")]


class Order(BaseModel):
    email: str
    pieces: PositiveInt


@app.post("/orders", status_code=202)
async def create_order(order: Order, connection: Transaction) -> dict[str, Any]:
    order_id = await connection.fetchval(
        "INSERT INTO shop_orders (email, pieces) VALUES ($1, $2) RETURNING id", order.email, order.pieces
    )
    handle = await send_receipt.with_options(connection=connection).send_async(order_id, order.email)
    left = await connection.fetchval(
        "UPDATE shop_stock SET pieces = pieces - $1 WHERE item = 1 AND pieces >= $1 RETURNING pieces", order.pieces
    )
    if left is None:
        raise HTTPException(409, "out of stock")  # rolls back the order, and its receipt with it
    return {"order_id": order_id, "task_id": handle.task_id}


@app.get("/receipts/{task_id}")
async def read_receipt(
    task_id: str, response: Response, wait_ms: Annotated[int, Query(ge=0, le=25_000)] = 0
) -> dict[str, Any]:
    """The result; with `wait_ms` the request waits for it. Thousands may wait: they share one LISTEN connection."""
    result = await queue.handle(task_id, send_receipt).get_async(timeout_ms=wait_ms)
    if result.is_ok():
        return {"status": "done", "receipt": result.ok_value}
    error = result.err_value
    if error.error_code == RetrievalCode.TASK_NOT_FOUND:
        raise HTTPException(404, "no such receipt")
    if error.error_code == RetrievalCode.WAIT_TIMEOUT:
        response.status_code = 202
        return {"status": "pending"}
    if error.error_code == OperationalErrorCode.BROKER_ERROR:
        raise HTTPException(503, "the database cannot be reached")
    return {"status": "failed", "error": error.error_code, "message": error.message}


@app.delete("/receipts/{task_id}")
async def cancel_receipt(task_id: str) -> dict[str, str]:
    outcome = await queue.handle(task_id).cancel_async()
    if outcome is CancelResult.NOT_FOUND:
        raise HTTPException(404, "no such receipt")
    return {"outcome": outcome}
