"""Results and errors through the codec: whatever a task returns or raises becomes a text that can be stored."""

import datetime as dt
import json
import typing as t
from decimal import Decimal

import pytest
from hypothesis import given, settings, strategies as st
from pydantic import Field, JsonValue

from horsies.codec import (
    DecodeError,
    Reason,
    ResultError,
    TaskCodec,
    decode_untyped_result,
    encode_error,
)
from horsies.errors import BUILT_IN_CODES, ContractCode, OperationalErrorCode
from horsies.result import TaskError, TaskResult
from tests.support.codecs import (
    INF,
    JSON,
    NAN,
    Colour,
    Order,
    assert_storable,
    codec_for,
    nested,
)


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

    @pytest.mark.parametrize("code", [*BUILT_IN_CODES, *BUILT_IN_CODES.values()])
    def test_built_in_codes_are_reserved(self, code: str) -> None:
        """Made by the task, or passed along from another one's result: the original is kept as data."""
        given = TaskError(code, "not mine", {"n": 1}, retry_after_ms=7)
        outcome = codec_for(int, int).encode_outcome(TaskResult(err=given))
        assert outcome.error is not None
        assert outcome.error.error_code is ContractCode.RESERVED_ERROR_CODE
        assert repr(str(code)) in outcome.error.message
        assert outcome.error.data == {"error_code": str(code), "message": "not mine", "data": {"n": 1}}
        assert decode_untyped_result(outcome.json).err_value.error_code == "RESERVED_ERROR_CODE"

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

    def test_data_that_is_not_plain_json_is_kept_as_such(self) -> None:
        """It is never refused: nothing may keep an error from being reported."""
        data = {"set": {1}, "pair": (1, 2), "raw": b"\xff", "nan": NAN, 5: 6}
        error = TaskError("X", "m", data)
        kept = codec_for(int, int).decode_result(encode_error(error)).err_value.data
        assert kept == {"set": [1], "pair": [1, 2], "raw": "_w==", "nan": "NaN", "5": 6}

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
