"""The group of a task, such as its tenant: the limits and the fair turns of a queue go by it.

The sender writes it into the row: `group=` of the send, else what `group_by=` of the task makes of the arguments.
"""

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from inspect import Parameter as P
from typing import TYPE_CHECKING, Any, Final, cast

from horsies._checks import Checks, a_type, key_problem, shown
from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from uuid import UUID

    GroupKey = str | int | UUID | None
    """What a `group_by` function may return; None: the task has no group."""

_FIX: Final = "give a text such as str(account_id), or the hash of a longer one"
_POSITIONAL: Final = (P.POSITIONAL_ONLY, P.POSITIONAL_OR_KEYWORD)
_ANY_NUMBER: Final = (P.VAR_POSITIONAL, P.VAR_KEYWORD)


class GroupError(HorsiesError):
    """`group_by` of a task has no valid answer for a call; the text names the task and the fix."""


class GroupBy:
    """`group_by=` of one task, ready for its calls."""

    __slots__ = ("_defaults", "_function", "_is_plain", "_name", "_order", "_signature", "_task_name")

    def __init__(self, task_name: str, given: str | Callable[..., Any], signature: inspect.Signature) -> None:
        self._task_name = task_name
        self._name, self._function = (given, None) if isinstance(given, str) else (None, given)
        self._signature = signature
        self._is_plain = _is_plain(signature)
        self._order = {
            name: at for at, (name, one) in enumerate(signature.parameters.items()) if one.kind in _POSITIONAL
        }
        self._defaults = {name: one.default for name, one in signature.parameters.items() if one.default is not P.empty}

    def needs(self, parameter: str) -> bool:
        """Whether the group depends on this argument. A function may look at each of them."""
        return self._name in (None, parameter)

    def of(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
        """The group of a call, whose arguments fit the task. Raises GroupError."""
        if self._function is not None:
            try:
                found = self._called(self._function, args, kwargs)
            except Exception as error:  # user code
                why = f"its group_by raised {type(error).__name__}: {error}"
                raise self._refused(why, "correct it, or give the group: with_options(group=...)") from error
        else:
            found = self._argument(str(self._name), args, kwargs)
        return None if found is None else self._key(found)

    def _argument(self, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        at = self._order.get(name)
        if at is not None and at < len(args):
            return args[at]
        return kwargs.get(name, self._defaults.get(name))

    def _called(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        if self._is_plain:
            # Signature.bind takes longer than the encoding of a small call, which counts for each call of a send_many
            return function(**{**self._defaults, **dict(zip(self._order, args, strict=False)), **kwargs})
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return function(*bound.args, **bound.kwargs)

    def _key(self, found: object) -> str:
        key = _text(found)
        if key is None:
            fix = "return a str, an int, a UUID, or None for no group"
            if self._name is not None:
                fix = "name a parameter that is a str, an int or a UUID, or give a function that returns one"
            raise self._refused(f"its group_by gives {a_type(found)}", fix)
        if (why := key_problem(key)) is not None:
            raise self._refused(f"the key of its group_by: {why}", _FIX)
        return key

    def _refused(self, why: str, fix: str) -> GroupError:
        return GroupError(f"task {self._task_name!r}: {why}: {fix}")


def _text(found: object) -> str | None:
    """The key as text; None for a value of another type. A bool is an int only by Python's history."""
    if isinstance(found, str):
        return plain(found)
    if isinstance(found, int):
        return None if isinstance(found, bool) else int.__repr__(found)
    from uuid import UUID

    return str(found) if isinstance(found, UUID) else None


def _is_plain(signature: inspect.Signature) -> bool:
    """Whether every argument can be passed by name."""
    return all(one.kind in (P.POSITIONAL_OR_KEYWORD, P.KEYWORD_ONLY) for one in signature.parameters.values())


# -- checks --------------------------------------------------------------------------------------


def plain(group: str | None) -> str | None:
    """The group without its class: a driver might write the name of an enum's member instead of its value."""
    return None if group is None else str.__str__(group)


def check_group(checks: Checks, value: object) -> None:
    """The rule for the `group=` of sends, nodes, runs and schedules."""
    if value is not None and (why := key_problem(value)) is not None:
        checks.add("group", why, _FIX)


def check_group_by(checks: Checks, given: object, fn: Callable[..., Any]) -> None:
    """The rule for the `group_by=` of a task with this function. Its annotations are read later."""
    if given is None:
        return
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # the codec refuses the function
        return
    if isinstance(given, str):
        names = [name for name, one in signature.parameters.items() if one.kind not in _ANY_NUMBER]
        if given not in names:
            fix = f"name one of: {', '.join(names)}" if names else "give the group where it is sent: group=..."
            checks.add("group_by", f"the task has no parameter {shown(given)}", fix)
    elif not callable(given):
        checks.add(
            "group_by", f"must be the name of a parameter or a function, got {shown(given)}", 'write "account_id"'
        )
    elif inspect.iscoroutinefunction(given) or inspect.iscoroutinefunction(getattr(given, "__call__", None)):  # noqa: B004
        checks.add("group_by", "is `async def`: a send calls it and does not await", "write `def`")
    else:
        _check_parameters(checks, cast("Callable[..., Any]", given), signature)


def _check_parameters(checks: Checks, function: Callable[..., Any], signature: inspect.Signature) -> None:
    """Refuse a function that could not be called with every call of the task."""
    own = signature.parameters.values()
    by_name = {one.name: None for one in own if one.kind is P.KEYWORD_ONLY}
    by_place = [None for one in own if one.kind in (*_POSITIONAL, P.VAR_POSITIONAL)]
    if _is_plain(signature):
        by_name, by_place = dict.fromkeys(signature.parameters), []
    elif any(one.kind is P.VAR_KEYWORD for one in own):
        by_name["any_name"] = None
    fix = f"let it take what the task takes: def key{signature.replace(return_annotation=P.empty)}"
    try:
        inspect.signature(function).bind(*by_place, **by_name)
    except TypeError as error:
        checks.add("group_by", f"it does not take the arguments of the task: {error}", fix)
    except ValueError:  # a built-in
        checks.add("group_by", f"the parameters of {shown(function)} cannot be read", fix)


def can_be_key(annotation: Any) -> bool:
    """False if no value of this type can be a group."""
    annotation = getattr(annotation, "__supertype__", annotation)  # of a NewType
    annotation = getattr(annotation, "__value__", annotation)  # of a `type` statement
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        return can_be_key(typing.get_args(annotation)[0])
    if origin in (typing.Union, types.UnionType):
        return any(can_be_key(one) for one in typing.get_args(annotation))
    if origin is typing.Literal:
        return any(_text(one) is not None for one in typing.get_args(annotation))
    kind = origin or annotation
    if not isinstance(kind, type) or kind is Any:
        return True
    from uuid import UUID

    if kind in (bool, type(None)):
        return False
    return issubclass(kind, str | int | UUID) or any(issubclass(key, kind) for key in (str, int, UUID))
