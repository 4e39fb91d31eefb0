"""Which type of value can be handed to which type of parameter."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple, NewType

import pytest
from pydantic import BaseModel, JsonValue
from typing_extensions import TypedDict  # pydantic wants this one below Python 3.12

from horsies.codec.fit import fits

UserId = NewType("UserId", int)


class Animal(BaseModel):
    name: str


class Dog(Animal):
    tail: bool


class Cat(Animal):
    """Nothing that an Animal would lose."""


class Open(BaseModel, extra="allow"):
    name: str


class OpenDog(Open):
    tail: bool


class AlsoAnimal(BaseModel):
    name: str


AlsoAnimal.__name__ = "Animal"


@dataclass
class Point:
    x: int


@dataclass
class Pixel(Point):
    colour: str = "red"


@dataclass
class SamePoint(Point):
    """Nothing that a Point would lose."""


class Basket(TypedDict):
    fruit: list[str]


class Blob(TypedDict):
    raw: bytes


class Pair(NamedTuple):
    left: int
    raw: bytes


class Colour(StrEnum):
    RED = "red"


GOOD = [
    (int, int), (int, float), (int, Any), (Any, int), (int, object), (None, type(None)), (int, int | None),
    (int | None, int | str | None), (UserId, int), (Annotated[int, "x"], int), (list[int], list[int]),
    (list[int], list[float]), (list[int], Sequence[int]), (list[int], list), (tuple[int, int], tuple[int, ...]),
    (tuple[int, int], Sequence[int]), (dict[str, int], dict[str, float]), (dict[str, int], Mapping[str, int]),
    (Cat, Animal), (OpenDog, Open), (SamePoint, Point), (Point, Point), (Literal["a"], str),
    (Literal["a"], Literal["a", "b"]), (Colour, str),
    (list[Cat], list[Animal]), (list[int] | None, list[int] | None), (list[Any], list[int]),
    (None, Any), (list[dict[str, int | None]], Any), (Basket, Any), (Colour, Any), (JsonValue, Any), (list, Any),
    (Literal["a", 1], Any), (Mapping[str, int], Any), (OrderedDict[str, int], dict), (dict[str, Any], dict),
    (Literal[1], int), (Literal[1], Literal[1, 2]), (dict[int, int], dict[int, float]), (tuple[int, ...], list[int]),
]  # fmt: skip
BAD = [
    (int, str), (float, int), (str, int), (int | None, int), (list[int], list[str]), (list[int], int), (int, list[int]),
    (list[int], dict[str, int]), (Animal, Dog), (Point, Animal), (Literal["a", "b"], Literal["a"]), (str, Colour),
    (bool, int), (bool, float), (list[bool], list[int]), (datetime, date), (date, datetime),
    (list[datetime], list[date]),
    (Dog, Animal), (list[Dog], list[Animal]), (Pixel, Point), (Dog | None, Animal | None),
    (bytes, Any), (list[bytes], Any), (dict[int, int], Any), (datetime, Any), (Animal, Any), (Point, object),
    (Blob, Any),
    (tuple[int, int], Any), (set[int], Any), (int | bytes, Any), (Literal[b"x"], Any), (Pair, tuple),
    (list[bytes], list), (dict[int, int], dict), (dict[int, int], Mapping), (dict[int, int], dict[str, int]),
    (dict[str, int], dict[int, int]), (tuple[dict[int, int], ...], list[dict[str, int]]),
    (Literal[True], int), (Literal[True], Literal[1]), (Literal[1], Literal[True]),
    (datetime, int), (dict[str, int], dict[str, str]), (list[Animal], list[Dog]), (tuple[int, str], tuple[int, ...]),
]  # fmt: skip


@pytest.mark.parametrize(("produced", "wanted"), GOOD)
def test_fits(produced: Any, wanted: Any) -> None:
    assert fits(produced, wanted)


@pytest.mark.parametrize(("produced", "wanted"), BAD)
def test_does_not_fit(produced: Any, wanted: Any) -> None:
    assert not fits(produced, wanted)
