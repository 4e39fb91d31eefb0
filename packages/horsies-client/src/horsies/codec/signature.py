"""Reads a task's signature: every parameter and the result with a resolved type, for `TaskCodec`.

A signature that cannot work is refused at import, with the task, the parameter, the reason and the fix.
"""

import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter as P
from types import SimpleNamespace
from typing import Any, Final, NoReturn

from horsies.codec.errors import type_name
from horsies.errors import TaskDefinitionError
from horsies.result import TaskError, TaskResult

ITEM: Final = "item"
"""The one parameter of a batch task, as senders and rows name it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    annotation: Any
    required: bool
    default: Any = P.empty


@dataclass(frozen=True, slots=True)
class TaskSignature:
    """A task's parameters by kind, and the T of its `TaskResult[T, TaskError]`."""

    task_name: str
    location: str | None
    positional_only: tuple[Parameter, ...]
    positional_or_keyword: tuple[Parameter, ...]
    keyword_only: tuple[Parameter, ...]
    var_positional: Parameter | None
    var_keyword: Parameter | None
    result: Any


def read_signature(fn: Callable[..., Any], *, task_name: str, location: str | None) -> TaskSignature:
    def refuse(why: str, fix: str) -> NoReturn:
        raise TaskDefinitionError(task_name, why, fix, location=location)

    _refuse_odd_functions(fn, refuse)
    signature = inspect.signature(fn)
    hints = _Hints(fn, refuse)
    groups: dict[Any, list[Parameter]] = {}
    for name, raw in signature.parameters.items():
        if raw.annotation is P.empty:
            fix = f"write its type, such as {name}: str"
            if name == "self":  # from a queue that passes the task to its function
                fix = "leave it out: current_task() inside the task has the id, the attempt and the metadata"
            refuse(f"parameter {name!r} has no annotation", fix)
        annotation = hints.resolve(name, f"parameter {name!r}")
        if typing.get_origin(annotation) is typing.Unpack:
            refuse(f"parameter {name!r} uses Unpack", "write the keyword parameters out, or take one TypedDict")
        required = raw.default is P.empty and raw.kind not in (P.VAR_POSITIONAL, P.VAR_KEYWORD)
        groups.setdefault(raw.kind, []).append(Parameter(name, annotation, required, raw.default))

    return TaskSignature(
        task_name=task_name,
        location=location,
        positional_only=tuple(groups.get(P.POSITIONAL_ONLY, ())),
        positional_or_keyword=tuple(groups.get(P.POSITIONAL_OR_KEYWORD, ())),
        keyword_only=tuple(groups.get(P.KEYWORD_ONLY, ())),
        var_positional=next(iter(groups.get(P.VAR_POSITIONAL, ())), None),
        var_keyword=next(iter(groups.get(P.VAR_KEYWORD, ())), None),
        result=_result_type(signature.return_annotation, hints, refuse),
    )


def read_batch_signature(fn: Callable[..., Any], *, task_name: str, location: str | None) -> TaskSignature:
    """The signature by which one task of a batch task is sent: the function takes a list of items and returns a list of
    results; a send gives one item, and its handle returns one result."""

    def refuse(why: str, fix: str) -> NoReturn:
        raise TaskDefinitionError(task_name, why, fix, location=location)

    _refuse_odd_functions(fn, refuse)
    signature = inspect.signature(fn)
    hints = _Hints(fn, refuse)
    fix = "let the function of a batch task take one parameter, such as items: list[str]"
    if len(signature.parameters) != 1:
        refuse(f"it takes {len(signature.parameters)} parameters, and a batch task takes one list", fix)
    ((name, raw),) = signature.parameters.items()
    if raw.kind not in (P.POSITIONAL_ONLY, P.POSITIONAL_OR_KEYWORD) or raw.default is not P.empty:
        refuse(f"parameter {name!r} is no plain parameter: the worker passes one list by position", fix)
    if raw.annotation is P.empty:
        refuse(f"parameter {name!r} has no annotation", fix)
    annotation = hints.resolve(name, f"parameter {name!r}")
    items = _elements(annotation)
    if not items:
        refuse(f"parameter {name!r} is {type_name(annotation)}, not a list of items", fix)
    return TaskSignature(
        task_name=task_name,
        location=location,
        positional_only=(),
        positional_or_keyword=(Parameter(ITEM, items[0], required=True),),
        keyword_only=(),
        var_positional=None,
        var_keyword=None,
        result=_result_type(signature.return_annotation, hints, refuse, is_batch=True),
    )


def _elements(annotation: Any) -> tuple[Any, ...]:
    """The T of list[T] or Sequence[T]; nothing for any other annotation."""
    return typing.get_args(annotation) if typing.get_origin(annotation) in (list, Sequence) else ()


_Refuse = Callable[[str, str], NoReturn]


