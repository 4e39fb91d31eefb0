"""The error codes of exceptions that escape a task: by the mapping of the app, that of the task, and the classes that
its retry policy lists."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from horsies._checks import Checks, shown
from horsies.errors import BUILT_IN_CODES, OperationalErrorCode, error_code_for

if TYPE_CHECKING:
    from horsies.retry import RetryPolicy

ExceptionMapper = Mapping[type[BaseException], str]
"""By class of exception: the error code of a task that such an exception escapes. The most specific class wins."""


@dataclass(frozen=True, slots=True)
class ExceptionCodes:
    """How the exceptions of one task become error codes."""

    mapper: ExceptionMapper = field(default_factory=dict[type[BaseException], str], hash=False)
    default: str = OperationalErrorCode.UNHANDLED_EXCEPTION.value

    def code_of(self, exc: BaseException) -> str:
        return error_code_for(exc, self.mapper, self.default)

    def of_task(self, mapper: ExceptionMapper | None, default: str | None) -> "ExceptionCodes":
        """With the entries of a task, which replace those of the app for the same class."""
        if not mapper and default is None:
            return self
        return ExceptionCodes({**self.mapper, **(mapper or {})}, self.default if default is None else default)

    def settle(self, policy: "RetryPolicy", checks: Checks) -> "tuple[ExceptionCodes, RetryPolicy]":
        """Replace the classes in `auto_retry_for` by their codes, because a row holds codes only. A class without a
        code gets its own name as its code. `Exception` means every exception that is not mapped, too."""
        listed = [one for one in policy.auto_retry_for if isinstance(one, type)]
        if not listed:
            return self, policy
        mapper = dict(self.mapper)
        for one in listed:
            wider = next((base for base in one.__mro__ if base in self.mapper), None)
            if wider is not None and wider is not one:
                why = f"{one.__name__} has the code {self.mapper[wider]!r} of {wider.__name__}, and so have others"
                own = f'exception_mapper={{{one.__name__}: "SOME_CODE"}}'
                fix = f"list {self.mapper[wider]!r}, or give it a code of its own: {own}"
                checks.add("retry_policy", f"auto_retry_for: {why}", fix)
            elif wider is None and one is not Exception:
                if one.__name__ in BUILT_IN_CODES:
                    why = f"the name of the class {one.__name__} is a built-in code, which is reserved for horsies"
                    fix = "map it to a code of your own: exception_mapper="
                    checks.add("retry_policy", f"auto_retry_for: {why} itself", fix)
                else:
                    mapper[one] = one.__name__
        self._check_shared(listed, policy, mapper, checks)
        codes: dict[str, None] = {}
        for one in policy.auto_retry_for:
            if not isinstance(one, type):
                codes[str(one)] = None
                continue
            codes |= dict.fromkeys(code for mapped, code in mapper.items() if issubclass(mapped, one))
            if one is Exception and Exception not in mapper:
                codes[self.default] = None
        return replace(self, mapper=mapper), replace(policy, auto_retry_for=tuple(codes) or policy.auto_retry_for)

    def _check_shared(
        self, listed: list[type[Exception]], policy: "RetryPolicy", mapper: ExceptionMapper, checks: Checks
    ) -> None:
        """Report a code that a listed class has together with one that is not listed: both would be retried."""
        meant = [mapped for mapped in mapper if issubclass(mapped, tuple(listed))]
        for mapped in meant:
            code = mapper[mapped]
            others = [one.__name__ for one, of_one in mapper.items() if of_one == code and one not in meant]
            if code == self.default and Exception not in listed:
                others.append("every exception that is not mapped")
            if others and code not in policy.auto_retry_for:
                why = f"{mapped.__name__} has the code {code!r}, and so has {', '.join(others)}"
                fix = f"list {code!r}, if all of them are to be retried, or give it a code of its own"
                checks.add("retry_policy", f"auto_retry_for: {why}", fix)


def check_exception_mapper(checks: Checks, mapper: object) -> ExceptionMapper:
    """A copy of the mapping, so that it cannot change after the checks."""
    if not isinstance(mapper, Mapping):
        checks.add("exception_mapper", f"must be a mapping, got {shown(mapper)}", 'write {SomeError: "SOME_CODE"}')
        return {}
    entries = dict(cast("Mapping[object, object]", mapper))
    for key, code in entries.items():
        if isinstance(key, type) and issubclass(key, BaseException):
            _check_code(checks, f"exception_mapper[{key.__name__}]", code)
        else:
            name = shown(cast("object", key))
            checks.add("exception_mapper", f"the key {name} is not an exception class", "use the class itself")
    return cast("ExceptionMapper", entries)


def check_default_code(checks: Checks, code: object) -> None:
    if code != OperationalErrorCode.UNHANDLED_EXCEPTION:
        _check_code(checks, "default_unhandled_error_code", code)


def _check_code(checks: Checks, field: str, code: object) -> None:
    """An error code that user code may produce."""
    if checks.text(field, code) and code in BUILT_IN_CODES:
        checks.add(
            field, f"{code!s} is a built-in code, which is reserved for horsies itself", "choose a code of your own"
        )
