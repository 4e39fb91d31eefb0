"""Encodes and decodes the calls and results of a task.

A call is a JSON object and a JSON array. The object holds every named parameter in the order of the signature, whether
the caller passed it by name or by position, so that equal calls have equal text. The array holds positional-only
parameters and *args (with *args also the parameters before it, which can be passed in no other way). Omitted arguments
are not written: the worker's default applies. A result is `{"ok": value}` or `{"err": {...}}`.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, NoReturn, cast

from pydantic.fields import FieldInfo
from pydantic_core import to_json

from horsies._checks import a_type
from horsies.codec.adapter import Field
from horsies.codec.compare import safe_repr
from horsies.codec.errors import DecodeError, EncodeError, Fault, Reason, ResultError, type_name
from horsies.codec.failure import encode_error, serialization_error
from horsies.codec.record import Record
from horsies.codec.schema import Problem
from horsies.codec.signature import Parameter, TaskSignature, read_batch_signature, read_signature
from horsies.codec.untyped import decode_untyped_result, read_json
from horsies.codec.wire import DEFAULT_LIMITS, EncodedCall, EncodedResult, PayloadLimits
from horsies.errors import BUILT_IN_CODES, ContractCode, OperationalErrorCode, TaskDefinitionError
from horsies.result import Continue, TaskError, TaskResult
from horsies.snoozing import Snooze

#: *args gets a key that cannot be a keyword of a Python call.
_VARARGS_KEY: Final = "*"


class TaskCodec:
    """Built once per task, at definition; safe to use from any thread."""

    __slots__ = ("_arguments", "_has_array", "_named", "_order", "_result", "_unnamed", "signature")

    def __init__(self, signature: TaskSignature) -> None:
        self.signature = signature
        self._named = tuple(parameter.name for parameter in signature.positional_or_keyword)
        self._unnamed = tuple(f"/{parameter.name}" for parameter in signature.positional_only)
        self._order = self._unnamed + self._named
        self._has_array = bool(self._unnamed) or signature.var_positional is not None
        self._arguments = Record(
            signature.task_name,
            "call",
            _fields(signature),
            extras=None if signature.var_keyword is None else _field(signature.var_keyword),
            refuse=self._refuse_parameter,
        )
        self._refuse_wrong_defaults()
        ok = Field("ok", "ok", signature.result, required=True)
        self._result = Record(signature.task_name, "result", [ok], extras=None, refuse=self._refuse_result)

    @classmethod
    def from_function(cls, fn: Callable[..., Any], *, task_name: str, location: str | None = None) -> "TaskCodec":
        """Read the signature of a sync or async function, or raise TaskDefinitionError."""
        return cls(read_signature(fn, task_name=task_name, location=location))

    @classmethod
    def from_batch_function(cls, fn: Callable[..., Any], *, task_name: str, location: str | None = None) -> "TaskCodec":
        """The codec of the single tasks of a batch task, whose function takes a list of items."""
        return cls(read_batch_signature(fn, task_name=task_name, location=location))

    def _refuse_parameter(self, name: str, problem: Problem) -> NoReturn:
        self._refuse(f"parameter {name!r}: {problem.why}", problem.fix)

    def _refuse_wrong_defaults(self) -> None:
        """A default never crosses the wire, so a wrong one would be seen in the worker only, when the code uses it."""
        signature = self.signature
        for key, parameter in (
            *((f"/{one.name}", one) for one in signature.positional_only),
            *((one.name, one) for one in (*signature.positional_or_keyword, *signature.keyword_only)),
        ):
            if isinstance(parameter.default, FieldInfo):
                fix = f"write {parameter.name}: Annotated[{type_name(parameter.annotation)}, Field(...)] = the default"
                self._refuse(f"parameter {parameter.name!r}: its default is a pydantic Field, not a value", fix)
            if (why := self._arguments.wrong_default(key, parameter.default)) is not None:
                fix = "correct the default, or add its type to the annotation"
                self._refuse(f"parameter {parameter.name!r}: its default {safe_repr(parameter.default)}: {why}", fix)

    def _refuse_result(self, _name: str, problem: Problem) -> NoReturn:
        self._refuse(f"the result type: {problem.why}", problem.fix)

    def _refuse(self, why: str, fix: str) -> NoReturn:
        raise TaskDefinitionError(self.signature.task_name, why, fix, location=self.signature.location)

    # -- calls -----------------------------------------------------------------------------------

    def encode_call(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], *, limits: PayloadLimits = DEFAULT_LIMITS
    ) -> EncodedCall:
        """The text of a call, which reads back as the same values, or EncodeError."""
        text = self._arguments.encode(self._bind(args, kwargs), limits)
        if self._has_array:
            return self._split(text)
        return EncodedCall(None, None if text == "{}" else text)

    def decode_call(self, args_json: str | None, kwargs_json: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the function, decoded by its annotations, or DecodeError."""
        if args_json is not None or self._has_array:
            return self._join(args_json, kwargs_json)
        return (), self._arguments.decode(kwargs_json if kwargs_json is not None else "{}")

    def _bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Map positional arguments to their keys. The record reports missing and unknown names."""
        if not args and not self._has_array:
            return dict(kwargs)
        order = self._order
        values: dict[str, Any] = dict(zip(order, args))  # noqa: B905 # fewer arguments are fine, and strict= costs 0.2 µs
        if len(args) > len(order):
            if self.signature.var_positional is None:
                takes = f"{len(order)} positional argument{'s' if len(order) != 1 else ''}"
                self._fail(Reason.UNEXPECTED, f"takes {takes} but {len(args)} were given")
            values[_VARARGS_KEY] = list(args[len(order) :])
        if kwargs:
            for name in kwargs:
                if name in values:
                    self._fail(Reason.UNEXPECTED, f"got multiple values for argument {name!r}", name)
                if self._has_array and (name == _VARARGS_KEY or name in self._unnamed):
                    self._fail(Reason.UNEXPECTED, f"got an unexpected keyword argument {name!r}", name)
            values.update(kwargs)
        return values

    def _fail(self, reason: Reason, why: str, *path: str) -> NoReturn:
        raise EncodeError(self.signature.task_name, Fault(path, reason, why))

    def _split(self, text: str) -> EncodedCall:
        """Split one object into array and object. Such signatures are rare, so a second parse is cheap enough."""
        values: dict[str, Any] = read_json(text, self.signature.task_name)
        rest: list[Any] = values.pop(_VARARGS_KEY, [])
        array = [values.pop(key) for key in self._positional(has_rest=bool(rest)) if key in values]
        array += rest
        return EncodedCall(
            to_json(array).decode() if array else None,
            to_json(values).decode() if values else None,
        )

    def _join(self, args_json: str | None, kwargs_json: str | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Join array and object. A sender by name does not know the names of the parameters, so the array may also hold
        named ones."""
        owner = self.signature.task_name
        array: Any = [] if args_json is None else read_json(args_json, owner)
        values: Any = {} if kwargs_json is None else read_json(kwargs_json, owner)
        if not isinstance(array, list) or not isinstance(values, dict):
            raise DecodeError(owner, Fault((), Reason.MALFORMED, "arguments are not a JSON array and a JSON object"))
        try:
            bound = self._bind(tuple(array), values)  # pyright: ignore[reportUnknownArgumentType] # parsed JSON
        except EncodeError as error:
            raise DecodeError(owner, error.fault) from error
        decoded = self._arguments.decode(to_json(bound).decode())
        rest: list[Any] = decoded.pop(_VARARGS_KEY, [])
        positional = [decoded.pop(key) for key in self._positional(has_rest=bool(rest)) if key in decoded]
        return (*positional, *rest), decoded

    def _positional(self, *, has_rest: bool) -> tuple[str, ...]:
        """The keys of the array. With *args it also holds the parameters before it."""
        return self._order if has_rest else self._unnamed

    # -- results ---------------------------------------------------------------------------------

    def encode_result(self, returned: object, *, limits: PayloadLimits = DEFAULT_LIMITS) -> str:
        """The text of a result. ResultError when it has the wrong type or cannot be stored."""
        name = self.signature.task_name
        if not isinstance(returned, TaskResult):
            why = f"it is {a_type(returned)}, not a TaskResult; return TaskResult(ok=...) or TaskResult(err=...)"
            fault = Fault((), Reason.INVALID, why, safe_repr(returned))
            raise ResultError(name, fault, ContractCode.RETURN_TYPE_MISMATCH)
        if isinstance(returned, Continue):
            return self._encode_continue(cast("Continue[Any]", returned), limits)
        result = cast("TaskResult[Any, object]", returned)
        if result.is_err():
            if not isinstance(result.err, TaskError):
                fault = Fault(
                    (), Reason.INVALID, f"its err is {a_type(result.err)}, not a TaskError", safe_repr(result.err)
                )
                raise ResultError(name, fault, ContractCode.RETURN_TYPE_MISMATCH)
            return encode_error(result.err)
        try:
            return self._result.encode({"ok": result.ok_value}, limits, strict=True)
        except EncodeError as refused:
            broken = refused.reason is Reason.INVALID
            code = ContractCode.RETURN_TYPE_MISMATCH if broken else OperationalErrorCode.WORKER_SERIALIZATION_ERROR
            raise ResultError(name, refused.fault, code) from refused

    def _encode_continue(self, returned: Continue[Any], limits: PayloadLimits) -> str:
        """The text of a task that continues as a workflow: the whole graph, which a step of the run turns into rows."""
        continued = returned.workflow.continued(self.signature.result)
        text, why = continued.text, continued.refusal
        if why is None and len(text.encode()) > limits.max_bytes:
            why = f"the workflow to continue with is larger than {limits.max_bytes:,} bytes"
        if why is not None:
            fault = Fault((), Reason.INVALID, why)
            raise ResultError(self.signature.task_name, fault, ContractCode.RETURN_TYPE_MISMATCH)
        return text

    def encode_outcome(self, returned: object, *, limits: PayloadLimits = DEFAULT_LIMITS) -> EncodedResult:
        """For the child process: any return value becomes a text that can be stored. Never raises."""
        try:
            if (error := _reserved(returned)) is None:
                text = self.encode_result(returned, limits=limits)
                return EncodedResult(text, cast("TaskResult[Any, TaskError]", returned).err)
        except ResultError as refused:
            # the value stands in `data` alone, because the message is logged
            found = {"reason": str(refused.reason), "path": refused.path}
            if refused.fault.value is not None:
                found["value"] = refused.fault.value
            error = TaskError(refused.code, str(refused), found)
        except Exception as unforeseen:  # MemoryError, RecursionError: the row must still end
            error = serialization_error(unforeseen)
        return EncodedResult(encode_error(error), error)

    def decode_result(self, text: str) -> TaskResult[Any, TaskError]:
        """The stored result with its value as T, or DecodeError."""
        name = self.signature.task_name
        if not text.startswith('{"err"'):
            try:
                return TaskResult(ok=self._result.decode(text)["ok"])
            except DecodeError as error:
                # An error that was written by hand or passed through jsonb can start differently.
                if error.reason not in {Reason.MISSING, Reason.UNEXPECTED}:
                    raise
        return decode_untyped_result(text, task_name=name)


