"""What the codec writes is strict JSON that PostgreSQL can store, and what it reads is nothing else."""

import datetime as dt
import logging
import typing as t
import uuid
from decimal import Decimal

import pytest
from pydantic import JsonValue

from horsies.codec import (
    EncodeError,
    PayloadLimits,
    Reason,
    TaskCodec,
)
from tests.support.codecs import (
    INF,
    NAN,
    Colour,
    Done,
    Order,
    Point,
    codec_for,
    nested,
    receive,
    refused,
    send,
)


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
        for nan in (Decimal("NaN"), Decimal("sNaN"), Decimal("-sNaN")):
            assert refused(codec_for(Decimal), nan).reason is Reason.NAN
            assert refused(codec_for(t.Any), [nan]).reason is Reason.NAN

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
            assert f"{'None' if key is None else type(key).__name__}; keys of JSON objects" in str(error)
            assert error.fault.value == repr(key)

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
