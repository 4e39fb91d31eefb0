"""Compares a stored node with the registered tasks. Pure: no database, no clock.

A value that is stored is decoded as a worker would decode it: an argument, or the result of an upstream that has ended.
Of an upstream that has not ended, the result type of its task is compared with the type of the parameter.
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, cast, get_args

from horsies.codec import DecodeError, Reason, TaskCodec
from horsies.codec.adapter import taken_result
from horsies.codec.errors import type_name
from horsies.codec.fit import fits
from horsies.codec.signature import Parameter
from horsies.codec.task_codec import without_parameters
from horsies.envelopes import PLAIN_ENVELOPES, Envelopes
from horsies.operate.workflow_check.report import Misfit, MisfitKind
from horsies.operate.workflow_check.stored import ITEMS, StoredNode, UnreadableGraph
from horsies.payload_codec import PayloadError
from horsies.registry import Registry

Levels = Sequence[Mapping[int, StoredNode]]
"""The nodes by index: of the node's own run or graph, then of the one around it, and so on."""

_MAX_ITEMS: Final = 1_000
"""How many items of a stored list are decoded."""
_UNTIL: Final = "until these runs have ended"
_KEEP_TASK: Final = f"register a task of this name {_UNTIL}, or cancel the runs"
_UNREADABLE_FIX: Final = "run the check with the payload codec and the keys of the workers"
_REFUSED_FIX: Final = f"let the type accept the stored values as well {_UNTIL}, or cancel the runs"


def compare(
    node: StoredNode,
    levels: Levels,
    tasks: Registry,
    path: tuple[str, ...] = (),
    envelopes: Envelopes = PLAIN_ENVELOPES,
) -> Iterator[Misfit]:
    """Everything that this node, and the nodes stored inside it, needs and `tasks` does not have."""
    path = (*path, node.node_id)
    if node.compensate is not None and tasks.get(node.compensate) is None:
        what = f"task {node.compensate!r}, which undoes nodes, is not registered"
        yield Misfit(MisfitKind.UNKNOWN_TASK, node.compensate, "", what, _KEEP_TASK, path)
    if not node.is_open or node.is_expanded:
        return
    try:
        if node.kind == "task":
            yield from _Call(node, levels, tasks, path, envelopes).misfits()
        elif node.kind == "workflow":
            inner = node.inner_nodes()
            for one in inner.values():
                yield from compare(one, [inner, *levels], tasks, path, envelopes)
        elif node.kind == "map":
            pattern = node.pattern()
            # the sources of an item are seen from inside the run of the items
            call = _Call(StoredNode.from_graph({**pattern, "kind": "task"}), [{}, *levels], tasks, path, envelopes)
            yield from call.misfits(pattern.get("parameter"), node.sources.get(ITEMS))
    except UnreadableGraph as error:
        what = f"the stored graph of {node.task_name!r} cannot be read: {error}"
        yield Misfit(MisfitKind.UNREADABLE, node.task_name, "", what, "cancel these runs and start them again", path)


def result_type(node: StoredNode, tasks: Registry) -> Any:
    """The type of a node's result by the registered tasks; Any where only the run can tell."""
    try:
        if node.kind == "workflow":
            output = node.graph().get("output")
            return type(None) if output is None else result_type(node.inner_nodes()[output], tasks)
        pattern: Mapping[str, Any] = node.pattern() if node.kind == "map" else {}
        name = pattern.get("task_name", node.task_name)
    except (UnreadableGraph, LookupError):
        return Any
    definition = tasks.get(name) if node.kind in ("task", "map") else None
    if definition is None or pattern.get("partial"):
        return Any
    result: Any = definition.codec.signature.result
    return list[result] if node.kind == "map" else result


