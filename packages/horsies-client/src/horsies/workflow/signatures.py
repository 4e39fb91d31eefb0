"""The fingerprint of a workflow: a hash of its definition and of the signatures of its tasks.

A run keeps the fingerprint of its start. Where that of the current code is the same, every call and result of the run
still fits; where it differs, `horsies workflows check` compares them one by one.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from horsies.codec import TaskCodec
from horsies.codec.errors import type_name
from horsies.codec.fit import described
from horsies.codec.signature import Parameter
from horsies.workflow.nodes import Node, TaskNode

_ADDRESS: Final = re.compile(r" at 0x[0-9a-f]+")


def fingerprint(traits: object, nodes: Sequence[Node[Any]], inner: Sequence[str]) -> str:
    """64 hexadecimal digits. `traits`: the graph without arguments, as plain data. `inner`: the fingerprints of the
    workflows nested in it."""
    calls: list[Any] = []
    for node in nodes:
        # the result of a plain node is in the signature of its task
        call = [] if type(node) is TaskNode else _type(node.result_type)
        if isinstance(node, TaskNode):
            call.append(_signature(node.definition.codec))
        # a task that undoes the node is started by name as well
        if (undo := getattr(getattr(node.options, "compensate", None), "definition", None)) is not None:
            call.append(_signature(undo.codec))
        calls.append(call)
    text = json.dumps([traits, calls, list(inner)], sort_keys=True)
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


@lru_cache(maxsize=4096)
def _signature(codec: TaskCodec) -> str:
    signature = codec.signature
    kinds = (
        signature.positional_only, signature.positional_or_keyword, signature.keyword_only,
        (signature.var_positional,), (signature.var_keyword,),
    )  # fmt: skip
    parameters = [[_parameter(one) for one in kind if one is not None] for kind in kinds]
    return json.dumps([parameters, _type(signature.result)])


def _parameter(parameter: Parameter) -> list[Any]:
    return [parameter.name, parameter.required, *_type(parameter.annotation)]


def _type(annotation: Any) -> list[str | None]:
    """The name of a type and its JSON form: a model keeps its name when one of its fields changes."""
    try:
        form = described(annotation)
    except TypeError:  # an annotation that cannot be hashed
        form = None
    return [_ADDRESS.sub("", type_name(annotation)), _ADDRESS.sub("", form or "")]
