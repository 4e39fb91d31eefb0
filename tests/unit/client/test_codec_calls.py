"""Calls through the codec: arguments, defaults, names; by hand and by name alone."""

import datetime as dt
import json
import os
import subprocess
import sys
import typing as t

import pytest
from hypothesis import given, strategies as st
from pydantic import BaseModel, Field

from horsies.codec import (
    DecodeError,
    EncodeError,
    Reason,
    TaskCodec,
    encode_untyped_call,
)
from horsies.result import TaskError, TaskResult
from tests.support.codecs import (
    INF,
    JSON,
    NAN,
    TEXT,
    Colour,
    Done,
    Order,
    Point,
    codec_for,
    nested,
    receive,
    same,
    send,
)


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