class _Call:
    """The call of one node."""

    def __init__(
        self, node: StoredNode, levels: Levels, tasks: Registry, path: tuple[str, ...], envelopes: Envelopes
    ) -> None:
        self._node = node
        self._envelopes = envelopes
        self._levels = levels
        self._tasks = tasks
        self._path = path
        self._name = node.task_name

    def misfits(self, item: str | None = None, items: Mapping[str, Any] | None = None) -> Iterator[Misfit]:
        """`item`: the parameter that takes the items of a map, which come from `items`."""
        definition = self._tasks.get(self._name)
        if definition is None:
            what = f"task {self._name!r} is not registered"
            yield self._misfit(MisfitKind.UNKNOWN_TASK, "", what, _KEEP_TASK)
            return
        try:
            self._node = _plain_call(self._node, self._envelopes)
        except PayloadError as error:
            yield self._misfit(MisfitKind.UNREADABLE, "", f"stored arguments: {error}", _UNREADABLE_FIX)
            return
        signature = definition.codec.signature
        named = {one.name: one for one in (*signature.positional_or_keyword, *signature.keyword_only)}
        later: set[str] = set()
        results: dict[str, str] = {}
        for name, source in self._node.sources.items():
            if name == ITEMS or not name.isidentifier():  # the inputs of a workflow have no identifiers
                continue
            parameter = named.get(name, signature.var_keyword)
            if parameter is None:
                yield self._unknown(name, named)
                continue
            later.add(name)
            upstream = self._upstream(source)
            if upstream is None:  # a context, or a source that this check does not know
                continue
            if upstream.is_open:
                yield from self._compare_types(parameter, name, upstream, is_bare=source.get("bare") is True)
            elif (text := self._value(upstream, is_bare=source.get("bare") is True)) is not None:
                results[name] = text
        if item is not None:
            if item not in named:
                yield self._unknown(item, named)
            elif items is not None:
                later.add(item)
                yield from self._compare_items(definition.codec, named[item], self._upstream(items, inside=1))
        yield from self._compare_values(definition.codec, named, later - results.keys(), results)

    def _upstream(self, source: Mapping[str, Any], *, inside: int = 0) -> StoredNode | None:
        at, up = source.get("at"), source.get("up", 0)
        if not isinstance(at, int) or not isinstance(up, int) or up + inside >= len(self._levels):
            return None
        return self._levels[up + inside].get(at)

    # -- upstreams that have not ended -----------------------------------------------------------

    def _compare_types(
        self, parameter: Parameter, name: str, upstream: StoredNode, *, is_bare: bool
    ) -> Iterator[Misfit]:
        annotation = parameter.annotation
        taken = taken_result(annotation)
        takes_result = taken is not None
        produced = result_type(upstream, self._tasks)
        if takes_result is is_bare:
            given = "a value" if is_bare else "a TaskResult"
            what = f"parameter {name!r} takes {type_name(annotation)}, and these runs pass {given}"
            yield self._misfit(MisfitKind.RESULT_TYPE, name, what, self._both_ways(name))
        elif not fits(produced, get_args(taken)[0] if takes_result else annotation):
            yield self._type_misfit(name, annotation, upstream, produced)

    def _compare_items(self, codec: TaskCodec, parameter: Parameter, upstream: StoredNode | None) -> Iterator[Misfit]:
        if upstream is None:
            return
        name = parameter.name
        if upstream.is_open:
            produced = result_type(upstream, self._tasks)
            if not fits(produced, Sequence[parameter.annotation]):
                yield self._type_misfit(name, f"items of {type_name(parameter.annotation)}", upstream, produced)
            return
        text = self._value(upstream, is_bare=True)
        items = None if text is None else json.loads(text)
        if not isinstance(items, list):
            return  # the run says so when it comes to the map
        signature = codec.signature
        others = (*signature.positional_or_keyword, *signature.keyword_only)
        alone = without_parameters(codec, frozenset(one.name for one in others if one.name != name))
        for one in cast("list[object]", items)[:_MAX_ITEMS]:
            try:
                alone.decode_call(None, json.dumps({name: one}))
            except DecodeError as error:
                yield self._refused(MisfitKind.RESULT_REFUSED, error)
                return

    def _type_misfit(self, name: str, wanted: Any, upstream: StoredNode, produced: Any) -> Misfit:
        wanted = wanted if isinstance(wanted, str) else type_name(wanted)
        what = f"parameter {name!r} takes {wanted}, and {upstream.task_name!r} returns {type_name(produced)}"
        return self._misfit(MisfitKind.RESULT_TYPE, name, what, self._both_ways(name))

    def _both_ways(self, name: str) -> str:
        return f"let {name!r} take both types {_UNTIL}, or cancel the runs"

    # -- stored values ---------------------------------------------------------------------------

    def _compare_values(
        self, codec: TaskCodec, named: Collection[str], later: set[str], results: Mapping[str, str]
    ) -> Iterator[Misfit]:
        """Decode the call, again without each parameter that was refused, so that all of them are told."""
        text = _joined(self._node.kwargs, results)
        while True:
            try:
                without_parameters(codec, frozenset(later)).decode_call(self._node.args, text)
            except DecodeError as error:
                name = error.parameter
                if error.reason is Reason.MISSING and name is not None:
                    what = f"requires parameter {name!r}, which these runs do not give"
                    yield self._misfit(MisfitKind.MISSING_PARAMETER, name, what, f"give {name!r} a default")
                elif error.reason is Reason.UNEXPECTED and name is not None:
                    yield self._unknown(name, named)
                else:
                    kind = MisfitKind.RESULT_REFUSED if name in results else MisfitKind.ARGUMENT_REFUSED
                    yield self._refused(kind, error)
                rest = text if name is None else _left(text, name)
                more = {*later, name} if name is not None and name in named else later
                if rest == text and more == later:  # nothing to leave out
                    return
                text, later = rest, more
            else:
                return

    def _value(self, upstream: StoredNode, *, is_bare: bool) -> str | None:
        try:
            result = None if upstream.result is None else self._envelopes.unwrap(upstream.result)
        except PayloadError:  # the run says so when it comes to it
            return None
        return _value(replace(upstream, result=result), is_bare=is_bare)

    def _unknown(self, name: str, named: Collection[str]) -> Misfit:
        what = f"has no parameter {name!r}, which these runs give (it takes: {', '.join(named) or 'nothing'})"
        fix = f"keep the parameter {name!r}, with a default, {_UNTIL}, or cancel the runs"
        return self._misfit(MisfitKind.UNKNOWN_PARAMETER, name, what, fix)

    def _refused(self, kind: MisfitKind, error: DecodeError) -> Misfit:
        source = "result of an upstream" if kind is MisfitKind.RESULT_REFUSED else "argument"
        where = f"parameter {error.path!r} refuses a stored {source}" if error.path else f"refuses a stored {source}"
        return self._misfit(kind, error.parameter or "", f"{where}: {error.fault.why}", _REFUSED_FIX)

    def _misfit(self, kind: MisfitKind, subject: str, what: str, fix: str) -> Misfit:
        told = what if kind is MisfitKind.UNKNOWN_TASK else f"task {self._name!r}: {what}"
        return Misfit(kind, self._name, subject, told, fix, self._path)


