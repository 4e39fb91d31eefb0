"""Envelopes: the JSON values that stand in rows in place of payloads which a `PayloadCodec` has encoded.

    {"horsies.encoded":"aes","of":"result:shop.total","data":"<base64>"}

An envelope is a JSON value like any other. SQL copies results into arguments, lists and contexts without a key, and
a reader of such a composed text finds its envelopes at any depth. Each argument has an envelope of its own, and so
has the value of a result: names of parameters, `ok` and `err` stay as they are. In an error, `data` is an envelope with
message and data, and `message` says so.

A value of a user may look like an envelope. Such a value gets one of its own, by the name `plain`, with a codec or
without one: it is read as it was written, and nothing inside it is decoded.

`of` names what the value is: an argument belongs to the task and the parameter where it is found. Values that are
handed on (results, signals, errors) name the task that they come from.
"""

import base64
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, cast

from horsies.errors import OperationalErrorCode
from horsies.payload_codec import PLAIN, PayloadCodec, PayloadContext, PayloadError, PayloadKind

MARK: Final = '"horsies.encoded"'
"""A text without this has no envelope. A quote inside a JSON string is escaped, so that only a name can match."""
_STRING: Final = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_ENVELOPE: Final = re.compile(
    # only in an error; then the envelope has its message too
    r'(?P<error>"message"\s*:\s*"<encoded by [^"\\]*>"\s*,\s*"data"\s*:\s*)?'
    # the members in any order and with spaces, as jsonb prints them
    rf'(?P<envelope>\{{\s*(?:"(?:horsies\.encoded|of|data)"\s*:\s*{_STRING}\s*,\s*){{2}}'
    rf'"(?:horsies\.encoded|of|data)"\s*:\s*{_STRING}\s*\}})'
)
_CUT: Final = re.compile(r'\{\s*"horsies\.encoded"\s*:\s*"([^"\\]*)".*\Z', re.DOTALL)
_KINDS: Final = ("argument", "shared_argument", "progress", "result", "error", "signal")
#: Finds where a value ends. Numbers are not needed, and int() refuses those of more than 4,300 digits.
_SCAN: Final = json.JSONDecoder(parse_int=float, parse_float=float).raw_decode
_SPACE: Final = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class _Place:
    """Where an envelope was found. `task`: the task of the row, None where the text has values of several."""

    task: str | None
    parameter: str | None = None
    is_argument: bool = False


def shown_as(name: str) -> str:
    """What readers without the codec see in place of a value."""
    return f"<encoded by {name}>"


def redacted(text: str | None) -> str | None:
    """A stored text with each envelope replaced by a JSON string that names its codec, and those that no codec has
    encoded by their values. A text that was cut inside an envelope ends there."""
    if text is None or MARK not in text:
        return text
    shown: list[str] = []
    at = 0
    for found in _ENVELOPE.finditer(text):
        shown += text[at : found.start()], _redacted(found)
        at = found.end()
    rest = text[at:]
    if (begun := _CUT.search(rest)) is not None:
        rest = rest[: begun.start()] + json.dumps(shown_as(begun[1]))
    return "".join([*shown, rest])


def _redacted(found: re.Match[str]) -> str:
    try:
        name, of, data = _fields(found["envelope"])
    except PayloadError:
        name, of, data = "an unknown codec", "", ""
    if name == PLAIN:
        try:
            return _in_place(found, _json_value(name, _bytes(name, data)), is_error=of.startswith("error:"))
        except PayloadError:
            pass  # not written by horsies
    return (found["error"] or "") + json.dumps(shown_as(name))


def redacted_message(text: str | None) -> str | None:
    """The same for a column that holds one message: the envelope, or the message itself."""
    if text is None or not text.startswith("{") or MARK not in text:
        return text
    found = redacted(text)
    try:
        return cast("str", json.loads(found or "null"))
    except ValueError:
        return found


