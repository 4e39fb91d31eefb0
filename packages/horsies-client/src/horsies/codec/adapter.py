"""Builds the pydantic adapter behind a `Record`, and the wire form of results and errors."""

import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn, cast

from pydantic import ConfigDict, GetCoreSchemaHandler, TypeAdapter
from pydantic_core import CoreConfig, CoreSchema, core_schema

from horsies.codec.errors import type_name
from horsies.codec.exact import OWN
from horsies.codec.schema import Problem
from horsies.result import TaskError, TaskResult

#: For bare annotations and what stands in them (containers, dataclasses, TypedDicts). A pydantic model
#: keeps its own config: bytes in a model are UTF-8 text unless the model itself says base64.
#: Infinity is written as a token, not as null, so that it is seen in the text and refused. A key that a TypedDict or a
#: dataclass does not have would vanish, so it is refused, unless that says otherwise itself.
_CONFIG: Final = ConfigDict(
    ser_json_bytes="base64",
    val_json_bytes="base64",
    ser_json_inf_nan="constants",
    allow_inf_nan=False,
    extra="forbid",
)
CORE_CONFIG: Final = CoreConfig(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="constants", allow_inf_nan=False
)


_TYPED_DICT: Final = Problem(
    "it contains a TypedDict of the module typing, which cannot be read below Python 3.12",
    "write `from typing_extensions import TypedDict`",
)


_RESULT_INSIDE: Final = Problem(
    "a TaskResult cannot be a part of another type, and needs the type of its value",
    "annotate it as TaskResult[T, TaskError], alone or | None, to take the result of a workflow's node, or as "
    "list[TaskResult[T, TaskError]], to take those of a partial map",
)


@dataclass(frozen=True, slots=True)
class Field:
    """A field of the JSON object. `key` is its name there, `label` its name in messages."""

    key: str
    label: str
    annotation: Any
    required: bool


Refuse = Callable[[str, Problem], NoReturn]


def build_adapter(fields: Sequence[Field], extras: Field | None, refuse: Refuse) -> TypeAdapter[dict[str, Any]]:
    def schema_of(field: Field, handler: GetCoreSchemaHandler) -> CoreSchema:
        try:
            if (taken := taken_result(field.annotation)) is not None:
                shape = _task_result_schema(typing.get_args(taken)[0], handler)
                return shape if taken is field.annotation else core_schema.nullable_schema(shape)
            if (item := listed_result(field.annotation)) is not None:
                return core_schema.list_schema(_task_result_schema(typing.get_args(item)[0], handler))
            return handler.generate_schema(field.annotation)
        except Exception as error:  # pydantic, and schema hooks of user types
            if getattr(error, "code", None) == "typed-dict-version":
                refuse(field.label, _TYPED_DICT)
            if "horsies.result.TaskResult" in str(field.annotation):
                refuse(field.label, _RESULT_INSIDE)
            told = str(error).split(". ")[0].split("\n")[0]
            refuse(
                field.label,
                Problem(
                    f"pydantic cannot describe {type_name(field.annotation)}: {told}",
                    "use plain data: a pydantic model, a dataclass, a TypedDict or built-in types",
                ),
            )

    class Arguments:
        @classmethod
        def __get_pydantic_core_schema__(cls, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
            return core_schema.typed_dict_schema(
                {f.key: core_schema.typed_dict_field(schema_of(f, handler), required=f.required) for f in fields},
                extra_behavior="forbid" if extras is None else "allow",
                extras_schema=None if extras is None else schema_of(extras, handler),
                config=CORE_CONFIG,
            )

    return TypeAdapter(Arguments, config=_CONFIG)  # pyright: ignore[reportReturnType] # what its schema yields


def taken_result(annotation: Any) -> Any | None:
    """The `TaskResult[T, TaskError]` of a parameter that takes the result of a node: the annotation itself, or beside
    None, for a task that is also called without one."""
    if typing.get_origin(annotation) is TaskResult:
        return annotation
    members = typing.get_args(annotation) if typing.get_origin(annotation) in (typing.Union, types.UnionType) else ()
    results = [one for one in members if typing.get_origin(one) is TaskResult]
    return results[0] if len(results) == 1 and set(members) == {results[0], type(None)} else None


def listed_result(annotation: Any) -> Any | None:
    """The X of `list[X]` if that is a TaskResult: what a partial map returns, and what takes it."""
    items = typing.get_args(annotation) if typing.get_origin(annotation) is list else ()
    return items[0] if items and typing.get_origin(items[0]) is TaskResult else None


def _task_result_schema(value: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
    """The schema of a parameter of type TaskResult[T, TaskError], which takes the result of another workflow node."""
    error = core_schema.typed_dict_schema(
        {
            "error_code": core_schema.typed_dict_field(core_schema.str_schema(min_length=1)),
            "message": core_schema.typed_dict_field(core_schema.str_schema(), required=False),
            "data": core_schema.typed_dict_field(core_schema.any_schema(), required=False),
            "retry_after_ms": core_schema.typed_dict_field(
                core_schema.nullable_schema(core_schema.int_schema(ge=0)), required=False
            ),
        },
        extra_behavior="ignore",
    )
    shape = core_schema.typed_dict_schema(
        {
            "ok": core_schema.typed_dict_field(handler.generate_schema(value), required=False),
            "err": core_schema.typed_dict_field(error, required=False),
        },
        config=CORE_CONFIG,
        extra_behavior="forbid",
    )
    return core_schema.no_info_after_validator_function(
        _build_result,
        core_schema.no_info_before_validator_function(_open_result, shape),
        serialization=core_schema.plain_serializer_function_ser_schema(_open_result, return_schema=shape),
        metadata={OWN: True},
    )


def _open_result(result: Any) -> Any:
    if not isinstance(result, TaskResult):
        return result  # the JSON object, or a value that the shape refuses
    opened = cast("TaskResult[Any, Any]", result)
    if opened.is_ok():
        return {"ok": opened.ok_value}
    return {"err": error_fields(opened.err_value)} if isinstance(opened.err_value, TaskError) else opened


def error_fields(error: TaskError) -> dict[str, Any]:
    """The JSON fields of a TaskError."""
    fields = {"error_code": str(error.error_code), "message": error.message, "data": error.data}
    if error.retry_after_ms is not None:
        fields["retry_after_ms"] = error.retry_after_ms
    return fields


def _build_result(shape: dict[str, Any]) -> TaskResult[Any, TaskError]:
    if len(shape) != 1:
        raise ValueError("a result holds exactly one of ok and err")
    if "ok" in shape:
        return TaskResult(ok=shape["ok"])
    return TaskResult(err=build_error(shape["err"]))


def build_error(fields: Mapping[str, Any]) -> TaskError:
    """The TaskError of these JSON fields; unknown keys are ignored, because a newer worker may write more."""
    code, message, after = fields.get("error_code"), fields.get("message", ""), fields.get("retry_after_ms")
    if not isinstance(code, str) or not isinstance(message, str) or not isinstance(after, int | None):
        raise ValueError("a stored error needs a text error_code and message")
    return TaskError(code, message, fields.get("data"), retry_after_ms=after)
