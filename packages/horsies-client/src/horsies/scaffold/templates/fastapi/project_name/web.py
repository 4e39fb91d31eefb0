"""The web application of project_name: it stores a customer and sends the welcome in one transaction.

No customer without a welcome, and no welcome for a customer that was rolled back.
"""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from horsies.contrib.fastapi import lifespan, result_response
from pydantic import BaseModel, Field
from sqlalchemy import make_url
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine

from project_name import settings
from project_name.models import Customer, create_tables
from project_name.tasks import app, send_welcome

router = APIRouter()


async def open_session(request: Request) -> AsyncIterator[AsyncSession]:
    async with request.state.sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(open_session)]


class NewCustomer(BaseModel):
    address: Annotated[str, Field(max_length=254)]


class SignedUp(BaseModel):
    customer_id: int
    task_id: str


@router.post("/customers", status_code=202)
async def sign_up(new: NewCustomer, session: Session) -> SignedUp:
    customer = Customer(address=new.address)
    session.add(customer)
    handle = await send_welcome.with_options(connection=session).send_async(new.address)
    try:
        await session.commit()
    except IntegrityError:  # the customer is rolled back, and the welcome with it
        raise HTTPException(409, "this address is taken") from None
    return SignedUp(customer_id=customer.id, task_id=handle.task_id)


@router.get("/welcomes/{task_id}")
async def read_welcome(request: Request, task_id: str, wait_s: Annotated[float, Query(ge=0, le=25)] = 0) -> Response:
    """The result of the task; with `wait_s` the request waits for it."""
    return await result_response(request, app.handle(task_id, send_welcome), wait_s=wait_s)


def create_api(database_url: str | None = None) -> FastAPI:
    """The application, on the database of the settings or on another one."""

    @asynccontextmanager
    async def database(_: FastAPI) -> AsyncGenerator[dict[str, object], None]:
        url = make_url(database_url or settings.postgres_url()).set(drivername="postgresql+asyncpg")
        engine = create_async_engine(url)
        async with engine.begin() as connection:
            await connection.run_sync(create_tables)
        yield {"sessions": async_sessionmaker(engine, expire_on_commit=False)}
        await engine.dispose()

    api = FastAPI(title="project-name", lifespan=lifespan(app, inside=database))
    api.include_router(router)
    return api
