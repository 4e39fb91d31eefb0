"""Reads pydantic's core schema of a task's types: which annotations are refused, and which checks can be skipped.

Works on the core schema and not on the annotations, because aliases, NewTypes, Annotated and generics are already
resolved there. Node types differ a little between pydantic versions; an unknown node is never an error, because each
value is also checked by its round trip at send.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import Any, Final

Node = dict[str, Any]

_TEMPORAL: Final = frozenset({"datetime", "date", "time", "timedelta"})
_STRING_KINDS: Final = frozenset({"str", "bytes", "uuid", "decimal", "url", "multi-host-url", *_TEMPORAL})
_NUMBER_KINDS: Final = frozenset({"int", "float"})
_ARRAY_KINDS: Final = frozenset({"list", "set", "frozenset", "tuple", "deque", "named-tuple"})
_OBJECT_KINDS: Final = {
    "dict": "dict",
    "ordered-dict": "dict",
    "counter": "dict",
    "typed-dict": "typed-dict",
    "dataclass": "model",
}
#: Types that pydantic writes as a key and reads back as the same value; each was tried.
_KEY_KINDS: Final = _STRING_KINDS | _NUMBER_KINDS | {"bool", "any", "custom"}
_WRAPPERS: Final = frozenset({"default", "function-before", "function-after", "function-wrap", "custom-error"})
_FOREIGN: Final = {
    "callable": ("a callable cannot be sent to another process", "send its name, and look it up in the task"),
    "generator": ("an iterator can be read only once and has no JSON form", "annotate it as list[...]"),
    "is-subclass": ("a class cannot be sent to another process", "send its name, and look it up in the task"),
}
_FIELD_KINDS: Final = frozenset({"typed-dict-field", "model-field", "dataclass-field"})
#: Not part of the wire: defaults may be any user value (even one that looks like a node).
NOT_NODES: Final = frozenset({"metadata", "serialization", "default", "config", "expected", "members", "function"})


@dataclass(frozen=True, slots=True)
class Problem:
    """Why an annotation is refused, and what to write instead."""

    why: str
    fix: str


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties by which the fast path skips checks."""

    has_sets: bool
    has_any: bool
    has_dataclass: bool
    #: Only types whose JSON text is exact by construction, so the round trip need not be tried.
    is_exact: bool


@dataclass(frozen=True, slots=True)
class _Atom:
    """One JSON form of a type: its JSON kind, its schema kind, and the values of an enum or Literal."""

    json: str
    kind: str
    label: str
    values: frozenset[Any] = frozenset()


