"""Rewrites pydantic's core schema so that nothing is read as another value than it was.

pydantic reads "5" and `true` as the integers 5 and 1, and 5 as a moment of 1970. Here a plain type takes only itself,
and a richer one itself or the text that stands for it: the same on both sides, so that what the sender may give is what
the worker reads, also from a sender that knows no types (a send by name, a workflow's edge). All in the schema, because
Rust checks it on the way: strict integers cost nothing, a datetime 0.1 µs.

Models and pydantic's own dataclasses keep their settings, and a type with a serializer of its own is read as it says:
what it writes for an int may well be text.
"""

from collections.abc import Callable, Sequence, Set as AbstractSet
from enum import Enum
from typing import Any, Final

from pydantic.dataclasses import is_pydantic_dataclass
from pydantic_core import CoreConfig, SchemaSerializer, SchemaValidator, core_schema

from horsies.codec.schema import NOT_NODES, Node

_PLAIN: Final = frozenset({"int", "str", "bool", "bytes"})
#: Written by a marked serializer of ours, which does not change what is inside.
OWN: Final = "horsies_own"

_STR: Final[Any] = core_schema.str_schema(strict=True)
_INT: Final[Any] = core_schema.int_schema(strict=True)


def _told(schema: Any, message: str) -> Any:
    return core_schema.custom_error_schema(
        schema, custom_error_type="not_exact", custom_error_message=f"Input should be {message}"
    )


#: What stands for each richer type. Digits alone would be a time since 1970, and a day is not a moment.
_FORMS: Final[dict[str, tuple[Any, str]]] = {
    "datetime": (
        core_schema.str_schema(strict=True, pattern=r"^\d{4}-\d\d-\d\d[Tt _]"),
        "a datetime or its ISO 8601 text, such as 2026-01-31T12:00:00Z",
    ),
    "date": (
        core_schema.str_schema(strict=True, pattern=r"^\d{4}-\d\d-\d\d$"),
        "a date or its ISO 8601 text, such as 2026-01-31",
    ),
    "time": (_STR, "a time or its ISO 8601 text, such as 12:00:00"),
    "timedelta": (_STR, "a timedelta or its ISO 8601 text, such as PT5S"),
    "decimal": (
        core_schema.union_schema([_STR, _INT], mode="left_to_right"),
        "a Decimal, its text or an integer, not a float",
    ),
    "uuid": (_STR, "a UUID or its text"),
}


_NUMBER: Final = "a valid number, and an integer only if a float is equal to it"

_ORDERED: Final = (
    "a list or another sequence, such as a tuple; a set and a view of a dict have no order to keep, and an iterator "
    "can be read only once"
)
_UNORDERED: Final = "a set, a frozenset or a sequence; an iterator can be read only once"
#: What is taken for each collection, and how to say that.
_COLLECTIONS: Final[dict[str, tuple[Any, str]]] = {
    "list": ((list, tuple, Sequence), _ORDERED),
    "tuple": ((tuple, list, Sequence), _ORDERED),
    "deque": ((list, Sequence), _ORDERED),
    "set": ((set, AbstractSet, Sequence), _UNORDERED),
    "frozenset": ((frozenset, AbstractSet, Sequence), _UNORDERED),
}


def exact_validator(schema: Any, config: CoreConfig) -> SchemaValidator:
    """The validator of a core schema that takes each type as itself."""
    return SchemaValidator(_rewritten(schema, _as_itself, _of_collections), config)


def honest_serializer(schema: Any, config: CoreConfig) -> SchemaSerializer:
    """A serializer that writes True in a number field of a dataclass as `true`, which every reader refuses, not as 1.

    Python does not check the fields of a plain dataclass, so a wrong value is first seen here.
    """
    return SchemaSerializer(_rewritten(schema, _as_it_is), config)


def _rewritten(
    schema: Any, change: Callable[[Node], Node | None], wrapped: Callable[[Node], Node] = lambda node: node
) -> Any:
    """A copy with some nodes changed: the nodes themselves belong to the classes of users too. `wrapped` gets each
    other node with what is inside it changed already."""
    reached: dict[str, None] = {}

    def copied(node: Node) -> Node:
        kind = node["type"]
        if kind == "definition-ref":
            reached[node["schema_ref"]] = None
            return node
        if kind == "model" or (kind == "dataclass" and is_pydantic_dataclass(node["cls"])) or _is_custom(node):
            return node
        if (changed := change(node)) is not None:
            return changed
        return wrapped({key: value if key in NOT_NODES else inside(value) for key, value in node.items()})

    def inside(value: Any) -> Any:
        if isinstance(value, dict):
            if isinstance(value.get("type"), str):  # pyright: ignore[reportUnknownMemberType] # an untyped schema
                return copied(value)  # pyright: ignore[reportUnknownArgumentType] # an untyped schema
            return {key: inside(inner) for key, inner in value.items()}  # pyright: ignore[reportUnknownVariableType]
        if isinstance(value, list | tuple):
            made = [inside(inner) for inner in value]  # pyright: ignore[reportUnknownVariableType]
            return tuple(made) if isinstance(value, tuple) else made
        return value

    if schema["type"] != "definitions":
        return copied(schema)
    definitions = {node["ref"]: node for node in schema["definitions"]}
    root = copied(schema["schema"])
    done: set[str] = set()
    while left := [ref for ref in reached if ref not in done]:
        for ref in left:
            done.add(ref)
            definitions[ref] = copied(definitions[ref])
    return {**schema, "schema": root, "definitions": list(definitions.values())}


