"""Values through the codec: what comes back is what was sent, or the send fails and says where."""

import datetime as dt
import ipaddress
import json
import typing as t
import uuid
import zoneinfo
from collections import OrderedDict, defaultdict, deque
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    PlainSerializer,
    PrivateAttr,
    SecretStr,
    StringConstraints,
    computed_field,
    model_validator,
)
from pydantic_core import core_schema
from typing_extensions import TypedDict  # pydantic wants this one below Python 3.12

from horsies.codec import (
    DecodeError,
    EncodeError,
    Reason,
    ResultError,
)
from horsies.result import TaskError, TaskResult
from tests.support.codecs import (
    FLOATS,
    INF,
    JSON,
    NAN,
    OPTIONS,
    ORDERS,
    PAIRS,
    POINTS,
    TEXT,
    ZONES,
    Colour,
    Level,
    Options,
    Order,
    Pair,
    Point,
    Word,
    assert_storable,
    codec_for,
    receive,
    refused,
    same,
    send,
)


@dataclass
class Reading:
    """A field of each kind that pydantic would convert."""

    number: int = 1
    scale: float = 1.0
    choice: t.Literal[1, 2] = 1
    level: Level = Level.LOW
    rows: list[int] = field(default_factory=list[int])
    by_id: dict[int, int] = field(default_factory=dict[int, int])
    price: Decimal = Decimal(1)
    at: dt.datetime = dt.datetime(2026, 1, 31)
    options: Options = field(default_factory=Options)


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
    (Reading, st.builds(Reading, number=st.integers(), scale=FLOATS, level=st.sampled_from(Level))),
    (ipaddress.IPv4Address, st.ip_addresses(v=4)),
    (t.Literal[True, 2, "x"], st.sampled_from([True, 2, "x"])),
    (t.Literal[Level.LOW, "x"], st.sampled_from([Level.LOW, "x"])),
    (Decimal | int, st.decimals(allow_nan=False, allow_infinity=False) | st.integers()),
    (list[Colour | None], st.lists(st.none() | st.sampled_from(Colour))),
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

    @pytest.mark.parametrize(
        ("annotation", "value", "at"),
        [
            (int, "5", "value"), (int, 5.0, "value"), (int, True, "value"), (int, b"5", "value"),
            (int, Decimal(5), "value"),
            (str, b"x", "value"), (str, bytearray(b"x"), "value"), (float, "5", "value"), (float, True, "value"),
            (bool, 1, "value"), (bool, "yes", "value"), (bytes, "eHg=", "value"), (bytes, bytearray(b"x"), "value"),
            (int | None, "5", "value"), (int | float, True, "value"), (t.Annotated[int, Field(ge=0)], "5", "value"),
            (list[int], [1, "2"], "value[1]"), (list[int], (1, "2"), "value[1]"), (tuple[int, ...], ["2"], "value[0]"),
            (tuple[str, int], ("a", True), "value[1]"), (set[int], {1, "2"}, "value"), (set[int], ["2"], "value"),
            (frozenset[str], {b"a"}, "value"), (dict[str, int], {"a": "1"}, "value.a"),
            (dict[int, str], {"1": "a"}, "value"),
            (dict[str, list[int]], {"a": [1, 2.0]}, "value.a[1]"), (Options, {"depth": "1"}, "value.depth"),
            (float, 2**53 + 1, "value"), (list[float], [2**60 + 1], "value[0]"),
            (dt.datetime, 5, "value"), (dt.datetime, 5.5, "value"),
            (list[dt.datetime], ["2026-01-31T12:00", 5], "value[1]"),
            (dt.datetime, dt.date(2026, 1, 31), "value"), (dt.date, dt.datetime(2026, 1, 31), "value"),
            (dt.timedelta, 5, "value"), (dt.timedelta, True, "value"), (dt.time, 5, "value"), (Decimal, 1.1, "value"),
            (dict[int, str], {True: "a"}, "value"), (dict[int, str], {1.0: "a"}, "value"),
            (dict[bool, int], {1: 1}, "value"), (dict[float, int], {True: 1}, "value"),
            (t.Literal[1, 2], True, "value"), (t.Literal[1, 2], 1.0, "value"), (t.Literal[True], 1, "value"),
            (t.Literal[Level.LOW], True, "value"), (t.Literal["a", 1, None], True, "value"),
            (Level, True, "value"), (Level, 1.0, "value"), (Level, "1", "value"), (Colour, 2.0, "value"),
            (Word, b"yes", "value"),
            (Point, {"x": "1"}, "value.x"), (Point, {"x": True}, "value.x"), (list[Point], [{"x": "1"}], "value[0].x"),
            (Pair, (True, b""), "value[0]"), (t.Sequence[int], [True], "value[0]"),
            (defaultdict[str, int], {"a": "1"}, "value.a"),
            (TaskResult[float, TaskError], TaskResult(ok=2**53 + 1), "value.ok"),
        ],
    )  # fmt: skip
    def test_a_plain_value_is_not_converted_into_another(self, annotation: t.Any, value: t.Any, at: str) -> None:
        """A task that is sent "5" must not be given 5."""
        with pytest.raises(EncodeError) as raised:
            send(codec_for(annotation), value)
        assert raised.value.reason is Reason.INVALID
        assert at in str(raised.value)
        assert "would arrive as" in str(raised.value)

    @pytest.mark.parametrize(
        ("annotation", "value", "told"),
        [
            (dt.datetime, "5", "ISO 8601 text"), (dt.datetime, "2026-01-31", "ISO 8601 text"),
            (dt.date, "0", "ISO 8601 text"),
            (dt.date, 5, "ISO 8601 text"), (Decimal, True, "not a float"), (uuid.UUID, b"0" * 16, "a UUID or its text"),
            (ipaddress.IPv4Address, 5, "an address or its text"),
        ],
    )  # fmt: skip
    def test_what_does_not_stand_for_a_richer_type(self, annotation: t.Any, value: t.Any, told: str) -> None:
        error = refused(codec_for(annotation), value)
        assert error.reason is Reason.INVALID
        assert told in str(error)

    @pytest.mark.parametrize(
        ("annotation", "value", "path", "known"),
        [
            (Options, {"dept": 1}, "value.dept", "depth, blob"),
            (list[Options], [{}, {"dept": 1}], "value[1].dept", "depth, blob"),
            (dict[str, Options] | None, {"a": {"dept": 1}}, "value.a.dept", "depth, blob"),
            (Point, {"x": 1.0, "y": 1.0}, "value.y", "x, raw, when"),
        ],
    )  # fmt: skip
    def test_an_unknown_key_is_refused(self, annotation: t.Any, value: t.Any, path: str, known: str) -> None:
        """It would vanish: the task would be given {} and use its defaults."""
        codec = codec_for(annotation, annotation)
        error = refused(codec, value)
        assert (error.reason, error.path) == (Reason.INVALID, path)
        assert str(error).endswith(f"unexpected key {path.split('.')[-1]!r} (it takes: {known})")
        with pytest.raises(DecodeError, match=rf"unexpected key .* \(it takes: {known}\)"):
            receive(codec, json.dumps(value))
        if annotation is not Point:
            told = codec.encode_outcome(TaskResult(ok=value)).error
            assert told is not None
            assert f"(it takes: {known})" in told.message

    def test_a_model_and_a_typed_dict_that_say_what_they_do_with_unknown_keys(self) -> None:
        class Loose(TypedDict, total=False):
            __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc] # pydantic's way to say it
            depth: int

        class Kept(BaseModel, extra="allow"):
            id: int

        class Closed(BaseModel, extra="forbid"):
            id: int

        assert receive(codec_for(Loose), send(codec_for(Loose), {"other": 1})) == {"other": 1}
        assert receive(codec_for(Kept), send(codec_for(Kept), {"id": 1, "other": 1})) == Kept(id=1, other=1)  # pyright: ignore[reportCallIssue]
        assert receive(codec_for(Order), send(codec_for(Order), {"id": 1, "other": 1})) == Order(id=1)
        assert "(it takes: id)" in str(refused(codec_for(Closed), {"id": 1, "other": 1}))

    @pytest.mark.parametrize(
        ("value", "at"),
        [
            (Reading(number=True), "number"), (Reading(number="5"), "number"),
            (Reading(scale=True), "scale"),
            (Reading(choice=True), "choice"), (Reading(level=True), "level"),
            (Reading(rows=[True]), "rows[0]"),
            (Reading(by_id={True: 1}), "by_id"), (Reading(price=1.5), "price"), (Reading(at=5), "at"),
            (Reading(at="5"), "at"),
            (Reading(options={"dept": 1}), "options"),
        ],
    )  # fmt: skip
    def test_a_dataclass_whose_fields_are_not_what_it_says(self, value: Reading, at: str) -> None:
        """Python does not check them; without a check here True would arrive as 1."""
        codec = codec_for(Reading, Reading)
        error = refused(codec, value)
        assert error.reason is Reason.NOT_EXACT
        assert error.path.startswith(f"value.{at}")
        told = codec.encode_outcome(TaskResult(ok=value)).error
        assert told is not None
        assert told.error_code == "WORKER_SERIALIZATION_ERROR"

    def test_a_dataclass_whose_fields_are_equal_to_what_it_says(self) -> None:
        codec = codec_for(Reading)
        for value in (Reading(), Reading(number=Level.LOW), Reading(scale=5), Reading(number=2**70)):
            assert receive(codec, send(codec, value)) == value

    @pytest.mark.parametrize(
        ("annotation", "text"),
        [
            (int, '"5"'), (int, "true"), (int, "5.0"), (str, "5"), (bool, "1"), (float, "true"), (float, '"5"'),
            (t.Annotated[float, Field(ge=0)], "9007199254740993"), (t.Annotated[float, Field(ge=0)], "-1"),
            (float, "9007199254740993"), (float, "1" + "0" * 400), (list[dict[str, float]], '[{"a":9007199254740993}]'),
            (Point, '{"x":9007199254740993}'),
            (TaskResult[float, TaskError], '{"ok":-9007199254740993}'), (TaskResult[int, TaskError], '{"ok":true}'),
            (dt.datetime, "5"), (dt.datetime, '"5"'), (dt.datetime, '"2026-01-31"'), (dt.date, '"0"'),
            (dt.date, '"2026-01-31T00:00:00"'), (dt.timedelta, "5"), (dt.time, "5"), (Decimal, "1.1"),
            (Decimal, "true"),
            (t.Literal[1, 2], "true"), (t.Literal[1, 2], "1.0"), (t.Literal[True], "1"), (Level, "true"),
            (Level, "1.0"),
            (Level, '"1"'), (Colour, "2.0"), (t.Literal[Level.LOW], "true"), (ipaddress.IPv4Address, "5"),
            (t.Sequence[int], "[true]"), (Point, '{"x":"5"}'), (dict[dt.datetime, int], '{"5":1}'), (Pair, '[true,""]'),
        ],
    )  # fmt: skip
    def test_a_reader_is_as_strict_as_the_sender(self, annotation: t.Any, text: str) -> None:
        """What a sender by name or an edge of a workflow wrote is not converted either."""
        with pytest.raises(DecodeError, match="parameter 'value'") as raised:
            receive(codec_for(annotation, annotation), text)
        assert raised.value.reason is Reason.INVALID
        with pytest.raises(DecodeError):
            codec_for(annotation, annotation).decode_result(f'{{"ok":{text}}}')

    @pytest.mark.parametrize(
        ("annotation", "text", "value"),
        [
            (float, "5", 5.0), (float, "1152921504606846976", 2.0**60), (float, "-1e300", -1e300),
            (t.Annotated[float, Field(ge=0)], "9007199254740994", 2.0**53 + 2),
            (float, "0.30000000000000004", 0.1 + 0.2),
            (list[str], '["9007199254740993"]', ["9007199254740993"]), (Decimal, "5", Decimal(5)),
            (int | float, "9007199254740993", 2**53 + 1),
            (Decimal | int, "5", 5), (dict[int, int], '{"1":1}', {1: 1}), (Order, '{"id":"7"}', Order(id=7)),
            (t.Annotated[int, PlainSerializer(str)], '"5"', 5),
        ],
    )  # fmt: skip
    def test_what_a_reader_takes(self, annotation: t.Any, text: str, value: t.Any) -> None:
        assert same(receive(codec_for(annotation), text), value)

    def test_a_rounded_result_is_refused(self) -> None:
        told = codec_for(int, float).encode_outcome(TaskResult(ok=2**53 + 1)).error
        assert told is not None
        assert told.error_code == "RETURN_TYPE_MISMATCH"

    def test_text_that_is_no_number_either(self) -> None:
        for annotation, told in ((int, "valid integer"), (bytes, "valid bytes"), (list[int], "valid integer")):
            with pytest.raises(EncodeError, match=f"parameter 'value'.*: input should be a {told}$"):
                send(codec_for(annotation), ["x"] if annotation == list[int] else "x")

    @pytest.mark.parametrize(
        ("annotation", "value", "text"),
        [
            (float, 5, "5.0"), (list[float], [1, 2.5], "[1.0,2.5]"), (int, Level.HIGH, "2"), (str, Word.YES, '"yes"'),
            (Order, {"id": "7"}, '{"id":7,"items":[],"note":null,"score":null}'), (Point, {"x": 1}, None),
            (dt.date, "2026-01-31", '"2026-01-31"'), (dt.datetime, "2026-01-31T00:00:00Z", None), (Decimal, 1, '"1"'),
            (Decimal, "1.5", '"1.5"'), (Colour, "red", '"red"'), (Level, 2, "2"), (Word, "yes", '"yes"'),
            (uuid.UUID, "00000000-0000-4000-8000-000000000000", None), (tuple[int, ...], [1, 2], "[1,2]"),
            (list[int], (1, 2), "[1,2]"), (set[int], [2, 1], "[1,2]"), (dict[str, Order], {"a": {"id": 1}}, None),
            (list[dt.date], ["2026-01-31"], None), (t.Annotated[int, BeforeValidator(int)], "5", "5"),
            (t.Annotated[str, StringConstraints(to_lower=True)], "A", '"a"'), (set[dt.date], {"2026-01-31"}, None),
        ],
    )  # fmt: skip
    def test_the_plain_form_of_a_richer_type_is_taken(self, annotation: t.Any, value: t.Any, text: str | None) -> None:
        sent = send(codec_for(annotation), value)
        assert text is None or sent == text

    @pytest.mark.parametrize(
        "value",
        [Fraction(1, 2), Decimal("0.5"), Decimal(1), {"a": Fraction(1, 2)}, [Decimal("0.5")]],
        ids=str,
    )  # fmt: skip
    def test_another_number_is_no_float(self, value: t.Any) -> None:
        annotation: t.Any = {dict: dict[str, float], list: list[float]}.get(type(value), float)
        for union in (annotation, annotation | None, annotation | bytes):
            with pytest.raises(EncodeError, match=r"is a (Fraction|Decimal), not a float: it would arrive as"):
                send(codec_for(union), value)

    def test_another_number_is_no_float_in_a_result(self) -> None:
        codec = codec_for(int, result=float)
        for value in (Fraction(1, 2), Decimal("0.5")):
            with pytest.raises(ResultError, match="valid number"):
                codec.encode_result(TaskResult(ok=value))

    @pytest.mark.parametrize("annotation", [list[int], list, tuple[int, ...], deque[int], list[int] | dict[str, int]])
    def test_what_has_no_order_or_is_read_once_is_no_list(self, annotation: t.Any) -> None:
        codec = codec_for(annotation)
        for value in ({1, 2}, frozenset({1}), iter([1]), (one for one in [1]), {1: 2}.keys(), {1: 2}.values()):
            with pytest.raises(EncodeError, match="a list or another sequence, such as a tuple; a set"):
                send(codec, value)
        for value in ([1], (1,), deque([1]), range(1, 2)):
            assert send(codec, value) == "[1]"
        with pytest.raises(EncodeError, match=r"value\[0\].*a list or another sequence"):
            send(codec_for(list[list[int]]), [{1}])

    @pytest.mark.parametrize("annotation", [set[int], frozenset[int]])
    def test_an_iterator_is_no_set(self, annotation: t.Any) -> None:
        for value in (iter([1]), (one for one in [1]), {2: 1}.values()):
            with pytest.raises(EncodeError, match="an iterator can be read only once"):
                send(codec_for(annotation), value)
        for value in ({1}, frozenset({1}), [1], (1,), {1: 2}.keys()):
            assert send(codec_for(annotation), value) == "[1]"

    @pytest.mark.parametrize(
        ("rich", "value"),
        [
            (dt.datetime, 5), (dt.datetime, "5"), (dt.date, dt.datetime(2026, 1, 31)), (dt.timedelta, 5),
            (Decimal, 0.5), (uuid.UUID, b"0" * 16), (Level, True), (Level, 1.0),
        ],
    )  # fmt: skip
    def test_a_union_takes_no_more_than_its_members(self, rich: t.Any, value: t.Any) -> None:
        for annotation in (rich, rich | None, rich | list[int], list[int] | rich):
            with pytest.raises(EncodeError):
                send(codec_for(annotation), value)

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
