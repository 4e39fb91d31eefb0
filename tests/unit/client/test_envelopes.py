"""Envelopes around encoded payloads, and the building blocks of codecs. Pure."""

import base64
import json
import zlib
from typing import Any

import pytest
from hypothesis import given, strategies as st

from horsies import AppConfig, ConfigurationError, PayloadCodec, PayloadContext, PayloadError, PostgresConfig
from horsies.contrib.compression import ZlibCodec
from horsies.envelopes import PLAIN_ENVELOPES, Envelopes, redacted, redacted_message
from horsies.payload_codec import chain, decode_only, with_older
from tests.support.payload_codecs import SealCodec

SEALED = Envelopes(SealCodec())
LOOKS_ENCODED = '{"horsies.encoded":"seal","of":"argument","data":"AAAA"}'

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


def dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


@given(st.lists(values, max_size=3), st.dictionaries(st.text(), values, max_size=4))
def test_a_call_comes_back_as_it_was(args: list[Any], kwargs: dict[str, Any]) -> None:
    stored = SEALED.wrap_call(dumped(args), dumped(kwargs), "task")
    assert SEALED.unwrap_call(*stored, "task") == (dumped(args), dumped(kwargs))
    spaced = json.dumps(json.loads(stored[1] or ""), sort_keys=True, ensure_ascii=False)  # as jsonb may print it
    assert json.loads(SEALED.unwrap_call(None, spaced, "task")[1] or "") == kwargs


@given(values)
def test_results_come_back_wherever_they_stand(value: Any) -> None:
    text = f'{{"ok":{dumped(value)}}}'
    stored = SEALED.wrap_result(text, "task")
    assert SEALED.unwrap(stored, "task") == text
    composed = f'{{"a":{{"results":[{stored},{stored}]}},"b":{stored[6:-1]}}}'
    wanted = {"a": {"results": [{"ok": value}, {"ok": value}]}, "b": value}
    assert json.loads(SEALED.unwrap_call(None, composed, "another")[1] or "") == wanted


@given(st.text(), values, st.sampled_from([None, 5]))
def test_errors_keep_their_code_alone(message: str, data: Any, after: int | None) -> None:
    fields = {"error_code": "BROKEN", "message": message, "data": data, **({"retry_after_ms": after} if after else {})}
    stored = SEALED.wrap_error(dumped({"err": fields}), "task")
    found = json.loads(stored)["err"]
    assert (found["error_code"], found["message"]) == ("BROKEN", "<encoded by seal>")
    assert found.get("retry_after_ms") == after
    assert json.loads(SEALED.unwrap(stored)) == {"err": fields}
    assert redacted_message(SEALED.wrap_message(message, "task")) == "<encoded by seal>"
    assert SEALED.unwrap_message(SEALED.wrap_message(message, "task")) == message


def test_equal_calls_have_different_texts_and_null_has_none() -> None:
    assert SEALED.wrap_result('{"ok":1}', "t") != SEALED.wrap_result('{"ok":1}', "t")
    assert SEALED.wrap_result('{"ok":null}', "t") == '{"ok":null}'


@pytest.mark.parametrize(
    ("stored", "place"),
    [
        (SEALED.wrap_call(None, '{"a":1}', "pay")[1], ("pay", "b")),
        (SEALED.wrap_call(None, '{"a":1}', "pay")[1], ("refund", "a")),
        (SEALED.wrap_call(None, '{"a":1}', "pay", "shared_argument")[1], ("undo", "b")),
    ],
    ids=["parameter", "task", "shared"],
)
def test_an_argument_moved_elsewhere_is_refused(stored: str, place: tuple[str, str]) -> None:
    task, parameter = place
    moved = stored.replace('{"a":', f'{{"{parameter}":', 1)
    with pytest.raises(PayloadError, match="payload codec 'seal' cannot decode: ValueError") as refused:
        SEALED.unwrap_call(None, moved, task)
    assert "SECRETS" not in str(refused.value)