class Envelopes:
    """Puts payloads into envelopes and takes them out again. Without a codec it writes plain values, but for those that
    look like an envelope, and refuses what a codec has encoded with an error that names the codec. Immutable, and safe
    to use from any thread."""

    __slots__ = ("codec",)

    def __init__(self, codec: PayloadCodec | None = None) -> None:
        self.codec = codec

    # -- writing ---------------------------------------------------------------------------------

    def wrap_call(
        self, args: str | None, kwargs: str | None, task: str, kind: PayloadKind = "argument"
    ) -> tuple[str | None, str | None]:
        """The columns of a call, with each argument in an envelope. Raises PayloadError."""
        codec = self.codec
        if codec is None and not has_mark((args, kwargs)):
            return args, kwargs
        if args is not None:
            items = [
                _wrap(codec, text, PayloadContext(kind, task, str(at))) for at, (_, text) in enumerate(_members(args))
            ]
            args = f"[{','.join(items)}]"
        if kwargs is not None:
            named = [
                f"{name}:{_wrap(codec, text, PayloadContext(kind, task, json.loads(name)))}"
                for name, text in _members(kwargs)
            ]
            kwargs = f"{{{','.join(named)}}}"
        return args, kwargs

    def wrap_value(self, text: str, kind: PayloadKind, name: str) -> str:
        """The JSON text of one value in an envelope. Raises PayloadError."""
        if self.codec is None and MARK not in text:
            return text
        return _wrap(self.codec, text, PayloadContext(kind, name))

    def wrap_result(self, text: str, task: str) -> str:
        """A stored result. The graph of a task that continues has envelopes of its own. Raises PayloadError."""
        if self.codec is None and MARK not in text:
            return text
        if text.startswith('{"ok":'):
            return f'{{"ok":{_wrap(self.codec, text[6:-1], PayloadContext("result", task))}}}'
        return self.wrap_error(text, task) if text.startswith('{"err":') else text

    def wrap_error(self, text: str, name: str) -> str:
        """A stored error, whose code stays readable. Raises PayloadError."""
        codec = self.codec
        if codec is None and MARK not in text:
            return text
        fields: dict[str, Any] = json.loads(text)["err"]
        private = _dumped({"message": fields["message"], "data": fields.get("data")})
        data = _wrap(codec, private, PayloadContext("error", name))
        if data is private:
            return text
        head = _dumped({"error_code": fields["error_code"], "message": shown_as(_fields(data)[0])})[:-1]
        rest = {name: value for name, value in fields.items() if name not in ("error_code", "message", "data")}
        return f'{{"err":{head},"data":{data}{"," + _dumped(rest)[1:-1] if rest else ""}}}}}'

    def wrap_message(self, text: str, name: str) -> str:
        """A message for a column of its own. Raises PayloadError."""
        looks_encoded = text.startswith("{") and MARK in text
        if self.codec is None and not looks_encoded:
            return text
        plain, context = _dumped(text), PayloadContext("error", name)
        found = _wrap(self.codec, plain, context)
        if found is not plain:
            return found
        return _envelope(PLAIN, plain.encode(), context) if looks_encoded else text

    # -- reading ---------------------------------------------------------------------------------

    def unwrap_call(self, args: str | None, kwargs: str | None, task: str) -> tuple[str | None, str | None]:
        """The columns of a call without envelopes. Raises PayloadError."""
        if args is not None and MARK in args:
            items = [
                self._unwrap(text, _Place(task, str(at), is_argument=True))
                for at, (_, text) in enumerate(_members(args))
            ]
            args = f"[{','.join(items)}]"
        if kwargs is not None and MARK in kwargs:
            named = [
                f"{name}:{self._unwrap(text, _Place(task, json.loads(name), is_argument=True))}"
                for name, text in _members(kwargs)
            ]
            kwargs = f"{{{','.join(named)}}}"
        return args, kwargs

    def unwrap(self, text: str, task: str | None = None) -> str:
        """A stored result, error, signal or progress without envelopes. `task`: the task of the row, if the value is
        that of one task. Raises PayloadError."""
        return self._unwrap(text, _Place(task)) if MARK in text else text

    def unwrap_result(self, text: str, task: str | None = None) -> str:
        """The same for a stored result. One that cannot be decoded becomes an err RESULT_DESERIALIZATION_ERROR."""
        if MARK not in text:
            return text
        try:
            return self._unwrap(text, _Place(task))
        except PayloadError as error:
            code = OperationalErrorCode.RESULT_DESERIALIZATION_ERROR
            return _dumped({"err": {"error_code": code, "message": str(error), "data": None}})

    def unwrap_message(self, text: str | None) -> str | None:
        """A message from a column of its own; one that cannot be decoded says so."""
        if text is None or not text.startswith("{") or MARK not in text:
            return text
        try:
            return cast("str", json.loads(self._unwrap(text, _Place(None))))
        except (PayloadError, ValueError):
            return redacted_message(text)

    def rewrap_items(self, text: str) -> list[str] | None:
        """The items of a list in an envelope, each in an envelope of its own that names the same source; None where the
        value is no list. Raises PayloadError."""
        found = _ENVELOPE.fullmatch(text.strip())
        if found is None:
            return None
        codec_name, of, _ = _fields(found["envelope"])
        kind, _, name = of.partition(":")
        plain = self._unwrap(text, _Place(None)).strip()
        if not plain.startswith("["):
            return None
        codec, context = self.codec, PayloadContext(cast("PayloadKind", kind), name)
        items = [text for _, text in _members(plain)]
        # those of a list that no codec has encoded stay so
        return [_wrap(None if codec_name == PLAIN else codec, item, context) for item in items]

    def _unwrap(self, text: str, place: _Place) -> str:
        return _ENVELOPE.sub(lambda found: self._opened(found, place), text) if MARK in text else text

    def _opened(self, found: re.Match[str], place: _Place) -> str:
        codec_name, of, data = _fields(found["envelope"])
        context = _context(codec_name, of, place)
        encoded = _bytes(codec_name, data)
        if codec_name == PLAIN:
            plain = encoded
        elif self.codec is None:
            raise PayloadError(
                f"a payload is encoded by {codec_name!r}, and this app has no payload_codec: configure the codec of "
                "the app that wrote it, AppConfig(payload_codec=...)"
            )
        elif (reader := self.codec.reader(codec_name)) is None:
            raise PayloadError(
                f"a payload is encoded by {codec_name!r}, and this app's payload_codec is {self.codec.name!r}: read "
                "both with with_older(new, old)"
            )
        else:
            plain = _called(reader, "decode", lambda codec: codec.decode(encoded, context))
        return _in_place(found, _json_value(codec_name, plain), is_error=context.kind == "error")


