"""The database of the photo shop, its mail server and its bank. The same before and after the move."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import DateTime, ForeignKey, create_engine, func, select, update
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

engine = create_engine(os.environ["SHOP_DATABASE_URL"])


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str]
    photos: Mapped[int]
    album: Mapped[str | None]


class Mail(Base):
    __tablename__ = "mails"
    id: Mapped[int] = mapped_column(primary_key=True)
    order_id: Mapped[int] = mapped_column(ForeignKey("orders.id"))
    kind: Mapped[str]


class Call(Base):
    """One call of a task's code: what the tests look at."""

    __tablename__ = "calls"
    id: Mapped[int] = mapped_column(primary_key=True)
    task: Mapped[str]
    order_id: Mapped[int | None]
    at: Mapped[datetime] = mapped_column(DateTime(timezone=True), server_default=func.clock_timestamp())


class Outage(Base):
    """How many more calls the mail server or the bank will refuse."""

    __tablename__ = "outages"
    of: Mapped[str] = mapped_column(primary_key=True)
    left: Mapped[int]


class OrderNotFound(Exception):
    pass


class MailServerDown(Exception):
    pass


class BankBusy(Exception):
    """The bank says after how many seconds to ask again."""

    def __init__(self, retry_after: float) -> None:
        super().__init__(retry_after)
        self.retry_after = retry_after


class UnreadablePhoto(Exception):
    pass


@contextmanager
def transaction() -> Iterator[Session]:
    with Session(engine) as session, session.begin():
        yield session


def note(task: str, order_id: int | None = None) -> None:
    with transaction() as session:
        session.add(Call(task=task, order_id=order_id))


def is_down(of: str) -> bool:
    with transaction() as session:
        refused = update(Outage).where(Outage.of == of, Outage.left > 0).values(left=Outage.left - 1)
        return session.execute(refused.returning(Outage.left)).first() is not None


def mail(order_id: int, kind: str) -> str:
    """Send a mail to the customer of this order."""
    note(kind, order_id)
    with transaction() as session:
        order = session.get(Order, order_id)
        if order is None:
            raise OrderNotFound(f"there is no order {order_id}")
        if is_down("mail"):
            raise MailServerDown("the mail server does not answer")
        session.add(Mail(order_id=order_id, kind=kind))
        return order.email


def pay(order_id: int) -> None:
    note("charge", order_id)
    if is_down("bank"):
        raise BankBusy(0.3)


def mails(order_id: int) -> list[str]:
    with transaction() as session:
        return list(session.scalars(select(Mail.kind).where(Mail.order_id == order_id)))


def calls(task: str, order_id: int | None = None) -> list[datetime]:
    with transaction() as session:
        chosen = select(Call.at).where(Call.task == task).order_by(Call.id)
        return list(session.scalars(chosen if order_id is None else chosen.where(Call.order_id == order_id)))
