"""Values, types and strategies for tests of the codec, and the short way through it."""

import datetime as dt
import enum
import json
import math
import typing as t
from collections import deque
from dataclasses import dataclass
from decimal import Decimal

import pytest
from hypothesis import strategies as st
from pydantic import BaseModel
from typing_extensions import TypedDict  # pydantic wants this one below Python 3.12

from horsies.codec import (
    EncodeError,
    TaskCodec,
)
from horsies.result import TaskError, TaskResult

Done = TaskResult[None, TaskError]
NAN, INF = math.nan, math.inf


class Colour(enum.Enum):
    RED = "red"
    TWO = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Word(enum.StrEnum):
    YES = "yes"


class Item(BaseModel):
    name: str
    price: Decimal
    tags: frozenset[str] = frozenset()


class Order(BaseModel):
    id: int
    items: list[Item] = []
    note: str | None = None
    score: float | None = None


@dataclass
class Point:
    x: float
    raw: bytes = b""
    when: dt.date | None = None


class Pair(t.NamedTuple):
    left: int
    right: bytes


class Options(TypedDict, total=False):
    depth: int
    blob: bytes


def codec_for(annotation: t.Any, result: t.Any = None) -> TaskCodec:
    def job(value: t.Any) -> Done: ...

    job.__annotations__ = {"value": annotation, "return": TaskResult[result, TaskError]}
    return TaskCodec.from_function(job, task_name="job", location=None)


def send(codec: TaskCodec, value: t.Any) -> str:
    """The text of the parameter alone."""
    text = codec.encode_call((value,), {}).kwargs_json
    assert text is not None
    assert_storable(text)
    return text.removeprefix('{"value":').removesuffix("}")


def receive(codec: TaskCodec, text: str) -> t.Any:
    args, kwargs = codec.decode_call(None, f'{{"value":{text}}}')
    assert args == ()
    return kwargs["value"]


def assert_storable(text: str) -> None:
    """What jsonb demands: strict JSON in valid UTF-8, without NUL, raw or escaped."""

    def no_constants(token: str) -> t.NoReturn:
        raise AssertionError(f"{token} in JSON")

    def no_nul(value: t.Any) -> None:
        if isinstance(value, str):
            assert "\0" not in value
            value.encode()
        elif isinstance(value, dict):
            for key, inner in value.items():
                no_nul(key)
                no_nul(inner)
        elif isinstance(value, list):
            for inner in value:
                no_nul(inner)

    no_nul(json.loads(text, parse_constant=no_constants))


def same(left: t.Any, right: t.Any) -> bool:
    """Stricter than ==: types count too, and so does the sign of zero."""
    if isinstance(left, dt.datetime | dt.time):
        return type(left) is type(right) and left == right and left.utcoffset() == right.utcoffset()
    if type(left) is not type(right) or left != right:
        return False
    if isinstance(left, float):
        return math.copysign(1, left) == math.copysign(1, right)
    if isinstance(left, list | tuple | deque):
        return all(map(same, left, right))
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(value, right[key]) for key, value in left.items())
    return True


def refused(codec: TaskCodec, value: t.Any) -> EncodeError:
    with pytest.raises(EncodeError) as caught:
        codec.encode_call((value,), {})
    assert caught.value.task_name == "job"
    assert caught.value.parameter == "value"
    assert "task 'job'" in str(caught.value)
    assert "parameter 'value'" in str(caught.value)
    return caught.value


def nested(levels: int) -> list[t.Any]:
    value: list[t.Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
# PEP 495 zones are a test of their own; offsets of whole minutes are what ISO 8601 can say.
ZONES = st.none() | st.integers(-23 * 60, 23 * 60).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | FLOATS | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)
ITEMS = st.builds(Item, name=TEXT, price=st.decimals(allow_nan=False, allow_infinity=False), tags=st.frozensets(TEXT))
ORDERS = st.builds(
    Order, id=st.integers(), items=st.lists(ITEMS, max_size=2), note=st.none() | TEXT, score=st.none() | FLOATS
)
POINTS = st.builds(Point, x=FLOATS, raw=st.binary(), when=st.none() | st.dates())
# In the order of the TypedDict: that is the order in which its keys are written.
OPTIONS = st.tuples(st.integers(), st.binary(), st.sets(st.sampled_from(["depth", "blob"]))).map(
    lambda made: {key: value for key, value in zip(("depth", "blob"), made, strict=False) if key in made[2]}
)
PAIRS = st.builds(Pair, st.integers(), st.binary())