def stored_bytes(max_bytes: int) -> int:
    """How large a text with envelopes may be whose plain form has at most so many bytes: base64 adds a third, and each
    envelope its members."""
    return max_bytes * 3 // 2 + 65_536


PLAIN_ENVELOPES: Final = Envelopes()
"""Those of an app without a codec."""


def has_mark(texts: Iterable[str | None]) -> bool:
    """Whether one of these texts may have an envelope, or a value that looks like one."""
    for text in texts:  # noqa: SIM110 # each send asks this, and a generator would double what it costs
        if text is not None and MARK in text:
            return True
    return False


def is_encoded(value: object) -> bool:
    """Whether a value has the form of an envelope that a codec has written."""
    if not isinstance(value, dict) or value.keys() != {"horsies.encoded", "of", "data"}:
        return False
    return cast("dict[str, object]", value)["horsies.encoded"] != PLAIN


def _bytes(codec_name: str, data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise PayloadError(f"a payload encoded by {codec_name!r} is damaged: it is not base64") from None


def _json_value(codec_name: str, decoded: bytes) -> str:
    """What was decoded, which takes the place of its envelope: any other text than one JSON value could add arguments
    to a call. Raises PayloadError."""
    try:
        text = decoded.decode().strip(" \t\n\r")
    except UnicodeDecodeError:
        raise PayloadError(f"payload codec {codec_name!r}: what it decoded is not UTF-8") from None
    try:
        _, end = _SCAN(text, 0)
    except (ValueError, RecursionError):
        end = -1
    if end != len(text):
        raise PayloadError(f"payload codec {codec_name!r}: what it decoded is not one JSON value")
    return text


def _in_place(found: re.Match[str], text: str, *, is_error: bool) -> str:
    """What takes the place of an envelope with this value. That of an error has its message and data as an object."""
    if found["error"] is None:
        return text
    is_whole = is_error and text.startswith("{") and [name for name, _ in _members(text)] == ['"message"', '"data"']
    return text[1:-1] if is_whole else found["error"] + text


def _context(codec_name: str, of: str, place: _Place) -> PayloadContext:
    """What the value belongs to, where it was found. Raises PayloadError if it does not belong there."""
    kind, _, name = of.partition(":")
    if kind not in _KINDS:
        raise PayloadError(f"a payload encoded by {codec_name!r} is of the unknown kind {kind[:40]!r}")
    if place.is_argument:
        if kind == "argument":
            return PayloadContext(kind, place.task or "", place.parameter)
        if kind == "shared_argument":
            return PayloadContext(kind, name, place.parameter)
        if kind == "progress":
            raise PayloadError(f"a payload encoded by {codec_name!r} is progress, and stands in an argument")
    elif kind in ("argument", "shared_argument"):
        raise PayloadError(f"a payload encoded by {codec_name!r} is an argument, and stands in a result")
    elif kind == "result" and place.task is not None and name != place.task:
        raise PayloadError(
            f"a payload encoded by {codec_name!r} is a result of task {name[:200]!r}, and stands in the row of a task "
            f"{place.task!r}"
        )
    return PayloadContext(cast("PayloadKind", kind), name)


def _wrap(codec: PayloadCodec | None, text: str, context: PayloadContext) -> str:
    """The envelope of this JSON text, or the text itself if the codec leaves it as it is."""
    if text == "null":
        return text  # says nothing that the row does not say, and most tasks return it
    data = text.encode()
    if codec is not None:
        encoded = _called(codec, "encode", lambda codec: codec.encode(data, context))
        if encoded is not None:
            return _envelope(codec.name, encoded, context)
    return _envelope(PLAIN, data, context) if MARK in text else text


def _envelope(name: str, encoded: bytes, context: PayloadContext) -> str:
    of = context.kind if context.kind == "argument" else f"{context.kind}:{context.name}"
    return f'{{{MARK}:"{name}","of":{_dumped(of)},"data":"{base64.b64encode(encoded).decode()}"}}'


def _called(codec: PayloadCodec, verb: str, call: Callable[[PayloadCodec], object]) -> Any:
    """Call user code. Neither the payload nor an exception that may repeat it gets into a message."""
    try:
        found = call(codec)
    except PayloadError as error:
        raise PayloadError(f"payload codec {codec.name!r} cannot {verb}: {error}") from None
    except Exception as error:
        raise PayloadError(f"payload codec {codec.name!r} cannot {verb}: {type(error).__name__}") from None
    if isinstance(found, bytes) or (found is None and verb == "encode"):
        return found
    told = type(found).__name__
    raise PayloadError(f"payload codec {codec.name!r}: its {verb} returned {told}, not bytes")


def _fields(envelope: str) -> tuple[str, str, str]:
    """Codec, source and data of an envelope."""
    try:
        found: dict[str, str] = json.loads(envelope)
        return found["horsies.encoded"], found["of"], found["data"]
    except (ValueError, LookupError):
        raise PayloadError("an encoded payload is damaged: a member of its envelope is missing") from None


def _members(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of a JSON object, or the values of an array, as they are written."""
    is_object, at = text.lstrip().startswith("{"), _after_space(text, 0) + 1
    try:
        while text[at := _after_space(text, at)] not in "]}":
            name = ""
            if is_object:
                _, end = _SCAN(text, at)
                name, at = text[at:end], _after_space(text, _after_space(text, end) + 1)
            _, end = _SCAN(text, at)
            yield name, text[at:end]
            at = _after_space(text, end)
            if text[at] == ",":
                at += 1
    except (ValueError, IndexError, RecursionError):
        raise PayloadError("the stored text is not a JSON object or array") from None


def _after_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _dumped(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
