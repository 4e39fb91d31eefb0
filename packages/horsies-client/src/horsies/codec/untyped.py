"""Encodes calls and decodes results of tasks that are not registered in this app.

Values are written by their run-time types; the worker reads them by the task's annotations, so a tuple, a set or a
datetime arrives with the annotated type.
"""

from collections.abc import Mapping
from typing import Any, cast

from pydantic_core import from_json, to_json

from horsies._checks import a_type
from horsies.codec.adapter import build_error
from horsies.codec.compare import find_fault, with_ordered_sets
from horsies.codec.errors import DecodeError, EncodeError, Fault, Reason
from horsies.codec.wire import DEFAULT_LIMITS, EncodedCall, PayloadLimits, warn_large
from horsies.errors import RetrievalCode
from horsies.result import TaskError, TaskResult


def encode_untyped_call(
    args: tuple[Any, ...], kwargs: Mapping[str, Any], *, task_name: str, limits: PayloadLimits = DEFAULT_LIMITS
) -> EncodedCall:
    """Encode a call by the run-time types of its values; EncodeError names the argument."""
    values: dict[str, Any] = {f"args[{index}]": value for index, value in enumerate(args)}
    values.update(kwargs)
    if (fault := find_fault(values, string_keys=True)) is not None:
        raise EncodeError(task_name, fault)
    # one by one, so that the error can name the argument
    texts = {name: _encode_value(name, value, task_name) for name, value in values.items()}
    size = sum(map(len, texts.values()))
    if size > limits.max_bytes:
        largest = max(texts, key=lambda name: len(texts[name]))
        why = f"{size:,} bytes of JSON in all, {len(texts[largest]):,} of them here; the limit is {limits.max_bytes:,}"
        raise EncodeError(task_name, Fault((largest,), Reason.TOO_LARGE, why))
    items = list(texts.items())
    array = b",".join(text for _, text in items[: len(args)])
    members = b",".join(to_json(name) + b":" + text for name, text in items[len(args) :])
    if size > limits.warn_bytes:
        warn_large(task_name, "call", size, limits)
    return EncodedCall(
        (b"[" + array + b"]").decode() if args else None,
        (b"{" + members + b"}").decode() if kwargs else None,
    )


def encode_untyped_value(value: Any, *, name: str) -> str:
    """Encode one value, such as that of a signal, by its run-time type; EncodeError has the place and the reason."""
    if (fault := find_fault({name: value}, string_keys=True)) is not None:
        raise EncodeError(name, fault)
    return _encode_value(name, value, name).decode()


def _encode_value(name: str, value: Any, task_name: str) -> bytes:
    try:
        data = to_json(value, by_alias=True, round_trip=True, bytes_mode="base64", inf_nan_mode="constants")
        from_json(data, allow_inf_nan=False)
        return with_ordered_sets(value, data)
    except Exception as error:  # serializers of user types may raise anything
        told = str(error).removeprefix("Error serializing to JSON: ")
        raise EncodeError(
            task_name, Fault((name,), Reason.UNSERIALIZABLE, f"it cannot be written as JSON: {told}")
        ) from error


def read_json(text: str | bytes, owner: str) -> Any:
    """Read strict JSON: no NaN, no Infinity (nor 1e400), bounded depth; the last value of a duplicate key wins."""
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as error:
        deep = "recursion limit" in str(error)
        reason = Reason.TOO_DEEP if deep else Reason.MALFORMED
        raise DecodeError(owner, Fault((), reason, f"not strict JSON: {error}")) from error
    if b"Infinity" in to_json(value, inf_nan_mode="constants"):
        fault = find_fault({"value": value})
        if fault is not None and fault.reason is Reason.INFINITY:
            raise DecodeError(owner, fault)
    return value


def decode_untyped_result(text: str, *, task_name: str = "unknown") -> TaskResult[Any, TaskError]:
    """Decode a stored result, with its value as plain JSON data."""
    tree: object = read_json(text, task_name)
    shape = cast("dict[str, Any]", tree) if isinstance(tree, dict) else {}
    if len(shape) == 1:
        if "ok" in shape:
            return TaskResult(ok=shape["ok"])
        if "continue" in shape:
            why = "the task continued as a workflow: the value is that of its node, or of the run"
            return TaskResult(err=TaskError(RetrievalCode.RESULT_NOT_AVAILABLE, why))
        if isinstance(shape.get("err"), dict):
            try:
                return TaskResult(err=build_error(shape["err"]))
            except ValueError as error:
                raise DecodeError(task_name, Fault((), Reason.MALFORMED, str(error))) from error
    why = f"{a_type(cast('object', tree))} is not a stored result: an object with either ok or err"
    raise DecodeError(task_name, Fault((), Reason.MALFORMED, why))
