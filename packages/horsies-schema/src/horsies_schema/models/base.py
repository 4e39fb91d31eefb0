"""What the models of all tables share: types, names of constraints, and the forms of CHECKs and indexes."""

from datetime import datetime
from typing import Annotated, Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Id = Annotated[str, 36]
Name = Annotated[str, 255]
Sha = Annotated[str, 64]
Word = Annotated[str, 20]
QueueName = Annotated[str, 100]
Key = Annotated[str, "group"]
Big = Annotated[int, 64]
Json = Annotated[Any, "jsonb"]

IS_METADATA = "(metadata IS NULL OR jsonb_typeof(metadata) = 'object' AND pg_column_size(metadata) <= 65536)"
"""The condition on `metadata` of tasks and runs."""

EFFECTIVE_POLICY = "coalesce(declared, '{}') || coalesce(override, '{}')"
SOUND_POLICIES = "horsies_policy_is_sound(declared) AND horsies_policy_is_sound(override)"
"""A function of revision 0021."""


class Base(DeclarativeBase):
    """The metadata of all horsies tables, apart from any of yours."""

    metadata = MetaData(
        naming_convention={
            "pk": "pk_%(table_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
        }
    )
    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy reads it from the class)
        datetime: DateTime(timezone=True),
        int: Integer,
        float: Double,
        str: Text,
        Id: String(36),
        Name: String(255),
        Sha: String(64),
        Word: String(20),
        QueueName: String(100),
        Key: String(255, collation="C"),
        Big: BigInteger,
        Json: JSONB,
        list[str]: ARRAY(Text),
        list[int]: ARRAY(Integer),
    }


def check(name: str, condition: str) -> CheckConstraint:
    return CheckConstraint(condition, name=name)


def time_range(*columns: str, rest: str = "") -> CheckConstraint:
    """1970 and 9000: what Python's datetime can hold and a program can count with. See migration 0017."""
    names = ", ".join(columns)
    first, last = "to_timestamp(0)", "to_timestamp(221845392000)"
    return check("time_range", f"least({names}) >= {first} AND greatest({names}) <= {last}{rest}")


def partial(name: str, *columns: str, where: str) -> Index:
    return Index(name, *columns, unique=name.startswith("uq_"), postgresql_where=text(where))


def now() -> Mapped[datetime]:
    return mapped_column(server_default=func.now())


def statement_time() -> Mapped[datetime]:
    return mapped_column(server_default=func.statement_timestamp())


QUEUE_NAME = "queue_name ~ '^[A-Za-z0-9_.-]{1,52}$'"
