"""The tables of project_name. They are made at the start; a migration tool such as Alembic takes over later."""

from sqlalchemy import Connection, text
from sqlalchemy.orm import Mapped, mapped_column

from project_name.extensions import Base


class Customer(Base):
    __tablename__ = "customers"

    id: Mapped[int] = mapped_column(primary_key=True)
    address: Mapped[str] = mapped_column(unique=True)


def create_tables(connection: Connection) -> None:
    """Several processes may start at once: one of them makes the tables, and the others wait for it."""
    connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('project_name'))"))
    Base.metadata.create_all(connection)