def _plain_call(node: StoredNode, envelopes: Envelopes) -> StoredNode:
    """The node with what the app's payload codec has encoded. Raises PayloadError."""
    kwargs = node.kwargs if isinstance(node.kwargs, str) else None
    args, plain = envelopes.unwrap_call(node.args, kwargs, node.task_name)
    return replace(node, args=args, kwargs=node.kwargs if kwargs is None else plain)


def _value(upstream: StoredNode, *, is_bare: bool) -> str | None:
    """The JSON text that the parameter will take; None where there is none: the node is skipped, or takes an error."""
    if upstream.status != "COMPLETED" or upstream.result is None:
        return None
    if not is_bare:
        return upstream.result
    try:
        found = json.loads(upstream.result)
    except (ValueError, RecursionError):
        return None
    return json.dumps(found["ok"]) if isinstance(found, dict) and "ok" in found else None


def _joined(kwargs: Any, results: Mapping[str, str]) -> str | None:
    """The arguments as a worker composes them: as text, so that no value is changed on the way."""
    given = kwargs if isinstance(kwargs, str) else None
    members = ",".join(f"{json.dumps(name)}:{text}" for name, text in results.items())
    if not members:
        return given
    return "{" + ",".join(part for part in ((given or "{}").strip()[1:-1], members) if part) + "}"


def _left(text: str | None, name: str) -> str | None:
    """The arguments without this one; the same text when it is not among them."""
    try:
        values = json.loads(text or "{}")
    except (ValueError, RecursionError):
        return text
    if not isinstance(values, dict) or name not in values:
        return text
    return json.dumps({key: value for key, value in cast("dict[str, Any]", values).items() if key != name})
