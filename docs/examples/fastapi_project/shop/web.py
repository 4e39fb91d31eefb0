"""The web application: `uvicorn shop.web:app`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Query, Request, Response
from pydantic import BaseModel, PositiveInt
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker

from horsies.contrib.fastapi import HorsiesApp, event_stream, lifespan, result_response
from shop.models import Order, make_engine
from shop.tasks import import_catalogue, queue, send_receipt

STOCK = 10


@asynccontextmanager
async def database(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
    engine = make_engine()
    yield {"sessions": async_sessionmaker(engine)}
    await engine.dispose()


app = FastAPI(lifespan=lifespan(queue, inside=database))


async def transaction(request: Request) -> AsyncIterator[AsyncSession]:
    """One transaction around the request: committed when the endpoint returns, rolled back when it raises."""
    async with request.state.sessions.begin() as session:
        yield session


# scope="function": committed before the response is sent, not after it
Session = Annotated[AsyncSession, Depends(transaction, scope="function")]


class NewOrder(BaseModel):
    email: str
    pieces: PositiveInt


@app.post("/orders", status_code=202)
async def create_order(new: NewOrder, session: Session, response: Response) -> dict[str, Any]:
    order = Order(email=new.email, pieces=new.pieces)
    session.add(order)
    await session.flush()  # gives the order its id
    handle = await send_receipt.with_options(connection=session).send_async(order.id, new.email, new.pieces)
    if new.pieces > STOCK:
        raise HTTPException(409, "out of stock")  # rolls back the order, and its receipt with it
    response.headers["Location"] = f"/receipts/{handle.task_id}"
    return {"order_id": order.id, "task_id": handle.task_id}


@app.get("/receipts/{task_id}")
async def read_receipt(request: Request, task_id: str, wait_s: Annotated[float, Query(ge=0, le=25)] = 0) -> Response:
    return await result_response(
        request,
        queue.handle(task_id, send_receipt),
        wait_s=wait_s,
        show_error=lambda error: {"code": error.error_code, "message": error.message},
    )


@app.post("/imports", status_code=202)
async def start_import(pages: Annotated[int, Query(gt=0, le=1000)], response: Response) -> dict[str, str]:
    handle = await import_catalogue.send_async(pages)
    response.headers["Location"] = f"/imports/{handle.task_id}"
    return {"task_id": handle.task_id}


@app.get("/imports/{task_id}")
async def read_import(request: Request, task_id: str, wait_s: Annotated[float, Query(ge=0, le=25)] = 0) -> Response:
    return await result_response(request, queue.handle(task_id, import_catalogue), wait_s=wait_s)


@app.get("/imports/{task_id}/events")
async def follow_import(request: Request, task_id: str) -> Response:
    return await event_stream(request, queue.handle(task_id, import_catalogue), result=True)


@app.get("/health")
async def health(queue: HorsiesApp) -> dict[str, str]:
    """For a readiness probe: an error when the database cannot be reached."""
    return {"database_time": (await queue.get_broker().get_time()).isoformat()}