def test_results_and_arguments_are_not_exchanged() -> None:
    _, call = SEALED.wrap_call(None, '{"a":1}', "pay")
    envelope = (call or "")[len('{"a":') : -1]
    with pytest.raises(PayloadError, match="is an argument, and stands in a result"):
        SEALED.unwrap(f'{{"ok":{envelope}}}')
    with pytest.raises(PayloadError, match=r"is a result of task 'pay', and stands in the row of a task 'refund'"):
        SEALED.unwrap(SEALED.wrap_result('{"ok":1}', "pay"), "refund")
    claimed = SEALED.wrap_result('{"ok":1}', "pay").replace("result:pay", "result:refund")
    with pytest.raises(PayloadError, match="ValueError"):
        SEALED.unwrap(claimed, "refund")
    with pytest.raises(PayloadError, match="unknown kind 'thing'"):
        SEALED.unwrap(claimed.replace("result:refund", "thing:x"))
    progress = SEALED.wrap_value("1", "progress", "pay")
    with pytest.raises(PayloadError, match="is progress"):
        SEALED.unwrap_call(None, f'{{"a":{progress}}}', "pay")


def test_an_app_without_the_codec_names_it() -> None:
    stored = SEALED.wrap_result('{"ok":1}', "pay")
    with pytest.raises(PayloadError, match="encoded by 'seal', and this app has no payload_codec"):
        PLAIN_ENVELOPES.unwrap(stored)
    with pytest.raises(PayloadError, match="encoded by 'seal', and this app's payload_codec is 'zlib'"):
        Envelopes(ZlibCodec()).unwrap(stored)
    assert "RESULT_DESERIALIZATION_ERROR" in PLAIN_ENVELOPES.unwrap_result(stored)
    assert PLAIN_ENVELOPES.unwrap('{"ok":1}') == '{"ok":1}'


@pytest.mark.parametrize("damage", ['"data":"AA*="', '"data":"AAAA"', '"of":"result:pay","of":"result:pay"'])
def test_damaged_envelopes_are_told(damage: str) -> None:
    stored = f'{{"ok":{{"horsies.encoded":"seal","of":"result:pay",{damage}}}}}'
    if damage.startswith('"of"'):
        stored = f'{{"ok":{{"horsies.encoded":"seal",{damage}}}}}'
    with pytest.raises(PayloadError, match=r"damaged|cannot decode"):
        SEALED.unwrap(stored)
    assert "<encoded by" in (redacted(stored) or "")


# -- values that look like envelopes ---------------------------------------------------------------


def test_a_value_that_looks_encoded_is_no_envelope() -> None:
    for envelopes in (SEALED, Envelopes(ZlibCodec()), Envelopes(decode_only(SealCodec()))):
        stored = envelopes.wrap_call(None, f'{{"a":{LOOKS_ENCODED}}}', "pay")
        assert envelopes.unwrap_call(*stored, "pay") == (None, f'{{"a":{LOOKS_ENCODED}}}')
    in_text = dumped({"ok": LOOKS_ENCODED})
    assert PLAIN_ENVELOPES.unwrap(in_text) == redacted(in_text) == in_text
    other = '{"ok":{"horsies.encoded":5}}'
    assert PLAIN_ENVELOPES.unwrap(other) == other


def envelope(text: str, of: str, name: str = "plain") -> str:
    return dumped({"horsies.encoded": name, "of": of, "data": base64.b64encode(text.encode()).decode()})