def _is_custom(node: Node) -> bool:
    """True for a type with a serializer function of its own; pydantic's functions for containers do not count."""
    if "serialization" not in node or OWN in node.get("metadata", {}):
        return False
    function = node["serialization"].get("function")
    return not getattr(function, "__module__", "").startswith("pydantic.")


def _as_it_is(node: Node) -> Node | None:
    if node["type"] not in {"int", "float"}:
        return None
    return {**node, "serialization": core_schema.simple_ser_schema("any")}


def _as_itself(node: Node) -> Node | None:
    kind = node["type"]
    if kind in _PLAIN:
        return {"strict": True, **node}
    if kind == "float":
        return _unrounded(node)
    if (form := _FORMS.get(kind)) is not None:
        return _rich(node, *form)
    if kind in {"enum", "literal"}:
        return _of_values(node)
    if kind == "lax-or-strict" and node["lax_schema"]["type"] == "function-plain":  # addresses of the Internet
        return _rich(node, _STR, "an address or its text")
    return None


def _rich(node: Node, form: Any, told: str) -> Node:
    """In JSON its form; in Python itself, or its form unless the caller is strict."""
    bare: Any = {key: value for key, value in node.items() if key != "ref"}
    formed = core_schema.chain_schema([_told(form, told), bare])
    if node["type"] == "literal":  # of members of an enum
        member = core_schema.chain_schema([core_schema.is_instance_schema(Enum), bare])
        either = core_schema.union_schema([member, formed], mode="left_to_right")
        return _named(node, core_schema.json_or_python_schema(formed, _told(either, told)))
    itself: Any = {**bare, "strict": True}
    either = core_schema.union_schema([itself, formed], mode="left_to_right")
    # a union asks its choices for an exact match first, by the strict branch but without being strict
    in_python = core_schema.lax_or_strict_schema(_told(either, told), itself)
    return _named(node, core_schema.json_or_python_schema(formed, in_python))


def _refuse_rounding(value: Any) -> Any:
    if isinstance(value, int) and value != float(value):
        raise ValueError("no float is equal to it")
    return value


def _of_collections(node: Node) -> Node:
    """In Python only a collection that stands for it; pydantic would read any iterable."""
    if (given := _COLLECTIONS.get(node["type"])) is None:
        return node
    kinds, told = given
    bare: Any = {key: value for key, value in node.items() if key != "ref"}
    in_python = core_schema.chain_schema([_told(core_schema.is_instance_schema(kinds), told), bare])
    return _named(node, core_schema.json_or_python_schema(bare, in_python))


def _unrounded(node: Node) -> Node:
    """An integer is taken for a float that is equal to it. Only beyond 2**53 is Python asked: 0.03 µs a number."""
    # strict still takes everything with a __float__, such as a Fraction, a Decimal or a numpy.float32
    float_or_int = _told(core_schema.is_instance_schema((float, int)), _NUMBER)
    itself: Any = {"strict": True, **node}
    inside = core_schema.float_schema(strict=True, gt=-(2.0**53), lt=2.0**53)
    beyond = core_schema.no_info_before_validator_function(_refuse_rounding, core_schema.float_schema(strict=True))
    number = _told(core_schema.union_schema([inside, beyond], mode="left_to_right"), _NUMBER)
    is_bare = node.keys() <= {"type", "metadata"}
    return core_schema.json_or_python_schema(  # pyright: ignore[reportReturnType] # an untyped schema
        number if is_bare else core_schema.chain_schema([number, itself]),
        core_schema.chain_schema([float_or_int, itself]),
    )


def _of_values(node: Node) -> Node:
    """Enum or Literal: a value is looked up by `==`, and `True == 1 == 1.0`; so the kind is checked before."""
    given: Sequence[Any] = node["members"] if node["type"] == "enum" else node["expected"]
    values = [item.value if isinstance(item, Enum) else item for item in given]
    kinds = {_kind(value) for value in values}
    if node.get("missing") is not None or not kinds <= _OF_KIND.keys():
        return node
    told = " or ".join(repr(value) for value in values[:20])
    if node["type"] == "enum" or any(isinstance(item, Enum) for item in given):
        choices: list[Any] = [schema for kind, schema in _OF_KIND.items() if kind in kinds]
        form = choices[0] if len(choices) == 1 else core_schema.union_schema(choices, mode="left_to_right")
        return _rich(node, form, told)
    if kinds == {str}:
        return node
    chains: list[Any] = [
        core_schema.chain_schema([schema, core_schema.literal_schema([v for v in values if _kind(v) is kind])])
        for kind, schema in _OF_KIND.items()
        if kind in kinds
    ]
    return _named(node, _told(core_schema.union_schema(chains, mode="left_to_right"), told))


def _named(node: Node, made: Any) -> Node:
    return {**made, "ref": node["ref"]} if "ref" in node else made


def _kind(value: object) -> type:
    return next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), type(value))


_OF_KIND: Final[dict[type, Any]] = {
    bool: core_schema.bool_schema(strict=True),
    int: _INT,
    float: core_schema.float_schema(strict=True),
    str: _STR,
    type(None): core_schema.none_schema(),
}
