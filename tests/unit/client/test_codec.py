"""Values through the codec: what comes back is what was sent, or the send fails and says where."""

import datetime as dt
import enum
import json
import logging
import math
import os
import subprocess
import sys
import typing as t
import uuid
import zoneinfo
from collections import OrderedDict, deque
from dataclasses import dataclass
from decimal import Decimal

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import BaseModel, ConfigDict, Field, JsonValue, PrivateAttr, SecretStr, computed_field, model_validator
from pydantic_core import core_schema
from typing_extensions import TypedDict  # pydantic wants this one below Python 3.12

from horsies.codec import (
    DecodeError,
    EncodeError,
    PayloadLimits,
    Reason,
    ResultError,
    TaskCodec,
    decode_untyped_result,
    encode_error,
    encode_untyped_call,
)
from horsies.errors import ContractCode, OperationalErrorCode
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

TYPES: list[tuple[t.Any, st.SearchStrategy[t.Any]]] = [
    (int, st.integers()),
    (float, FLOATS),
    (bool, st.booleans()),
    (str, TEXT),
    (None, st.none()),
    (bytes, st.binary()),
    (list[bytes], st.lists(st.binary())),
    (dict[bytes, bytes], st.dictionaries(st.binary(), st.binary())),
    (Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (uuid.UUID, st.uuids()),
    (dt.datetime, st.datetimes(timezones=ZONES)),
    (dt.date, st.dates()),
    (dt.time, st.times(timezones=ZONES)),
    (dt.timedelta, st.timedeltas()),
    (Colour, st.sampled_from(Colour)),
    (Level, st.sampled_from(Level)),
    (Word | None, st.none() | st.sampled_from(Word)),
    (t.Literal["a", 1, None], st.sampled_from(["a", 1, None])),
    (Order, ORDERS),
    (Point, POINTS),
    (Pair, PAIRS),
    (Options, OPTIONS),
    (list[Order | Point], st.lists(ORDERS | POINTS, max_size=3)),
    (set[str], st.sets(TEXT)),
    (frozenset[Decimal], st.frozensets(st.decimals(allow_nan=False, allow_infinity=False))),
    (set[Pair], st.sets(PAIRS)),
    (tuple[int, ...], st.lists(st.integers()).map(tuple)),
    (tuple[int, bytes, str], st.tuples(st.integers(), st.binary(), TEXT)),
    (deque[int], st.lists(st.integers()).map(deque)),
    (OrderedDict[str, int], st.dictionaries(TEXT, st.integers()).map(OrderedDict)),
    (dict[int, float], st.dictionaries(st.integers(), FLOATS)),
    (dict[uuid.UUID, dt.date], st.dictionaries(st.uuids(), st.dates())),
    (dict[dt.timedelta, bool], st.dictionaries(st.timedeltas(), st.booleans())),
    (int | str | None, st.none() | st.integers() | TEXT),
    (bool | int | float, st.booleans() | st.integers() | FLOATS),
    (uuid.UUID | dt.datetime | int, st.uuids() | st.datetimes(timezones=ZONES) | st.integers()),
    (dt.date | dt.timedelta, st.dates() | st.timedeltas()),
    (uuid.UUID | Decimal, st.uuids() | st.decimals(allow_nan=False, allow_infinity=False)),
    (list[int] | dict[str, int], st.lists(st.integers()) | st.dictionaries(TEXT, st.integers())),
    (t.Annotated[int, Field(ge=0)], st.integers(min_value=0)),
    (t.Any, JSON),
    (object, JSON),
    (JsonValue, JSON),
    (dict, st.dictionaries(TEXT, JSON)),
    (list, st.lists(JSON)),
]


class TestRoundTrip:
    @pytest.mark.parametrize(("annotation", "values"), TYPES, ids=[str(a) for a, _ in TYPES])
    def test_every_type_comes_back_as_it_was(self, annotation: t.Any, values: st.SearchStrategy[t.Any]) -> None:
        codec = codec_for(annotation, annotation)

        @settings(max_examples=40, deadline=None)
        @given(values)
        def check(value: t.Any) -> None:
            assert same(receive(codec, send(codec, value)), value)
            stored = codec.encode_result(TaskResult(ok=value))
            assert_storable(stored)
            assert same(codec.decode_result(stored).ok_value, value)

        check()

    @pytest.mark.parametrize(
        "number", [2**63, 2**64, -(2**64) - 1, 10**400, -0.0, 5e-324, 1.7976931348623157e308], ids=lambda n: str(n)[:20]
    )
    @pytest.mark.parametrize("annotation", [t.Any, int | float])
    def test_numbers_at_the_edges(self, annotation: t.Any, number: float) -> None:
        codec = codec_for(annotation)
        assert same(receive(codec, send(codec, number)), number)

    @pytest.mark.parametrize(
        "text", ["", "ärger", "日本語", "🐎", "\u2028", "\x1b[31m", "\\u0000", "NaN", "Infinity", '"']
    )
    def test_odd_but_honest_text(self, text: str) -> None:
        for annotation in (str, t.Any, dict[str, str]):
            codec = codec_for(annotation)
            value = {text: text} if annotation == dict[str, str] else text
            assert receive(codec, send(codec, value)) == value

    def test_bytes_are_base64(self) -> None:
        assert send(codec_for(bytes), b"\xff\xfe\x00") == '"__4A"'

    def test_lax_at_send(self) -> None:
        assert send(codec_for(int), "5") == "5"
        assert send(codec_for(Order), {"id": "7"}) == '{"id":7,"items":[],"note":null,"score":null}'
        assert send(codec_for(dt.date), "2026-01-31") == '"2026-01-31"'

    def test_the_repeated_hour_of_a_clock_change(self) -> None:
        codec = codec_for(dt.datetime)
        berlin = zoneinfo.ZoneInfo("Europe/Berlin")
        for fold, offset in ((0, 2), (1, 1)):
            moment = dt.datetime(2024, 10, 27, 2, 30, tzinfo=berlin, fold=fold)
            back = receive(codec, send(codec, moment))
            assert back.utcoffset() == dt.timedelta(hours=offset)
            assert back.replace(tzinfo=None) == moment.replace(tzinfo=None, fold=0)

    def test_class_tags_are_inert(self) -> None:
        hostile = {"__class__": "os.system", "py/object": "subprocess.Popen", "$type": "x", "args": ["true"]}
        codec = codec_for(t.Any)
        assert receive(codec, send(codec, hostile)) == hostile
        codec = codec_for(Order)
        assert receive(codec, '{"id":1,"__class__":"os.system"}') == Order(id=1)


class TestModels:
    def test_computed_fields_are_not_sent(self) -> None:
        class Square(BaseModel, extra="forbid"):
            side: int

            @computed_field
            @property
            def area(self) -> int:
                return self.side**2

        codec = codec_for(Square)
        assert receive(codec, send(codec, Square(side=3))).area == 9

    def test_aliases(self) -> None:
        class Aliased(BaseModel):
            order_id: int = Field(alias="orderId")

        codec = codec_for(Aliased)
        assert receive(codec, send(codec, Aliased(orderId=1))) == Aliased(orderId=1)

    def test_private_attributes_are_not_data(self) -> None:
        class Stamped(BaseModel):
            id: int
            _made: uuid.UUID = PrivateAttr(default_factory=uuid.uuid4)

        codec = codec_for(Stamped)
        assert receive(codec, send(codec, Stamped(id=1))).id == 1

    def test_classes_without_equality_compare_by_their_text(self) -> None:
        @dataclass(eq=False)
        class Blind:
            x: int

        codec = codec_for(list[Blind])
        assert receive(codec, send(codec, [Blind(1)]))[0].x == 1

    def test_also_classes_of_their_own_making(self) -> None:
        class Handle:
            def __init__(self, number: int) -> None:
                self.number = number

            @classmethod
            def __get_pydantic_core_schema__(cls, source: t.Any, handler: t.Any) -> t.Any:
                return core_schema.no_info_plain_validator_function(
                    lambda value: value if isinstance(value, cls) else cls(value),
                    serialization=core_schema.plain_serializer_function_ser_schema(lambda handle: handle.number),
                )

        codec = codec_for(dict[str, Handle])
        assert receive(codec, send(codec, {"a": Handle(5)}))["a"].number == 5

        class Lossy(Handle):
            def __init__(self, number: int) -> None:
                super().__init__(number + 1)

        assert refused(codec_for(Lossy), Lossy(5)).reason is Reason.NOT_EXACT

    @pytest.mark.parametrize("mode", ["null", "constants"])
    @pytest.mark.parametrize(("number", "reason"), [(NAN, Reason.NAN), (INF, Reason.INFINITY), (-INF, Reason.INFINITY)])
    def test_a_models_own_config_cannot_smuggle_nan(self, mode: t.Any, number: float, reason: Reason) -> None:
        class Loose(BaseModel):
            model_config = ConfigDict(ser_json_inf_nan=mode)
            score: float | None

        error = refused(codec_for(list[Loose]), [Loose(score=1), Loose(score=number)])
        assert error.reason is reason
        assert error.path == "value[1].score"

    def test_what_a_model_would_lose(self) -> None:
        class Child(Order):
            extra: int = 1

        class Hidden(BaseModel):
            shown: int
            hidden: int = Field(default=0, exclude=True)

        assert refused(codec_for(Order), Child(id=1)).reason is Reason.NOT_EXACT
        assert refused(codec_for(SecretStr), SecretStr("hunter2")).reason is Reason.NOT_EXACT
        error = refused(codec_for(Hidden), Hidden(shown=1, hidden=2))
        assert (error.reason, error.path) == (Reason.NOT_EXACT, "value.hidden")
        receive(codec_for(Hidden), send(codec_for(Hidden), Hidden(shown=1)))

    def test_a_model_that_was_never_validated(self) -> None:
        error = refused(codec_for(Order), Order.model_construct(id="5"))
        assert (error.reason, error.path) == (Reason.NOT_EXACT, "value.id")

    def test_the_secret_is_not_in_the_message(self) -> None:
        assert "hunter2" not in str(refused(codec_for(SecretStr), SecretStr("hunter2")))

    def test_validators_and_equality_that_raise(self) -> None:
        class Explosive(BaseModel):
            x: int

            @model_validator(mode="after")
            def explode(self) -> t.Self:
                raise RuntimeError("boom")

        class Rude:
            def __eq__(self, other: object) -> bool:
                raise RuntimeError("no")

            __hash__ = None  # type: ignore[assignment]

        with pytest.raises(EncodeError, match="boom"):
            codec_for(Explosive).encode_call(({"x": 1},), {})
        with pytest.raises(DecodeError, match="boom"):
            receive(codec_for(Explosive), '{"x":1}')
        assert refused(codec_for(t.Any), Rude()).reason is Reason.UNSERIALIZABLE


def nested(levels: int) -> list[t.Any]:
    value: list[t.Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


class TestStrictJson:
    @pytest.mark.parametrize("annotation", [t.Any, JsonValue, Order, dict[str, t.Any]], ids=str)
    @pytest.mark.parametrize(
        ("text", "reason"), [("a\0b", Reason.NUL), ("a\ud800", Reason.SURROGATE), ("\udfff", Reason.SURROGATE)]
    )
    def test_text_that_postgres_cannot_store(self, annotation: t.Any, text: str, reason: Reason) -> None:
        value = Order.model_construct(id=1, note=text, items=[]) if annotation is Order else {"note": text}
        error = refused(codec_for(annotation), value)
        assert error.reason is reason
        assert error.path == "value.note"
        assert ("NUL" if reason is Reason.NUL else "surrogate") in str(error)

    @pytest.mark.parametrize(("key", "reason"), [("a\0", Reason.NUL), ("\ud800", Reason.SURROGATE)])
    @pytest.mark.parametrize("annotation", [t.Any, dict[str, int]])
    def test_keys_too(self, annotation: t.Any, key: str, reason: Reason) -> None:
        error = refused(codec_for(annotation), {key: 1})
        assert error.reason is reason
        assert "a key contains" in str(error)

    def test_a_real_nul_beside_an_escaped_one(self) -> None:
        codec = codec_for(str)
        assert receive(codec, send(codec, "\\u0000")) == "\\u0000"
        assert refused(codec, "\\u0000\0").reason is Reason.NUL
        assert refused(codec, "\\\0").reason is Reason.NUL

    @pytest.mark.parametrize("annotation", [float, t.Any, JsonValue, list[float], Point, float | None], ids=str)
    @pytest.mark.parametrize(("number", "reason"), [(NAN, Reason.NAN), (INF, Reason.INFINITY), (-INF, Reason.INFINITY)])
    def test_numbers_that_json_has_not(self, annotation: t.Any, number: float, reason: Reason) -> None:
        value = {list[float]: [0.0, number], Point: Point(number)}.get(annotation, number)
        error = refused(codec_for(annotation), value)
        assert error.reason is reason
        assert ("NaN" if reason is Reason.NAN else "Infinity") in str(error)

    def test_decimal_nan(self) -> None:
        assert refused(codec_for(Decimal), Decimal("NaN")).reason is Reason.NAN

    def test_an_integer_no_reader_accepts(self) -> None:
        for annotation in (int, t.Any):
            error = refused(codec_for(annotation), 10**5000)
            assert error.reason is Reason.NOT_EXACT
            assert "number out of range" in str(error)

    @pytest.mark.parametrize("annotation", [t.Any, list, JsonValue], ids=str)
    @pytest.mark.parametrize("levels", [250, 300, 100_000])
    def test_too_deep(self, annotation: t.Any, levels: int) -> None:
        assert refused(codec_for(annotation), nested(levels)).reason is Reason.TOO_DEEP

    def test_deep_enough(self) -> None:
        codec = codec_for(t.Any)
        for levels in range(150, 210):
            try:
                text = send(codec, nested(levels))
            except EncodeError as error:
                assert error.reason is Reason.TOO_DEEP  # noqa: PT017 # either outcome is fine, but no other
                assert levels > 190
            else:
                assert receive(codec, text) == nested(levels)

    def test_circular(self) -> None:
        loop: list[t.Any] = []
        loop.append({"again": loop})
        for annotation in (t.Any, JsonValue, list):
            error = refused(codec_for(annotation), loop)
            assert error.reason is Reason.CIRCULAR
            assert error.path.startswith("value[0].again")

    def test_the_same_object_twice_is_no_circle(self) -> None:
        shared = [1]
        assert send(codec_for(t.Any), [shared, shared]) == "[[1],[1]]"
        assert refused(codec_for(t.Any), [shared, shared, NAN]).reason is Reason.NAN

    @pytest.mark.parametrize("key", [1, 1.5, True, None, (1, 2), dt.date(2020, 1, 1)], ids=repr)
    def test_keys_that_are_not_strings(self, key: t.Any) -> None:
        for annotation in (t.Any, dict):
            error = refused(codec_for(annotation), {"a": 1, key: 2})
            assert error.reason is Reason.KEY_NOT_STRING
            assert repr(key) in str(error)

    @pytest.mark.parametrize(
        "value",
        [(1,), {1}, b"x", dt.date(2020, 1, 1), Decimal("1"), uuid.UUID(int=1), Order(id=1), Colour.RED, Point(1.0)],
        ids=repr,
    )
    def test_untyped_values_must_be_json(self, value: t.Any) -> None:
        error = refused(codec_for(t.Any), {"deep": [value]})
        assert error.reason is Reason.NOT_EXACT
        assert error.path == "value.deep[0]"
        assert refused(codec_for(JsonValue), {"deep": [value]}).reason is Reason.INVALID

    def test_objects_without_a_json_form(self) -> None:
        error = refused(codec_for(t.Any), {"a": object()})
        assert error.reason is Reason.UNSERIALIZABLE

    def test_wrong_type_says_where(self) -> None:
        error = refused(codec_for(Order), {"id": 1, "items": [{"name": "x", "price": "cheap"}]})
        assert error.reason is Reason.INVALID
        assert error.path == "value.items[0].price"
        assert "decimal" in str(error)

    def test_too_large(self) -> None:
        def job(small: str, big: str) -> Done: ...

        codec = TaskCodec.from_function(job, task_name="job", location=None)
        limits = PayloadLimits(warn_bytes=100, max_bytes=1_000)
        with pytest.raises(EncodeError) as caught:
            codec.encode_call(("x", "y" * 2_000), {}, limits=limits)
        assert caught.value.reason is Reason.TOO_LARGE
        assert caught.value.parameter == "big"
        with pytest.raises(EncodeError):  # bytes count, not characters
            codec.encode_call(("x", "ä" * 600), {}, limits=limits)

    def test_fifty_megabytes(self) -> None:
        assert refused(codec_for(str), "x" * 50_000_000).reason is Reason.TOO_LARGE
        seven = "x" * 7_000_000
        assert receive(codec_for(str), send(codec_for(str), seven)) == seven

    def test_large_warns_once_per_task(self, caplog: pytest.LogCaptureFixture) -> None:
        def job(value: str) -> Done: ...

        codec = TaskCodec.from_function(job, task_name=f"warns-{uuid.uuid4()}", location=None)
        limits = PayloadLimits(warn_bytes=100, max_bytes=1_000)
        with caplog.at_level(logging.WARNING, logger="horsies"):
            codec.encode_call(("x" * 50,), {}, limits=limits)
            assert not caplog.records
            for _ in range(3):
                codec.encode_call(("x" * 500,), {}, limits=limits)
        assert len(caplog.records) == 1
        assert "warns-" in caplog.text


class TestCalls:
    def job(self) -> TaskCodec:
        def job(order: int, note: str = "none", *, copy: bool = False) -> Done: ...

        return TaskCodec.from_function(job, task_name="job", location=None)

    def test_call_styles_give_the_same_text(self) -> None:
        codec = self.job()
        calls = [
            codec.encode_call((1, "x"), {"copy": True}),
            codec.encode_call((1,), {"copy": True, "note": "x"}),
            codec.encode_call((), {"copy": True, "note": "x", "order": 1}),
        ]
        assert {(c.args_json, c.kwargs_json) for c in calls} == {(None, '{"order":1,"note":"x","copy":true}')}

    def test_defaults_stay_with_the_worker(self) -> None:
        codec = self.job()
        call = codec.encode_call((1,), {})
        assert call.kwargs_json == '{"order":1}'
        assert codec.decode_call(None, call.kwargs_json) == ((), {"order": 1})

    def test_nothing_to_say(self) -> None:
        def job() -> Done: ...

        codec = TaskCodec.from_function(job, task_name="job", location=None)
        call = codec.encode_call((), {})
        assert (call.args_json, call.kwargs_json) == (None, None)
        assert codec.decode_call(None, None) == ((), {})
        assert codec.decode_call("[]", "{}") == ((), {})

    @pytest.mark.parametrize(
        ("args", "kwargs", "reason", "told"),
        [
            ((), {}, Reason.MISSING, "missing required argument 'order'"),
            ((), {"copy": True}, Reason.MISSING, "missing required argument 'order'"),
            ((1, "x", True), {}, Reason.UNEXPECTED, "takes 2 positional arguments but 3 were given"),
            ((1,), {"order": 2}, Reason.UNEXPECTED, "multiple values for argument 'order'"),
            ((1,), {"ordr": 2}, Reason.UNEXPECTED, "unexpected keyword argument 'ordr' (it takes: order, note, copy)"),
        ],
    )
    def test_wrong_arguments(self, args: t.Any, kwargs: t.Any, reason: Reason, told: str) -> None:
        with pytest.raises(EncodeError) as caught:
            self.job().encode_call(args, kwargs)
        assert caught.value.reason is reason
        assert told in str(caught.value)

    def test_positional_only_and_variadic(self) -> None:
        def job(a: int, b: bytes = b"", /, c: int = 0, *rest: dt.date, d: int = 0, **more: bytes) -> Done: ...

        codec = TaskCodec.from_function(job, task_name="job", location=None)
        day = dt.date(2020, 1, 2)
        calls: list[tuple[tuple[t.Any, ...], dict[str, t.Any]]] = [
            ((1,), {}),
            ((1, b"\xff"), {"c": 3}),
            ((1, b"\xff", 3, day, day), {"d": 4, "z": b"\xfe", "a": b"an extra, not the first"}),
        ]
        for args, kwargs in calls:
            call = codec.encode_call(args, kwargs)
            assert codec.decode_call(call.args_json, call.kwargs_json) == (args, kwargs)
        assert codec.encode_call((1, b"\xff"), {"c": 3}) == codec.encode_call((1, b"\xff", 3), {})
        assert codec.encode_call((1,), {}).args_json == "[1]"
        with pytest.raises(EncodeError, match="parameter 'rest' at rest"):
            codec.encode_call((1, b"", 3, day, "not a day"), {})
        with pytest.raises(EncodeError, match="missing required argument 'a'"):
            codec.encode_call((), {"c": 1})
        for key in ("/b", "*"):
            with pytest.raises(EncodeError, match="unexpected keyword"):
                codec.encode_call((1,), {key: b""})
        with pytest.raises(DecodeError, match="unexpected keyword"):
            codec.decode_call("[1]", '{"*":["2020-01-01"]}')

    def test_sets_are_written_in_one_order(self) -> None:
        class Bag(BaseModel):
            words: set[str] = Field(alias="w")
            inner: dict[str, frozenset[tuple[str, int]]] = {}

        words = {f"word{n}" for n in range(50)}
        assert json.loads(send(codec_for(set[str]), words)) == sorted(words)
        bag = Bag(w=words, inner={"a": frozenset([("b", 1), ("a", 2)])})
        text = send(codec_for(list[Bag | None]), [None, bag])
        assert json.loads(text) == [None, {"w": sorted(words), "inner": {"a": [["a", 2], ["b", 1]]}}]

    def test_sets_are_written_in_the_same_order_by_other_processes(self) -> None:
        program = """
from horsies.codec import TaskCodec
from horsies.result import TaskResult, TaskError
def job(value: set[str]) -> TaskResult[None, TaskError]: ...
codec = TaskCodec.from_function(job, task_name="job", location=None)
print(codec.encode_call(({f"word{n}" for n in range(20)},), {}).kwargs_json)
"""
        outputs = {
            subprocess.run(
                [sys.executable, "-c", program],
                env={**os.environ, "PYTHONHASHSEED": seed},
                capture_output=True,
                check=True,
            ).stdout
            for seed in ("1", "2")
        }
        assert len(outputs) == 1

    def test_an_upstream_result_as_argument(self) -> None:
        codec = codec_for(TaskResult[list[dt.date], TaskError])
        fine: TaskResult[t.Any, TaskError] = TaskResult(ok=[dt.date(2020, 1, 2)])
        bad: TaskResult[t.Any, TaskError] = TaskResult(err=TaskError("SMTP_DOWN", "no", {"n": 1}, retry_after_ms=5))
        for result in (fine, bad):
            assert receive(codec, send(codec, result)) == result
        assert send(codec, fine) == '{"ok":["2020-01-02"]}'
        for hostile in ('{"ok":1}', '{"ok":[],"err":{"error_code":"X"}}', "{}", '{"err":{}}', "[]"):
            with pytest.raises(DecodeError):
                receive(codec, hostile)


class TestReading:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            ('{"value":1', Reason.MALFORMED),
            ("", Reason.MALFORMED),
            ("[1]", Reason.MALFORMED),
            ("null", Reason.MALFORMED),
            ("{}", Reason.MISSING),
            ('{"value":1,"other":2}', Reason.UNEXPECTED),
            ('{"value":NaN}', Reason.MALFORMED),
            ('{"value":[-Infinity]}', Reason.MALFORMED),
            ('{"value":1e400}', Reason.INFINITY),
            ('{"value":[1' + "0" * 400 + ".0]}", Reason.INFINITY),
            ('{"value":' + "[" * 100_000 + "]" * 100_000 + "}", Reason.TOO_DEEP),
        ],
        ids=lambda value: str(value)[:30],
    )
    def test_bad_rows(self, text: str, reason: Reason) -> None:
        with pytest.raises(DecodeError) as caught:
            codec_for(t.Any).decode_call(None, text)
        assert caught.value.reason is reason

    def test_typed_infinity(self) -> None:
        for text in ('{"value":1e400}', '{"value":Infinity}'):
            with pytest.raises(DecodeError):
                codec_for(float).decode_call(None, text)

    def test_text_that_only_looks_like_it(self) -> None:
        assert receive(codec_for(t.Any), '["NaN","Infinity"]') == ["NaN", "Infinity"]

    def test_the_last_of_two_equal_keys_wins(self) -> None:
        assert codec_for(int).decode_call(None, '{"value":1,"value":2}') == ((), {"value": 2})

    def test_the_parameter_is_named(self) -> None:
        with pytest.raises(DecodeError, match=r"parameter 'value' at value\.items"):
            receive(codec_for(Order), '{"id":1,"items":5}')

    def test_positional_arguments_from_a_sender_by_name(self) -> None:
        def job(when: dt.date, raw: bytes, *, flag: bool = False) -> Done: ...

        codec = TaskCodec.from_function(job, task_name="job", location=None)
        call = encode_untyped_call((dt.date(2020, 1, 2), b"\xff"), {"flag": True}, task_name="job")
        expected = {"when": dt.date(2020, 1, 2), "raw": b"\xff", "flag": True}
        assert codec.decode_call(call.args_json, call.kwargs_json) == ((), expected)
        for args, kwargs in (("[1,2,3]", None), ('["2020-01-02"]', '{"when":"2020-01-02"}'), ("{}", None), ("[", None)):
            with pytest.raises(DecodeError):
                codec.decode_call(args, kwargs)