WRITERS = [
    PLAIN_ENVELOPES, SEALED, Envelopes(ZlibCodec()), Envelopes(ZlibCodec(threshold=0)),
    Envelopes(decode_only(SealCodec())),
]  # fmt: skip
lookalikes = st.builds(
    envelope,
    st.sampled_from(['{},"admin":true', "1,2", "[1]", "{{{", "", '"a"', "1 ", '{"message":"m","data":1}']),
    st.sampled_from(["argument", "shared_argument:pay", "result:pay", "error:pay", "signal:pay", "progress:pay", "x"]),
    st.sampled_from(["plain", "seal", "zlib", "aes"]),
).map(json.loads)
hostile = st.recursive(
    lookalikes | values, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


@pytest.mark.parametrize("writer", WRITERS, ids=["none", "seal", "zlib", "zlib-all", "decode-only"])
@given(value=hostile, message=st.sampled_from(["broken", "<encoded by plain>", "<encoded by seal>"]))
def test_data_of_users_comes_back_as_it_was(writer: Envelopes, value: Any, message: str) -> None:
    call = (dumped([value]), dumped({"a": value, "b": 1}))
    assert writer.unwrap_call(*writer.wrap_call(*call, "pay"), "pay") == call
    result = dumped({"ok": value})
    assert writer.unwrap(writer.wrap_result(result, "pay"), "pay") == result
    error = {"err": {"error_code": "BROKEN", "message": message, "data": value, "retry_after_ms": 5}}
    assert json.loads(writer.unwrap(writer.wrap_result(dumped(error), "pay"), "pay")) == error
    for kind in ("signal", "progress"):
        assert writer.unwrap(writer.wrap_value(dumped(value), kind, "pay"), "pay") == dumped(value)
    for text in (dumped(value), message):
        assert writer.unwrap_message(writer.wrap_message(text, "pay")) == text


@pytest.mark.parametrize("writer", WRITERS, ids=["none", "seal", "zlib", "zlib-all", "decode-only"])
@given(st.lists(hostile, max_size=4))
def test_items_of_users_come_back_as_they_were(writer: Envelopes, items: list[Any]) -> None:
    stored = writer.wrap_result(dumped({"ok": items}), "pay")[6:-1]
    found = writer.rewrap_items(stored)
    if found is None:
        assert stored == dumped(items)  # in no envelope
        return
    assert [json.loads(writer.unwrap_call(f"[{one}]", None, "each")[0] or "") for one in found] == [[x] for x in items]


@pytest.mark.parametrize("text", ['{},"admin":true', "1,2", "", " ", "{", "1 2", "[" * 100_000, "nul"])
def test_what_is_not_one_json_value_takes_no_place(text: str) -> None:
    for name in ("plain", "odd"):
        stored = f'{{"webhook":{envelope(text, "argument", name)}}}'
        with pytest.raises(PayloadError, match="is not one JSON value"):
            Envelopes(Odd(text.encode())).unwrap_call(None, stored, "pay")
        assert redacted(stored) == f'{{"webhook":"<encoded by {name}>"}}'


def test_an_error_has_no_other_members_than_its_own() -> None:
    made = envelope('{"message":"m","data":1,"error_code":"OTHER"}', "error:pay")
    stored = f'{{"err":{{"error_code":"BROKEN","message":"<encoded by plain>","data":{made}}}}}'
    assert json.loads(PLAIN_ENVELOPES.unwrap(stored))["err"]["error_code"] == "BROKEN"


def test_what_no_codec_has_encoded_is_shown() -> None:
    value = [json.loads(LOOKS_ENCODED), {"horsies.encoded": "cut"}]
    _, call = PLAIN_ENVELOPES.wrap_call(None, dumped({"a": value, "b": 1}), "pay")
    assert redacted(call) == dumped({"a": value, "b": 1})
    error = dumped({"err": {"error_code": "BROKEN", "message": "m", "data": value}})
    assert redacted(PLAIN_ENVELOPES.wrap_error(error, "pay")) == error


def test_other_values_are_stored_as_before() -> None:
    call = ('["a"]', '{"b":{"c":1}}')
    assert PLAIN_ENVELOPES.wrap_call(*call, "pay") == call
    for text in ('{"ok":[1]}', '{"err":{"error_code":"X","message":"<encoded by plain>","data":{"horsies":1}}}'):
        assert PLAIN_ENVELOPES.wrap_result(text, "pay") is text


def test_what_was_decoded_is_not_decoded_again() -> None:
    inner = SEALED.wrap_value('"secret"', "result", "pay")
    stored = SEALED.wrap_result(f'{{"ok":{inner}}}', "pay")
    assert SEALED.unwrap(stored) == f'{{"ok":{inner}}}'


# -- redaction -------------------------------------------------------------------------------------


def test_redacted_texts_are_json_that_names_the_codec() -> None:
    _, call = SEALED.wrap_call(None, '{"a":1,"b":null}', "pay")
    assert redacted(call) == '{"a":"<encoded by seal>","b":null}'
    for length in range(len(call or "")):
        cut = redacted((call or "")[:length]) or ""
        assert length < 40 or cut.startswith('{"a":"<encoded by seal>"')


# -- codecs ----------------------------------------------------------------------------------------


class Odd(PayloadCodec):
    name = "odd"

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
        return self._told()

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        return self._told()

    def _told(self) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (KeyError("the payload 4711"), "payload codec 'odd' cannot encode: KeyError"),
        (PayloadError("no key k7"), "payload codec 'odd' cannot encode: no key k7"),
        ("text", "payload codec 'odd': its encode returned str, not bytes"),
    ],
)
def test_a_codec_that_fails(answer: Any, told: str) -> None:
    with pytest.raises(PayloadError) as failed:
        Envelopes(Odd(answer)).wrap_call(None, '{"a":4711}', "pay")
    assert str(failed.value) == told