def _refuse_odd_functions(fn: Callable[..., Any], refuse: _Refuse) -> None:
    kind = type(fn)
    if issubclass(kind, classmethod | staticmethod):
        refuse(f"a {kind.__name__} is not a function", "put the decorator on a plain function, outside of a class")
    target = inspect.unwrap(fn)
    if not inspect.isfunction(target):
        refuse(f"a {type(fn).__name__} is not a function", "decorate a plain def or async def")
    if target.__name__ == "<lambda>":
        refuse("a lambda has no annotations", "write a def with annotated parameters and return type")
    if inspect.isgeneratorfunction(target) or inspect.isasyncgenfunction(target):
        refuse("a generator has no single result", "return a TaskResult instead of yielding")


def _result_type(raw: Any, hints: "_Hints", refuse: _Refuse, *, is_batch: bool = False) -> Any:
    fix = "annotate it as -> TaskResult[T, TaskError], with None for T when there is no value"
    if is_batch:
        fix = "annotate it as -> list[TaskResult[T, TaskError]], one for each item, with None for T without a value"
    if raw is inspect.Signature.empty:
        refuse("it has no return annotation", fix)
    annotation = hints.resolve("return", "the return annotation")
    if is_batch:
        results = _elements(annotation)
        if not results or typing.get_origin(results[0]) is not TaskResult:
            refuse(f"it returns {type_name(annotation)}, not a list of TaskResults", fix)
        annotation = results[0]
    if annotation is TaskResult:
        refuse("the return annotation does not name the types in the TaskResult", fix)
    members = _members(annotation)
    if any((typing.get_origin(one) or one) is TaskResult for one in members):
        told = "Annotated has no meaning around it" if _is_annotated(annotation) else "it must be one TaskResult"
        values = [typing.get_args(one)[0] if typing.get_origin(one) is TaskResult else one for one in members]
        union = " | ".join(dict.fromkeys("None" if one in (None, type(None)) else type_name(one) for one in values))
        refuse(f"the return annotation is {type_name(annotation)}: {told}", f"write -> TaskResult[{union}, TaskError]")
    if typing.get_origin(annotation) is not TaskResult:
        refuse(f"it returns {type_name(annotation)}, not a TaskResult", fix)
    value, error = typing.get_args(annotation)
    if error is not TaskError:
        refuse(f"the error type of its TaskResult is {type_name(error)}, not TaskError", fix)
    return value


def _is_annotated(annotation: Any) -> bool:
    return typing.get_origin(annotation) is typing.Annotated


def _members(annotation: Any) -> tuple[Any, ...]:
    """What stands in a union or an Annotated; nothing for any other annotation."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return typing.get_args(annotation)[:1] if _is_annotated(annotation) else ()


class _Hints:
    """Resolves annotations one at a time, so that the error names the invalid one.

    `from __future__ import annotations` leaves only text, and types that are local to the enclosing function are in
    neither the globals nor a closure. They are in the locals of that function's frame, which is still on the stack
    while its body runs the decorator.
    """

    def __init__(self, fn: Callable[..., Any], refuse: _Refuse) -> None:
        self._target = inspect.unwrap(fn)
        self._refuse = refuse
        self._raw = _raw_annotations(self._target)
        self._globals: dict[str, Any] = getattr(self._target, "__globals__", {})
        self._locals = _enclosing_locals(self._target, self._globals)

    def resolve(self, name: str, what: str) -> Any:
        holder = SimpleNamespace(__annotations__={name: self._raw.get(name)})
        try:
            hints = typing.get_type_hints(holder, self._globals, self._locals, include_extras=True)
        except Exception as error:  # an annotation is any expression
            self._refuse(
                f"{what} cannot be resolved: {type(error).__name__}: {error}",
                "import the type at run time (not only under TYPE_CHECKING), or define it before the task",
            )
        annotation = hints[name]
        if (variable := _find_type_variable(annotation)) is not None:
            self._refuse(
                f"{what} contains the type variable {variable}; the reader would not know what to build",
                "write a concrete type, or a union of them",
            )
        return annotation


def _raw_annotations(target: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return inspect.get_annotations(target)
    except NameError:  # Python 3.14 evaluates all annotations together: get the rest as forward references
        annotationlib = import_module("annotationlib")
        return annotationlib.get_annotations(target, format=annotationlib.Format.FORWARDREF)


def _enclosing_locals(target: Callable[..., Any], module: dict[str, Any]) -> dict[str, Any]:
    # "outer.<locals>.Inner.method" is enclosed by "outer" and "outer.<locals>.Inner".
    parts = target.__qualname__.split(".")
    enclosing = {".".join(parts[:end]).removesuffix(".<locals>") for end in range(1, len(parts))}
    frames: list[dict[str, Any]] = []
    frame = sys._getframe(1) if enclosing else None  # pyright: ignore[reportPrivateUsage] # the documented way
    while frame is not None:
        if frame.f_globals is module and frame.f_code.co_qualname in enclosing:
            frames.append(frame.f_locals)
        frame = frame.f_back
    return {name: value for scope in reversed(frames) for name, value in scope.items()}


def _find_type_variable(annotation: Any) -> Any:
    if isinstance(annotation, typing.TypeVar | typing.ParamSpec | typing.TypeVarTuple):
        return annotation
    for inner in typing.get_args(annotation):
        if (found := _find_type_variable(inner)) is not None:
            return found
    return None