class SchemaReader:
    """A core schema with resolved definitions."""

    def __init__(self, schema: Any) -> None:
        self._definitions: dict[str, Node] = {}
        if schema["type"] == "definitions":
            self._definitions = {node["ref"]: node for node in schema["definitions"]}
            schema = schema["schema"]
        self.root: Node = schema

    def fields(self) -> dict[str, Node]:
        fields: dict[str, Any] = self.root["fields"]
        return {name: field["schema"] for name, field in fields.items()}

    def problem(self, node: Node) -> Problem | None:
        """The first problem of this annotation.

        Stops at pydantic models: they have their own validators and config, possibly in a foreign library, and the
        round trip checks each of their values.
        """
        for inner, in_model in self._walk(node, set(), in_model=False):
            if not in_model and (problem := self._node_problem(inner)) is not None:
                return problem
        return None

    def traits(self) -> Traits:
        kinds = {node["type"] for node, _ in self._walk(self.root, set(), in_model=False)}
        extras = self.root.get("extras_schema")
        return Traits(
            has_sets=bool(kinds & {"set", "frozenset"}),
            has_any="any" in kinds,
            has_dataclass="dataclass" in kinds,
            is_exact=all(map(self._is_exact, self.fields().values())) and (extras is None or self._is_exact(extras)),
        )

    def keys_around(self, path: Sequence[str | int]) -> list[str]:
        """Which keys are known where the last part of a path is not one. The labels of unions are in the path too."""
        places = [self.root]
        for part in path[:-1]:
            places = [inner for place in places for inner in self._inside(place, part)]
        keys = (key for place in places for node in self._bare(place) for key in _named_fields(node))
        return list(dict.fromkeys(keys))

    def _inside(self, place: Node, part: str | int) -> Iterator[Node]:
        for node in self._bare(place):
            fields = _named_fields(node)
            if part in fields:
                yield fields[str(part)]
            elif node["type"] in {"union", "tagged-union"}:  # the part is the label of a choice
                yield from _child_nodes({"choices": node["choices"]})
            elif not fields:
                yield from _child_nodes(node)

    def _bare(self, node: Node) -> Iterator[Node]:
        """Without what adds nothing to the path of an error."""
        node = self._resolve(node)
        kind = node["type"]
        if kind in _WRAPPERS or kind in {"nullable", "model", "dataclass", *_FIELD_KINDS}:
            yield from self._bare(node["schema"])
        elif kind in {"json-or-python", "lax-or-strict", "chain"}:
            for inner in _child_nodes(node):
                yield from self._bare(inner)
        else:
            yield node

    def key_kinds(self) -> list[str]:
        """What the keys of its dicts are, in order."""
        nodes = (node for node, _ in self._walk(self.root, set(), in_model=False))
        return [node["keys_schema"]["type"] for node in nodes if "keys_schema" in node]

    # -- walking ---------------------------------------------------------------------------------

    def _resolve(self, node: Node) -> Node:
        while node["type"] == "definition-ref":
            node = self._definitions[node["schema_ref"]]
        return node

    def _walk(self, node: Node, seen: set[str], *, in_model: bool) -> Iterator[tuple[Node, bool]]:
        node = self._resolve(node)
        if (ref := node.get("ref")) is not None:
            if ref in seen:
                return
            seen.add(ref)
        yield node, in_model
        kind = node["type"]
        if kind == "json-or-python":  # only the JSON side is stored
            yield from self._walk(node["json_schema"], seen, in_model=in_model)
        elif kind == "lax-or-strict":
            yield from self._walk(node["lax_schema"], seen, in_model=in_model)
        else:
            for child in _child_nodes(node):
                yield from self._walk(child, seen, in_model=in_model or kind == "model")

    def _node_problem(self, node: Node) -> Problem | None:
        kind = node["type"]
        if kind in _FOREIGN:
            return Problem(*_FOREIGN[kind])
        if kind == "enum":
            odd = [member.name for member in node["members"] if not isinstance(member.value, str | int | float | None)]
            if odd:
                why = f"{node['cls'].__name__}.{odd[0]} has a value that is not a string or a number"
                return Problem(why, "give the members string or integer values")
        if kind in {"dict", "ordered-dict", "counter", "defaultdict"} and "keys_schema" in node:
            return self._key_problem(node["keys_schema"])
        if kind == "union":
            for left, right in combinations(self._atoms(node), 2):
                if _ambiguous(left, right):
                    why = f"{left.label} and {right.label} look the same in JSON, a reader cannot tell them apart"
                    return Problem(why, "annotate one of them, or wrap them in two models or dataclasses")
        return None

    def _key_problem(self, keys: Node) -> Problem | None:
        atoms = self._atoms(keys)
        fix = "use string keys, or a list of pairs"
        if len(atoms) > 1:
            labels = " or ".join(atom.label for atom in atoms)
            return Problem(f"keys of JSON objects are strings; {labels} cannot be told apart there", fix)
        atom = atoms[0]
        if atom.kind in _KEY_KINDS or (atom.kind in {"enum", "literal"} and atom.json == "string"):
            return None
        return Problem(f"{atom.label} cannot be a key of a JSON object", fix)

    # -- unions ----------------------------------------------------------------------------------

    def _atoms(self, node: Node) -> list[_Atom]:
        node = self._resolve(node)
        kind = node["type"]
        if "serialization" in node:
            return [_Atom("custom", "custom", kind)]
        if kind == "nullable":
            return [_Atom("null", "none", "None"), *self._atoms(node["schema"])]
        if kind == "union":
            return [atom for choice in _child_nodes({"choices": node["choices"]}) for atom in self._atoms(choice)]
        if kind in _WRAPPERS or (kind == "model" and node.get("root_model")):
            return self._atoms(node["schema"])
        if kind == "json-or-python":
            return self._atoms(node["json_schema"])
        if kind in {"enum", "literal"}:
            return _value_atoms(node)
        return [_plain_atom(node)]

    # -- exactness -------------------------------------------------------------------------------

    def _is_exact(self, node: Node) -> bool:
        """True if the JSON text is exact. Not for dict: pydantic writes half a surrogate pair in a key as U+FFFD,
        without an error."""
        if "serialization" in node:
            return False
        match node["type"]:
            case "int" | "str" | "bool" | "none":
                return True
            case "float":
                return not node.get("allow_inf_nan")
            case "nullable":
                return self._is_exact(node["schema"])
            case "list":
                return "items_schema" in node and self._is_exact(node["items_schema"])
            case "tuple":
                return all(self._is_exact(item) for item in node["items_schema"])
            case "literal":
                return all(isinstance(value, str) and not isinstance(value, Enum) for value in node["expected"])
            case _:
                return False