@lru_cache(maxsize=4096)
def without_parameters(codec: TaskCodec, names: frozenset[str]) -> TaskCodec:
    """The codec of calls without these parameters, such as those that a worker fills in later."""
    if not names:
        return codec
    signature = codec.signature
    return TaskCodec(
        replace(
            signature,
            positional_or_keyword=tuple(p for p in signature.positional_or_keyword if p.name not in names),
            keyword_only=tuple(p for p in signature.keyword_only if p.name not in names),
        )
    )


def _reserved(returned: object) -> TaskError | None:
    """The replacement for an error with a built-in code, which only horsies may use; it has the original as data.

    It also replaces the error of another task that a task passes on: the result must say how the task itself ended.
    """
    if not isinstance(returned, TaskResult):
        return None
    given = cast("TaskResult[Any, object]", returned).err
    if not isinstance(given, TaskError) or str(given.error_code) not in BUILT_IN_CODES:
        return None
    if isinstance(given, Snooze):
        return None
    code = str(given.error_code)
    return TaskError(
        ContractCode.RESERVED_ERROR_CODE,
        f"the task returned an error with the code {code!r}, which is reserved for horsies itself ({given.message!r}): "
        "return a code of your own; to pass the error of another task along, put it into data",
        {"error_code": code, "message": given.message, "data": given.data},
    )


def _field(parameter: Parameter) -> Field:
    return Field(parameter.name, parameter.name, parameter.annotation, parameter.required)


def _fields(signature: TaskSignature) -> list[Field]:
    fields = [Field(f"/{p.name}", p.name, p.annotation, p.required) for p in signature.positional_only]
    if (rest := signature.var_positional) is not None:
        fields.append(Field(_VARARGS_KEY, rest.name, list[rest.annotation], required=False))
    fields += [_field(p) for p in (*signature.positional_or_keyword, *signature.keyword_only)]
    return fields