class TestUntypedCalls:
    def test_by_run_time_type(self) -> None:
        day = dt.date(2020, 1, 2)
        call = encode_untyped_call(
            (), {"order": Order(id=1), "at": Point(1.5, b"\xff", day), "s": {"b", "a"}, "c": Colour.RED}, task_name="x"
        )
        assert json.loads(call.kwargs_json or "") == {
            "order": {"id": 1, "items": [], "note": None, "score": None},
            "at": {"x": 1.5, "raw": "_w==", "when": "2020-01-02"},
            "s": ["a", "b"],
            "c": "red",
        }
        assert encode_untyped_call((), {}, task_name="x") == encode_untyped_call((), {}, task_name="y")

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            ("\0", Reason.NUL),
            ({"k\0": 1}, Reason.NUL),
            (["\ud800"], Reason.SURROGATE),
            (NAN, Reason.NAN),
            (Point(INF), Reason.INFINITY),
            ({1: 2}, Reason.KEY_NOT_STRING),
            (object(), Reason.UNSERIALIZABLE),
            (10**5000, Reason.UNSERIALIZABLE),
            (nested(100_000), Reason.TOO_DEEP),
            ("x" * 9_000_000, Reason.TOO_LARGE),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_refusals_name_the_argument(self, value: t.Any, reason: Reason) -> None:
        with pytest.raises(EncodeError) as caught:
            encode_untyped_call((), {"fine": 1, "bad": value}, task_name="x")
        assert (caught.value.reason, caught.value.parameter) == (reason, "bad")
        with pytest.raises(EncodeError) as caught:
            encode_untyped_call((1, value), {}, task_name="x")
        assert (caught.value.reason, caught.value.parameter) == (reason, "args[1]")

    def test_a_value_that_repeats_itself_is_searched_once(self) -> None:
        bomb: list[t.Any] = []
        for _ in range(100):
            bomb = [bomb, bomb]
        with pytest.raises(EncodeError) as caught:
            encode_untyped_call((), {"bomb": bomb, "bad": "\0"}, task_name="x")
        assert caught.value.parameter == "bad"

    @given(st.dictionaries(TEXT, JSON))
    def test_any_json_passes_unchanged(self, value: dict[str, t.Any]) -> None:
        call = encode_untyped_call((), {"value": value}, task_name="x")
        assert same(codec_for(t.Any).decode_call(None, call.kwargs_json)[1]["value"], value)


