"""Converts between Python values and the JSON text of a row by the task's annotations. Only this package uses pydantic.

The client encodes calls and decodes results, the worker's child process does the reverse. JSON never contains a class
name: a row can never choose which class is built from it.
"""

from horsies.codec.errors import CodecError, DecodeError, EncodeError, Reason, ResultError
from horsies.codec.failure import encode_error
from horsies.codec.task_codec import TaskCodec
from horsies.codec.untyped import decode_untyped_result, encode_untyped_call, encode_untyped_value
from horsies.codec.wire import DEFAULT_LIMITS, EncodedCall, EncodedResult, PayloadLimits

__all__ = [
    "DEFAULT_LIMITS",
    "CodecError",
    "DecodeError",
    "EncodeError",
    "EncodedCall",
    "EncodedResult",
    "PayloadLimits",
    "Reason",
    "ResultError",
    "TaskCodec",
    "decode_untyped_result",
    "encode_error",
    "encode_untyped_call",
    "encode_untyped_value",
]
