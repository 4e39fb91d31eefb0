"""The rows of the shop, in the database in which its tasks are."""

import asyncio
import os

from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"

    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    pieces: Mapped[int]


def make_engine() -> AsyncEngine:
    url = make_url(os.environ["HORSIES_DATABASE_URL"])
    return create_async_engine(url.set(drivername="postgresql+psycopg"))


async def create_tables() -> None:
    engine = make_engine()
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    await engine.dispose()


if __name__ == "__main__":
    asyncio.run(create_tables())