class BadRepr:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class TestResults:
    @pytest.mark.parametrize(
        ("annotation", "value"),
        [
            (int, "5"),
            (int, True),
            (int, None),
            (str, 5),
            (None, 0),
            (Order, {"id": 1}),
            (list[Order], [{"id": 1}]),
            (list[int], (1,)),
            (tuple[int, ...], [1]),
            (dt.date, "2020-01-01"),
            (Colour, "red"),
            (Decimal, 1),
            (t.Annotated[int, Field(ge=0)], -1),
            (JsonValue, {1}),
        ],
    )
    def test_a_broken_promise(self, annotation: t.Any, value: t.Any) -> None:
        codec = codec_for(int, annotation)
        with pytest.raises(ResultError) as caught:
            codec.encode_result(TaskResult(ok=value))
        assert caught.value.code is ContractCode.RETURN_TYPE_MISMATCH
        assert "the return value" in str(caught.value)
        outcome = codec.encode_outcome(TaskResult(ok=value))
        assert outcome.error is not None
        assert outcome.error.error_code is ContractCode.RETURN_TYPE_MISMATCH
        assert codec.decode_result(outcome.json).err == outcome.error

    @pytest.mark.parametrize("returned", [None, 5, TaskError("X"), BadRepr(), TaskResult(err="no"), nested(100_000)])
    def test_not_a_result_at_all(self, returned: t.Any) -> None:
        outcome = codec_for(int, int).encode_outcome(returned)
        assert outcome.error is not None
        assert outcome.error.error_code is ContractCode.RETURN_TYPE_MISMATCH
        assert_storable(outcome.json)

    @pytest.mark.parametrize(
        ("annotation", "value", "reason"),
        [
            (str, "a\0", Reason.NUL),
            (str, "\ud800", Reason.SURROGATE),
            (float, NAN, Reason.NAN),
            (t.Any, {"a": INF}, Reason.INFINITY),
            (t.Any, object(), Reason.UNSERIALIZABLE),
            (t.Any, {1: 2}, Reason.KEY_NOT_STRING),
            (t.Any, nested(100_000), Reason.TOO_DEEP),
            (str, "x" * 9_000_000, Reason.TOO_LARGE),
            (t.Any, (1,), Reason.NOT_EXACT),
        ],
        ids=lambda value: type(value).__name__,
    )
    def test_a_value_that_cannot_be_stored(self, annotation: t.Any, value: t.Any, reason: Reason) -> None:
        codec = codec_for(int, annotation)
        with pytest.raises(ResultError) as caught:
            codec.encode_result(TaskResult(ok=value))
        assert caught.value.code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
        assert caught.value.reason is reason
        outcome = codec.encode_outcome(TaskResult(ok=value))
        assert outcome.error is not None
        assert outcome.error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR
        assert_storable(outcome.json)
        assert len(outcome.json) < 10_000

    def test_allowed_conversions(self) -> None:
        assert codec_for(int, float).encode_result(TaskResult(ok=1)) == '{"ok":1.0}'
        trimmed = t.Annotated[str, Field(pattern="a"), "note"]
        assert codec_for(int, trimmed).encode_result(TaskResult(ok="a")) == '{"ok":"a"}'

    def test_errors_pass_through(self) -> None:
        codec = codec_for(int, int)
        error = TaskError("SMTP_DOWN", "no route", {"host": "mx"}, retry_after_ms=1500)
        outcome = codec.encode_outcome(TaskResult(err=error))
        assert outcome.error is error
        assert json.loads(outcome.json) == {
            "err": {"error_code": "SMTP_DOWN", "message": "no route", "data": {"host": "mx"}, "retry_after_ms": 1500}
        }
        assert codec.decode_result(outcome.json) == decode_untyped_result(outcome.json) == TaskResult(err=error)

    def test_an_exception_beyond_imagination(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def out_of_memory(*_: object, **__: object) -> t.NoReturn:
            raise MemoryError

        monkeypatch.setattr(TaskCodec, "encode_result", out_of_memory)
        outcome = codec_for(int, int).encode_outcome(TaskResult(ok=1))
        assert outcome.error is not None
        assert outcome.error.error_code is OperationalErrorCode.WORKER_SERIALIZATION_ERROR

    def test_rows_written_by_hand(self) -> None:
        codec = codec_for(int, dt.date)
        assert codec.decode_result(' { "ok" : "2020-01-02" } ').ok_value == dt.date(2020, 1, 2)
        assert codec.decode_result(' { "err" : {"error_code": "X"} } ').err == TaskError("X")
        assert (
            codec.decode_result('{"err":{"error_code":"TASK_TIMEOUT","new":1}}').err_value.error_code == "TASK_TIMEOUT"
        )
        for text in ("{}", "null", "", '{"ok":5}', '{"err":5}', '{"err":{}}', '{"ok":null,"err":null}', '{"other":1}'):
            with pytest.raises(DecodeError):
                codec.decode_result(text)

    def test_untyped_results(self) -> None:
        assert decode_untyped_result('{"ok":{"a":[1,null]}}').ok_value == {"a": [1, None]}
        for text in (
            "{}",
            "[]",
            '{"ok":1,"err":{"error_code":"X"}}',
            '{"ok":NaN}',
            '{"ok":1e400}',
            '{"err":{"error_code":""}}',
        ):
            with pytest.raises(DecodeError):
                decode_untyped_result(text)


ANY_TEXT = st.text(st.characters())
HOSTILE = st.recursive(
    st.none()
    | ANY_TEXT
    | st.floats()
    | st.integers()
    | st.binary()
    | st.builds(BadRepr)
    | st.dates()
    | st.integers(5000, 5001).map(lambda digits: 10**digits),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(ANY_TEXT | st.integers() | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=8,
)


class TestEncodeError:
    @settings(deadline=None)
    @given(ANY_TEXT.filter(bool), ANY_TEXT, HOSTILE)
    def test_hostile_errors_are_always_storable(self, code: str, message: str, data: t.Any) -> None:
        text = encode_error(TaskError(code, message, data))
        assert_storable(text)
        back = decode_untyped_result(text).err_value
        assert back.error_code

    @given(st.text(st.characters(exclude_categories=["C"])), JSON)
    def test_honest_errors_are_kept_exactly(self, message: str, data: t.Any) -> None:
        error = TaskError("X", message, data)
        assert decode_untyped_result(encode_error(error)).err == error

    def test_text_about_nul_is_not_a_nul(self) -> None:
        error = TaskError("X", "\\u0000", {"note": "\\u0000"})
        assert decode_untyped_result(encode_error(error)).err == error

    def test_what_replaces_what(self) -> None:
        error = TaskError("X", "nul \0 half \ud800 bell \x07 esc \x1b[31m\ttab\nline", {"k\0": "v\ud800\0"})
        back = decode_untyped_result(encode_error(error)).err_value
        assert back.message == "nul � half � bell \\x07 esc \\x1b[31m\ttab\nline"
        assert back.data == {"k�": "v��"}

    def test_unserialisable_data_is_shown(self) -> None:
        back = decode_untyped_result(encode_error(TaskError("X", "", {"a": BadRepr(), "n": NAN}))).err_value
        assert back.data == {"a": "<BadRepr; its repr raised RuntimeError>", "n": "NaN"}

    def test_sizes_are_bounded(self) -> None:
        trace = "first line\n" + "x" * 5_000_000 + "\nlast line"
        error = TaskError("X" * 10_000, "m" * 1_000_000, {"traceback": trace, "many": list(range(1_000_000))})
        text = encode_error(error)
        assert len(text) < 100_000
        back = decode_untyped_result(text).err_value
        assert back.message.startswith("mmm")
        assert "more characters" in back.message
        assert back.data["traceback"].startswith("first line")
        assert back.data["traceback"].endswith("last line")
        assert back.data["many"][:3] == [0, 1, 2]

    @pytest.mark.parametrize(
        "data", [nested(100_000), nested(230), 10**5000, {"x": {"y": "z" * 300_000}}], ids=lambda d: str(type(d))
    )
    def test_data_beyond_every_bound(self, data: t.Any) -> None:
        text = encode_error(TaskError("X", "kept", data))
        assert_storable(text)
        assert decode_untyped_result(text).err_value.message == "kept"

    def test_data_at_the_edge_of_the_readers_depth(self) -> None:
        for levels in range(190, 260):
            text = encode_error(TaskError("X", "kept", nested(levels)))
            assert decode_untyped_result(text).err_value.message == "kept"

    def test_circular_data(self) -> None:
        loop: dict[str, t.Any] = {}
        loop["self"] = loop
        assert_storable(encode_error(TaskError("X", "", loop)))

    def test_a_message_that_is_no_text(self) -> None:
        back = decode_untyped_result(encode_error(TaskError("X", t.cast("str", BadRepr())))).err_value
        assert "BadRepr" in back.message
