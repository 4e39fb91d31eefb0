"""One text for all calls that mean the same: for the key of `unique_by_args`.

`encode_call` gives an argument one place, whether it came by position or by name. Here the defaults of the arguments
that were left out are added, and the members of JSON objects are sorted.
"""

import hashlib
import json
from functools import lru_cache
from inspect import Parameter as P
from typing import Any, NoReturn

from horsies.codec.adapter import Field
from horsies.codec.errors import EncodeError, Fault, Reason
from horsies.codec.record import Record
from horsies.codec.schema import Problem
from horsies.codec.signature import Parameter
from horsies.codec.task_codec import TaskCodec
from horsies.codec.wire import DEFAULT_LIMITS, EncodedCall


def key_of_call(codec: TaskCodec, call: EncodedCall) -> str:
    """Equal for equal calls of a task, by position, by name or by default, and different for all others."""
    text = f"{codec.signature.task_name}\0{canonical_call(codec, call)}"
    return f"args:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def canonical_call(codec: TaskCodec, call: EncodedCall) -> str:
    """The text of a call, with the defaults of this process."""
    signature = codec.signature
    array: list[Any] = [] if call.args_json is None else json.loads(call.args_json)
    named: dict[str, Any] = {} if call.kwargs_json is None else json.loads(call.kwargs_json)
    defaults = _defaults(codec)
    unnamed = signature.positional_only
    for parameter in unnamed[len(array) :]:
        if parameter.name not in defaults:
            break
        array.append(defaults[parameter.name])
    # in a call with *args the array also has the parameters before it
    in_array = {parameter.name for parameter in signature.positional_or_keyword[: max(0, len(array) - len(unnamed))]}
    for parameter in (*signature.positional_or_keyword, *signature.keyword_only):
        if parameter.name not in in_array and parameter.name in defaults:
            named.setdefault(parameter.name, defaults[parameter.name])
    return json.dumps([array, named], sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=4096)
def _defaults(codec: TaskCodec) -> dict[str, Any]:
    """The defaults as they would be stored. One that cannot be sent has no text: a call without that argument differs
    from every call with it."""
    signature = codec.signature
    found: dict[str, Any] = {}
    for parameter in (*signature.positional_only, *signature.positional_or_keyword, *signature.keyword_only):
        if parameter.default is not P.empty:
            try:
                found[parameter.name] = _stored(signature.task_name, parameter)
            except EncodeError:
                continue
    return found


def _stored(task_name: str, parameter: Parameter) -> Any:
    def refuse(_name: str, problem: Problem) -> NoReturn:
        raise EncodeError(task_name, Fault((parameter.name,), Reason.INVALID, problem.why))

    field = Field("value", parameter.name, parameter.annotation, required=True)
    record = Record(task_name, "call", [field], extras=None, refuse=refuse)
    return json.loads(record.encode({"value": parameter.default}, DEFAULT_LIMITS))["value"]