def _named_fields(node: Node) -> dict[str, Node]:
    match node["type"]:
        case "typed-dict" | "model-fields":
            return dict(node["fields"])
        case "dataclass-args":
            return {field["name"]: field for field in node["fields"]}
        case _:
            return {}


def _child_nodes(node: Node) -> Iterator[Node]:
    for key, value in node.items():
        if key not in NOT_NODES:
            yield from _nodes_in(value)


def _nodes_in(value: Any) -> Iterator[Node]:
    if isinstance(value, dict):
        if isinstance(value.get("type"), str):  # pyright: ignore[reportUnknownMemberType] # an untyped schema
            yield value
        else:  # a mapping of names to nodes; a field may be called "type"
            for inner in value.values():  # pyright: ignore[reportUnknownVariableType] # an untyped schema
                yield from _nodes_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:  # pyright: ignore[reportUnknownVariableType] # an untyped schema
            yield from _nodes_in(inner)


def _value_atoms(node: Node) -> list[_Atom]:
    """Enum or Literal: one atom per JSON kind of its values."""
    is_enum = node["type"] == "enum"
    label = node["cls"].__name__ if is_enum else "Literal"
    groups: dict[tuple[str, str], set[Any]] = {}
    for item in node["members"] if is_enum else node["expected"]:
        # A Literal of enum members behaves like that enum.
        kind = "enum" if isinstance(item, Enum) else "literal"
        value = item.value if isinstance(item, Enum) else item
        groups.setdefault((_json_kind(value), kind), set()).add(value)
    return [_Atom(json, kind, label, frozenset(values)) for (json, kind), values in groups.items()]


def _json_kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    return "string" if isinstance(value, str) else "number"


def _plain_atom(node: Node) -> _Atom:
    kind: str = node["type"]
    cls = node.get("cls")
    label = cls.__name__ if isinstance(cls, type) else kind
    if kind in _STRING_KINDS:
        return _Atom("string", kind, label)
    if kind in _NUMBER_KINDS:
        return _Atom("number", kind, label)
    if kind in _ARRAY_KINDS or kind == "call":  # before pydantic 2.14 a NamedTuple is a call
        return _Atom("array", "named-tuple" if kind == "call" else kind, label)
    if kind in _OBJECT_KINDS or kind in {"model", "tagged-union"}:
        return _Atom("object", _OBJECT_KINDS.get(kind, "model"), label)
    return _Atom({"any": "any", "bool": "bool", "none": "null"}.get(kind, "custom"), kind, label)


def _ambiguous(left: _Atom, right: _Atom) -> bool:
    kinds = {left.kind, right.kind}
    if "any" in kinds:
        return kinds != {"any"} and "null" not in {left.json, right.json}
    if left.json != right.json or left.json in {"custom", "null", "bool"}:
        return False
    if "enum" in kinds:
        return _ambiguous_enum(left, right)
    if len(kinds) == 1:
        return False
    if left.json == "string":
        # Literal | str has the same text either way; any other type beside str is ambiguous.
        # Every UUID's text is valid base64, and numeric text is a valid date (seconds since 1970).
        return (
            ("str" in kinds and "literal" not in kinds)
            or "bytes" in kinds
            or kinds == {"datetime", "date"}
            or ("decimal" in kinds and bool(kinds & _TEMPORAL))
        )
    if left.json == "object":
        return kinds == {"dict", "model"}
    return left.json == "array"  # numbers: 1 and 1.0 differ in JSON text, so int | float is exact


def _ambiguous_enum(left: _Atom, right: _Atom) -> bool:
    if left.values and right.values:
        return bool(left.values & right.values) and left.label != right.label
    other = right.kind if left.kind == "enum" else left.kind
    return other in {"str", "bytes", "int", "float"}
