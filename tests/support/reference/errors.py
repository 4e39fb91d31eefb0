"""errors.md: the codes of the enumerations in `horsies/errors.py`, and every class of exception."""

import importlib
import pkgutil
from collections.abc import Iterator
from enum import StrEnum
from types import ModuleType

import horsies
import horsies_schema
import horsies_worker
from horsies import errors
from horsies._checks import Checks
from horsies.retry import RetryPolicy
from horsies_schema.embedded import EmbeddedError
from tests.support.reference import documented, markdown as md

FAMILIES: tuple[type[StrEnum], ...] = (
    errors.OperationalErrorCode, errors.ContractCode, errors.OutcomeCode, errors.RetrievalCode,
)  # fmt: skip
TODO = " To do: "

INTRO = """\
# Error codes

A task that fails has a `TaskError` with a code in its result. Codes of your own are any other strings. Those below are
reserved, because they say how horsies itself ended an attempt; each compares equal to its text.

- An `exception_mapper` that names one is refused. A task that returns one, also by passing the error of another task
  along, ends with `RESERVED_ERROR_CODE`, and the error that it returned is the `data`: give it a code of your own.
- A retry policy may list those that an attempt can end with: {retried}. Any other is refused when the task is defined.
- A policy lists codes or classes, not the names of classes: `"TimeoutError"`, `"requests.ConnectionError"`, or the
  name of an exception that the task's module or a module imported there has, is refused too, unless the mapper gives
  that code.
- The `data` of a `TaskError` is never refused, because nothing may keep an error from being reported. It is kept as
  plain JSON: sets and tuples become lists, bytes base64 text, keys text, NaN and Infinity texts; an object that JSON
  cannot say is its `repr`, and what is too large or too deep is cut.

[Retries](../guides/retries.md) says which errors are tried again, [the runbook](../operations/runbook.md) what to do
when many tasks fail.
"""

SENDS = """\
## SendErrorCode

The `code` of a `TaskSendError`, which `send()` raises. A signal whose value does not fit raises it too.
"""

EXCEPTIONS = """\
## Exceptions

What horsies raises itself. Errors of tasks are values, not exceptions: `get()` returns them, and `result.unwrap()`
raises `TaskFailed`. The names are those of the package `horsies` unless another is given.
"""

INTERNAL = """\
## Exceptions below them

Classes that are not exported, with the public class to catch.
"""


def errors_page() -> str:
    parts = [md.note("the docstrings in `horsies/errors.py` and of the exceptions")]
    parts.append(INTRO.format(retried=", ".join(f"`{code}`" for code in codes() if _is_retried(code))))
    for family in FAMILIES:
        parts += [f"\n## {family.__name__}\n\n{md.paragraphs(family.__doc__)}\n\n", _table(family)]
    parts += ["\n", SENDS, "\n", _table(errors.SendErrorCode)]
    parts += ["\n", EXCEPTIONS, "\n", _exceptions(public=True), "\n", INTERNAL, "\n", _exceptions(public=False)]
    return "".join(parts)


def codes() -> Iterator[str]:
    for family in FAMILIES:
        yield from family


def _table(family: type[StrEnum]) -> str:
    told = documented.members(family)
    rows = [(f"`{code}`", *told[code.name].partition(TODO)[::2]) for code in family]
    return md.table(("Code", "When", "What to do"), rows)


def _is_retried(code: str) -> bool:
    checks = Checks("policy")
    RetryPolicy.fixed(1, 1, auto_retry_for=[code]).check_codes(
        checks, {}, errors.OperationalErrorCode.UNHANDLED_EXCEPTION, {}
    )
    return not checks.problems


def exceptions() -> list[type[BaseException]]:
    """Every class of exception that client, worker or schema define for others to catch."""
    found: dict[str, type[BaseException]] = {}
    for package in (horsies, horsies_schema, horsies_worker):
        for module in _modules(package):
            for kind in vars(module).values():
                if (
                    isinstance(kind, type)
                    and issubclass(kind, BaseException)
                    and kind.__module__ == module.__name__
                    and (is_public(kind) or issubclass(kind, errors.HorsiesError | EmbeddedError))
                    and ".commands." not in module.__name__
                ):
                    found[f"{kind.__module__}.{kind.__name__}"] = kind
    return list(found.values())


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    yield package
    for item in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if (
            ".templates" in item.name
            or ".migrations" in item.name
            or ".contrib." in item.name
            or item.name.endswith("__main__")
        ):
            continue
        yield importlib.import_module(item.name)


def is_public(kind: type[BaseException]) -> bool:
    return any(
        kind.__name__ in home.__all__ and getattr(home, kind.__name__) is kind for home in (horsies, horsies_schema)
    )


def _exceptions(*, public: bool) -> str:
    rows: list[tuple[str, str, str]] = []
    for kind in exceptions():
        if is_public(kind) is not public:
            continue
        shown = (
            kind.__name__ if public and kind.__module__.startswith("horsies.") else f"{kind.__module__}.{kind.__name__}"
        )
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        rows.append((f"`{shown}`", bases, " ".join(md.paragraphs(kind.__doc__).split("\n\n"))))
    return md.table(("Exception", "Is a", "Raised when"), sorted(rows))
