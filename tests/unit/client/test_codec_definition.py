"""What the codec refuses when a task is defined, and what it must not refuse."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import math
import sys
import types
import typing as t
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

import pytest
from pydantic import BaseModel, BeforeValidator, Field, JsonValue

from horsies.codec import TaskCodec
from horsies.errors import TaskDefinitionError
from horsies.result import TaskError, TaskResult

if t.TYPE_CHECKING:
    from decimal import Context as OnlyForCheckers

T = t.TypeVar("T")
Done = TaskResult[None, TaskError]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Mood(enum.Enum):
    SAD = "blue"
    GLAD = "glad"


class Size(enum.Enum):
    SMALL = "small"


class Level(enum.IntEnum):
    LOW = 1


class Odd(enum.Enum):
    PAIR = (1, 2)


class Cat(BaseModel):
    name: str


class Dog(BaseModel):
    bark: int


@dataclass
class Point:
    x: int


@dataclass
class Ambiguous:
    key: str | uuid.UUID


class LooseModel(BaseModel):
    key: str | uuid.UUID


class Pair(t.NamedTuple):
    left: int
    right: int


class Plain:
    """A class pydantic knows nothing about."""


def build(fn: t.Any, name: str = "job") -> TaskCodec:
    return TaskCodec.from_function(fn, task_name=name, location="tasks.py:7")


def with_parameter(annotation: t.Any) -> t.Any:
    def job(value: t.Any) -> Done: ...

    job.__annotations__ = {"value": annotation, "return": Done}
    return job


def with_result(annotation: t.Any) -> t.Any:
    def job() -> Done: ...

    job.__annotations__ = {"return": annotation}
    return job


def refusal(fn: t.Any) -> str:
    with pytest.raises(TaskDefinitionError) as caught:
        build(fn)
    text = str(caught.value)
    assert caught.value.task_name == "job"
    assert "tasks.py:7" in text
    assert "fix:" in text
    return text


class OldOptions(t.TypedDict):
    depth: int


class TestRefusedAnnotations:
    @pytest.mark.skipif(sys.version_info >= (3, 12), reason="it can be read from 3.12 on")
    @pytest.mark.parametrize("annotation", [OldOptions, list[OldOptions], OldOptions | None])
    def test_a_typed_dict_that_pydantic_cannot_read(self, annotation: t.Any) -> None:
        for fn in (with_parameter(annotation), with_result(TaskResult[annotation, TaskError])):
            assert "from typing_extensions import TypedDict" in refusal(fn)

    @pytest.mark.parametrize(
        "annotation",
        [
            str | uuid.UUID,
            str | bytes,
            bytes | uuid.UUID,
            dt.datetime | dt.date,
            Decimal | str,
            Decimal | dt.datetime,
            str | dt.timedelta,
            list[int] | set[int],
            list[int] | tuple[int, ...],
            set[int] | frozenset[int],
            Pair | list[int],
            dict[str, int] | Cat,
            dict[str, int] | Point,
            Colour | str,
            Colour | Mood,
            Level | int,
            Level | float,
            Colour | t.Literal["red"],
            t.Any | dt.date,
            # The same, further inside.
            list[str | uuid.UUID],
            dict[str, str | bytes | None],
            t.Annotated[str, Field(min_length=1)] | uuid.UUID,
            Ambiguous,
        ],
        ids=str,
    )
    def test_unions_whose_members_look_alike_in_json(self, annotation: t.Any) -> None:
        text = refusal(with_parameter(annotation))
        assert "parameter 'value'" in text
        assert "cannot tell them apart" in text

    @pytest.mark.parametrize(
        "annotation",
        [
            Callable[[], int],
            Iterable[int],
            Iterator[int],
            types.ModuleType,
            Plain,
            list[Plain],
            type[int],
            Odd,
            t.Never,
        ],
        ids=str,
    )
    def test_what_json_has_no_form_for(self, annotation: t.Any) -> None:
        assert "parameter 'value'" in refusal(with_parameter(annotation))
        assert "result type" in refusal(with_result(TaskResult[annotation, TaskError]))

    @pytest.mark.parametrize(
        "keys", [tuple[int, int], frozenset[int], Cat, str | int, Level, int | None, t.Literal[1]], ids=str
    )
    def test_keys_that_would_not_come_back(self, keys: t.Any) -> None:
        assert "parameter 'value'" in refusal(with_parameter(dict[keys, int]))

    def test_type_variables_also_inside(self) -> None:
        assert "type variable ~T" in refusal(with_parameter(T))
        assert "type variable ~T" in refusal(with_parameter(list[T]))
        assert "type variable ~T" in refusal(with_result(TaskResult[T, TaskError]))

    def test_a_parameter_without_annotation(self) -> None:
        def job(good: int, bad) -> Done: ...  # type: ignore[no-untyped-def]

        assert "parameter 'bad' has no annotation" in refusal(job)

    def test_a_name_that_does_not_exist(self) -> None:
        def job(good: int, bad: Missing) -> Done: ...  # type: ignore[name-defined]  # noqa: F821

        text = refusal(job)
        assert "parameter 'bad' cannot be resolved" in text
        assert "Missing" in text

    def test_a_name_that_only_type_checkers_see(self) -> None:
        def job(bad: OnlyForCheckers) -> Done: ...

        text = refusal(job)
        assert "parameter 'bad'" in text
        assert "TYPE_CHECKING" in text

    def test_unpacked_keyword_arguments(self) -> None:
        class Options(t.TypedDict):
            depth: int

        def job(**options: t.Unpack[Options]) -> Done: ...

        assert "Unpack" in refusal(job)

    def test_extra_keyword_arguments_are_checked_too(self) -> None:
        def job(**options: str | bytes) -> Done: ...

        assert "parameter 'options'" in refusal(job)


class TestRefusedFunctions:
    def test_return_annotations(self) -> None:
        def bare(): ...  # type: ignore[no-untyped-def]

        def other() -> int: ...  # type: ignore[empty-body]

        def unsaid() -> TaskResult: ...  # type: ignore[type-arg,empty-body]

        def wrong_error() -> TaskResult[int, ValueError]: ...  # type: ignore[empty-body]

        assert "no return annotation" in refusal(bare)
        assert "returns int, not a TaskResult" in refusal(other)
        assert "does not name the types in the TaskResult" in refusal(unsaid)
        assert "ValueError, not TaskError" in refusal(wrong_error)

    @pytest.mark.parametrize(
        ("annotation", "fix"),
        [
            (Done | None, "None"), (TaskResult[int, TaskError] | None, "int | None"),
            (TaskResult[int, TaskError] | TaskResult[str, TaskError], "int | str"),
            (t.Annotated[TaskResult[int, TaskError], "x"], "int"),
        ],
    )  # fmt: skip
    def test_a_task_result_inside_another_annotation(self, annotation: t.Any, fix: str) -> None:
        def job() -> None: ...

        job.__annotations__["return"] = annotation
        told = refusal(job)
        assert "the return annotation is " in told
        assert f"fix: write -> TaskResult[{fix}, TaskError]" in told

    @pytest.mark.parametrize("annotation", [Done | None | int, dict[str, Done], TaskResult, t.Annotated[Done, "x"]])
    def test_a_task_result_inside_the_type_of_a_parameter(self, annotation: t.Any) -> None:
        def job(value: t.Any) -> Done: ...

        job.__annotations__["value"] = annotation
        told = refusal(job)
        assert "parameter 'value': a TaskResult cannot be a part of another type" in told

    def test_generators_lambdas_and_other_callables(self) -> None:
        def generator() -> Done:  # type: ignore[misc]
            yield

        async def stream() -> Done:  # type: ignore[misc]
            yield

        assert "generator" in refusal(generator)
        assert "generator" in refusal(stream)
        assert "lambda" in refusal(lambda: None)
        assert "not a function" in refusal(functools.partial(print))
        assert "not a function" in refusal(Plain)


class TestAcceptedDefinitions:
    @pytest.mark.parametrize(
        "annotation",
        [
            int | str,
            int | float | None,
            bool | int | str,
            t.Optional[uuid.UUID],  # noqa: UP045 # the old spelling must work as well
            uuid.UUID | dt.datetime,
            dt.datetime | dt.timedelta,
            Colour | Size,
            Colour | int,
            t.Literal["a", "b"] | str,
            Cat | Dog,
            t.Annotated[Cat | Dog, "note"],
            list[int] | list[str],
            list[int] | dict[str, int],
            LooseModel,  # a model's own unions are guarded value by value
            JsonValue | None,
            t.Any,
            object,
            dict,
            list,
            Path,
            dict[uuid.UUID, list[Point]],
            dict[Colour, int],
            TaskResult[Cat, TaskError],
        ],
        ids=str,
    )
    def test_types_that_can_be_told_apart(self, annotation: t.Any) -> None:
        build(with_parameter(annotation))

    def test_types_local_to_a_function(self) -> None:
        class Local(BaseModel):
            size: int

        def job(value: Local, many: list[Local]) -> TaskResult[Local, TaskError]: ...  # type: ignore[empty-body]

        codec = build(job)
        call = codec.encode_call((Local(size=1), []), {})
        assert codec.decode_call(call.args_json, call.kwargs_json) == ((), {"value": Local(size=1), "many": []})

    def test_types_local_to_an_outer_function_still_running(self) -> None:
        class Outer(BaseModel):
            size: int

        def inner() -> TaskCodec:
            def job(value: Outer) -> Done: ...

            return build(job)

        assert inner().encode_call((Outer(size=3),), {}).kwargs_json == '{"value":{"size":3}}'

    async def test_coroutine_functions(self) -> None:
        async def job(value: int) -> TaskResult[str, TaskError]:
            return TaskResult(ok=str(value))

        codec = build(job)
        assert codec.encode_result(await job(5)) == '{"ok":"5"}'

    def test_wrapped_functions_keep_their_signature(self) -> None:
        def noisy(fn: t.Any) -> t.Any:
            @functools.wraps(fn)
            def wrapper(*args: t.Any, **kwargs: t.Any) -> t.Any:
                return fn(*args, **kwargs)

            return wrapper

        @noisy
        def job(value: int) -> Done: ...

        assert build(job).encode_call((), {"value": 1}).kwargs_json == '{"value":1}'

    def test_fields_named_like_schema_words(self) -> None:
        def job(type: str, default: int, fields: dict[str, int], config: bool, schema: str) -> Done: ...

        values = {"type": "callable", "default": 1, "fields": {"type": 2}, "config": True, "schema": "x"}
        codec = build(job)
        call = codec.encode_call((), values)
        assert codec.decode_call(None, call.kwargs_json) == ((), values)

    def test_a_parameter_named_like_a_skipped_schema_word_is_still_checked(self) -> None:
        def job(default: str | bytes) -> Done: ...

        assert "parameter 'default'" in refusal(job)

    def test_recursive_types(self) -> None:
        class Tree(BaseModel):
            children: list[Tree] = []

        def job(tree: Tree) -> Done: ...

        codec = build(job)
        tree = Tree(children=[Tree(), Tree(children=[Tree()])])
        call = codec.encode_call((tree,), {})
        assert codec.decode_call(None, call.kwargs_json)[1] == {"tree": tree}


class Money(BaseModel):
    amount: int


class Unset:
    def __repr__(self) -> str:
        return "UNSET"


UNSET: t.Any = Unset()


class TestDefaults:
    @pytest.mark.parametrize(
        ("annotation", "default", "words"),
        [
            (int, "a", "its default 'a': input should be a valid integer"), (int, True, "True: .*valid integer"),
            (int, 1.0, "valid integer"), (str, 5, "valid string"), (bool, 0, "valid boolean"), (bytes, "a", "bytes"),
            (float, "1", "number"), (list[int], 5, "a list or another"), (list[int], ["a"], "valid integer"),
            (list[int], {1}, "a list or another sequence"), (dict[str, int], [], "dictionary"), (int | str, b"", "str"),
            (dt.datetime, 5, "a datetime or its ISO 8601 text"), (Colour, "green", "red"), (t.Literal["a"], "b", "'a'"),
            (Money, "x", "Money"), (int | None, "a", "integer"),
            (int, Field(5), r"is a pydantic Field, not a value(.|\n)*write value: Annotated\[int, Field"),
        ],
        ids=str,
    )  # fmt: skip
    def test_a_default_of_a_wrong_type(self, annotation: t.Any, default: t.Any, words: str) -> None:
        def job(value: t.Any = default) -> Done: ...
        def keyword(*, value: t.Any = default) -> Done: ...
        def unnamed(value: t.Any = default, /) -> Done: ...

        for fn in (job, keyword, unnamed):
            fn.__annotations__["value"] = annotation
            with pytest.raises(TaskDefinitionError, match=f"parameter 'value': .*{words}"):
                TaskCodec.from_function(fn, task_name="job", location=None)

    @pytest.mark.parametrize(
        ("annotation", "default"),
        [
            (int, None), (int, UNSET), (float, 0), (float, math.inf), (float, math.nan), (list[int], ()),
            (tuple[int, ...], []), (set[str], ()), (dict[str, int], {}), (t.Annotated[int, Field(ge=1)], -1),
            (t.Annotated[str, Field(min_length=1)], ""), (Colour, Colour.RED), (int, Colour.RED), (t.Any, b"x"),
            (dt.date, "2026-01-31"), (Money, {"amount": 1}), (Decimal, 1), (int | None, None), (int, Level.LOW),
            (t.Annotated[int, BeforeValidator(int)], "5"), (t.Literal["a"], "a"), (bool, False),
        ],
        ids=str,
    )  # fmt: skip
    def test_a_default_that_may_stand(self, annotation: t.Any, default: t.Any) -> None:
        def job(other: int, value: t.Any = default) -> Done: ...

        job.__annotations__["value"] = annotation
        codec = TaskCodec.from_function(job, task_name="job", location=None)
        assert codec.encode_call((1,), {}).kwargs_json == '{"other":1}'
