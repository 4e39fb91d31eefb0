"""Which type of value can be handed to which type of parameter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal, NewType

import pytest
from pydantic import BaseModel

from horsies.codec.fit import fits

UserId = NewType("UserId", int)


class Animal(BaseModel):
    name: str


class Dog(Animal):
    tail: bool


class AlsoAnimal(BaseModel):
    name: str


AlsoAnimal.__name__ = "Animal"


@dataclass
class Point:
    x: int


class Colour(StrEnum):
    RED = "red"


GOOD = [
    (int, int), (int, float), (bool, int), (int, Any), (Any, int), (int, object), (None, type(None)), (int, int | None),
    (int | None, int | str | None), (UserId, int), (Annotated[int, "x"], int), (list[int], list[int]),
    (list[int], list[float]), (list[bool], Sequence[int]), (list[int], list), (tuple[int, int], tuple[int, ...]),
    (tuple[int, int], Sequence[int]), (dict[str, int], dict[str, float]), (dict[str, int], Mapping[str, int]),
    (Dog, Animal), (Point, Point), (Literal["a"], str), (Literal["a"], Literal["a", "b"]), (Colour, str),
    (list[Dog], list[Animal]), (list[int] | None, list[int] | None), (list[Any], list[int]),
]  # fmt: skip
BAD = [
    (int, str), (float, int), (str, int), (int | None, int), (list[int], list[str]), (list[int], int), (int, list[int]),
    (list[int], dict[str, int]), (Animal, Dog), (Point, Animal), (Literal["a", "b"], Literal["a"]), (str, Colour),
    (datetime, int), (dict[str, int], dict[str, str]), (list[Animal], list[Dog]), (tuple[int, str], tuple[int, ...]),
]  # fmt: skip


@pytest.mark.parametrize(("produced", "wanted"), GOOD)
def test_fits(produced: Any, wanted: Any) -> None:
    assert fits(produced, wanted)


@pytest.mark.parametrize(("produced", "wanted"), BAD)
def test_does_not_fit(produced: Any, wanted: Any) -> None:
    assert not fits(produced, wanted)