def test_a_codec_that_decodes_to_no_text() -> None:
    stored = '{"ok":{"horsies.encoded":"odd","of":"result:pay","data":"AAAA"}}'
    with pytest.raises(PayloadError, match="is not UTF-8"):
        Envelopes(Odd(b"\xff")).unwrap(stored)
    with pytest.raises(PayloadError, match="its decode returned NoneType"):
        Envelopes(Odd(None)).unwrap(stored)


@pytest.mark.parametrize("codec", ["zlib", ZlibCodec, object()])
def test_only_codecs_are_taken(codec: Any) -> None:
    with pytest.raises(ConfigurationError, match="must be an instance of a PayloadCodec"):
        AppConfig(PostgresConfig("postgresql://h/d"), payload_codec=codec)


@pytest.mark.parametrize("name", ["", "plain", 'a"b', "ä", None, "x" * 61])
def test_names_of_codecs_are_checked(name: Any) -> None:
    codec = SealCodec()
    codec.name = name
    with pytest.raises(ConfigurationError, match=r"payload_codec\.name"):
        AppConfig(PostgresConfig("postgresql://h/d"), payload_codec=codec)


def test_a_chain_compresses_and_then_hides() -> None:
    both = chain(ZlibCodec(threshold=100), SealCodec())
    assert both.name == "zlib+seal"
    envelopes = Envelopes(both)
    for text in ('{"ok":"short"}', dumped({"ok": "long " * 500})):
        stored = envelopes.wrap_result(text, "t")
        assert envelopes.unwrap(stored, "t") == text
        assert len(stored) < 300
    assert both.fingerprint(b"x") == SealCodec().fingerprint(b"x")
    with pytest.raises(PayloadError, match="was not written by the chain"):
        both.decode(b"\xff", PayloadContext("result", "t"))
    assert Envelopes(chain(ZlibCodec())).wrap_result('{"ok":"short"}', "t") == '{"ok":"short"}'
    with pytest.raises(ConfigurationError, match="1 to 8 codecs"):
        chain()


def test_the_first_deploy_reads_only() -> None:
    reading = Envelopes(decode_only(SealCodec()))
    assert reading.wrap_call(None, '{"a":1}', "t") == (None, '{"a":1}')
    assert reading.unwrap(SEALED.wrap_result('{"ok":1}', "t")) == '{"ok":1}'


def test_an_older_codec_is_read_by_its_name() -> None:
    both = Envelopes(with_older(SealCodec(), ZlibCodec()))
    old = Envelopes(ZlibCodec(threshold=0)).wrap_result(dumped({"ok": "x" * 200}), "t")
    assert '"zlib"' in old
    assert both.unwrap(old) == dumped({"ok": "x" * 200})
    assert '"seal"' in both.wrap_result('{"ok":1}', "t")
    reading = Envelopes(decode_only(with_older(SealCodec(), ZlibCodec())))
    assert reading.unwrap(old) == both.unwrap(old)


def test_zlib_leaves_small_and_random_values_and_refuses_bombs() -> None:
    context = PayloadContext("result", "t")
    codec = ZlibCodec(threshold=10, max_bytes=1_000)
    assert codec.encode(b"small", context) is None
    assert codec.encode(bytes(range(256)), context) is None
    assert codec.decode(codec.encode(b"a" * 999, context) or b"", context) == b"a" * 999
    with pytest.raises(PayloadError, match="larger than 1,000 bytes"):
        codec.decode(zlib.compress(b"a" * 1_001), context)
    with pytest.raises(PayloadError, match="ends too early"):
        codec.decode(zlib.compress(b"a" * 500)[:-5], context)
    with pytest.raises(ConfigurationError, match="level"):
        ZlibCodec(level=10)


def test_the_items_of_a_list_keep_its_source() -> None:
    stored = SEALED.wrap_result('{"ok":[1,"two",null]}', "t")[6:-1]
    items = SEALED.rewrap_items(stored)
    assert items is not None
    assert [SEALED.unwrap(item) for item in items] == ["1", '"two"', "null"]
    assert SEALED.rewrap_items(SEALED.wrap_value('{"no":"list"}', "result", "t")) is None
    assert SEALED.rewrap_items("[1]") is None
