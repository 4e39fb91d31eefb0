"""The key of `unique_by_args`: one for all calls that mean the same, and another for every other."""

from dataclasses import dataclass
from datetime import date
from typing import Any

import pytest

from horsies import TaskError, TaskResult
from horsies.codec import TaskCodec
from horsies.codec.canonical import key_of_call


class Unset:
    """A default that cannot be sent."""


UNSET: Any = Unset()


@dataclass
class Point:
    x: int
    y: int = 0


def plain(a: int, b: int = 2, *, c: str = "c") -> TaskResult[None, TaskError]: ...
def positional(a: int, b: int = 2, /, c: int = 3) -> TaskResult[None, TaskError]: ...
def many(a: int = 1, *rest: int, c: int = 3, **more: int) -> TaskResult[None, TaskError]: ...
def rich(
    when: date = date(2026, 1, 2), point: Point = Point(1), tags: set[str] = frozenset("ab"), data: Any = None
) -> TaskResult[None, TaskError]: ...  # fmt: skip
def marked(a: int = UNSET) -> TaskResult[None, TaskError]: ...
def amount(x: float, scale: float = 1) -> TaskResult[None, TaskError]: ...


Call = tuple[tuple[Any, ...], dict[str, Any]]


def call(*args: Any, **kwargs: Any) -> Call:
    return args, kwargs


def key(function: Any, one: Call) -> str:
    codec = TaskCodec.from_function(function, task_name=function.__name__)
    return key_of_call(codec, codec.encode_call(*one))


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (plain, [call(1), call(a=1), call(1, 2), call(b=2, a=1), call(1, c="c"), call(c="c", b=2, a=1)]),
        (positional, [call(1), call(1, 2), call(1, 2, 3), call(1, c=3), call(1, 2, c=3)]),
        (many, [call(), call(1), call(a=1), call(c=3), call(1, c=3)]),
        (many, [call(1, 5), call(1, 5, c=3)]),
        (many, [call(1, x=1, y=2), call(y=2, x=1)]),
        (rich, [call(), call(date(2026, 1, 2)), call("2026-01-02"), call(point=Point(1, 0)), call(point={"x": 1}),
                call(tags={"b", "a"}), call(data=None)]),
        (rich, [call(data={"a": 1, "b": [{"c": 1, "d": 2}]}), call(data={"b": [{"d": 2, "c": 1}], "a": 1})]),
        (amount, [call(1), call(1.0), call(1, 1.0), call(1, scale=1)]),
    ],
)  # fmt: skip
def test_equal_calls_have_one_key(function: Any, calls: list[Call]) -> None:
    assert len({key(function, one) for one in calls}) == 1


@pytest.mark.parametrize(
    ("function", "calls"),
    [
        (plain, [call(1), call(2), call(1, 3), call(1, c="d")]),
        (positional, [call(1), call(2), call(1, 3), call(1, c=2)]),
        (many, [call(1), call(1, 1), call(1, 1, 1), call(2), call(c=1), call(x=3), call(x=1, y=2)]),
        (rich, [call(), call(data=[1, 2]), call(data=[2, 1]), call(data="1"), call(data=1), call(data=True)]),
        (marked, [call(), call(1)]),
    ],
)
def test_other_calls_have_others(function: Any, calls: list[Call]) -> None:
    assert len({key(function, one) for one in calls}) == len(calls)


def test_a_key_is_short_and_belongs_to_its_task() -> None:
    long = key(rich, call(data="x" * 100_000))
    assert long.startswith("args:")
    assert len(long) == 37
    codecs = [TaskCodec.from_function(plain, task_name=name) for name in ("one", "two")]
    assert len({key_of_call(codec, codec.encode_call((1,), {})) for codec in codecs}) == 2
