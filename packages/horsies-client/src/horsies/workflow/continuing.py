"""`Continue`: what a task of a workflow stores when another workflow goes on in its place."""

import json
from typing import Any

from horsies.codec.errors import type_name
from horsies.codec.fit import fits
from horsies.errors import HorsiesError
from horsies.result import CONTINUES
from horsies.workflow.graph import Graph
from horsies.workflow.start import graph_data


def continue_text(spec: Graph[Any], wanted: Any) -> tuple[str, str | None]:
    """The text of the result, or why the task cannot continue with this workflow. `wanted`: the task's result type."""
    if spec.free:
        used = ", ".join(map(repr, spec.free))
        return "", f"workflow {spec.name!r} uses results of {used}, which are not in it: give their values"
    returned = spec.codec.signature.result
    if not fits(returned, wanted):
        why = f"workflow {spec.name!r} returns {type_name(returned)}, and the task returns {type_name(wanted)}"
        return "", f"{why}: what continues a task returns the same type; name an output of that type"
    try:
        made = graph_data(spec, envelopes=spec.app.envelopes)
    except HorsiesError as error:
        return "", str(error)
    return f"{CONTINUES}{json.dumps(made, ensure_ascii=False, separators=(',', ':'))}}}", None
