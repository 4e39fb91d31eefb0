"""Finds an app by its locator, for the command line and the worker: `shop.tasks:app`, or `shop.tasks` alone.

Only this module imports user code by name, and the name comes from a command line, never from a row. A failure is
reported in one sentence, with the end of the traceback when user code raised.
"""

import importlib
import os
import sys
import traceback
from types import ModuleType
from typing import TYPE_CHECKING

from horsies._text import short
from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from horsies.app import Horsies

_TRACEBACK_FRAMES = 5


class LocatorError(HorsiesError):
    """The locator leads to no app."""


class AppImportError(LocatorError):
    """There is a module, and importing it fails."""


def load_app(locator: str) -> "Horsies":
    """Import the module of `module:attribute` and return the app in it.

    The current directory comes first on the path, as with `python -m`. Without an attribute, the module must have
    exactly one app. Raises `LocatorError`.
    """
    from horsies.app import Horsies

    module_name, colon, attribute = locator.partition(":")
    _require_a_locator(locator, module_name, attribute if colon else None)
    module = _import(module_name)
    if not colon:
        return _only_app(module)
    found: object = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise LocatorError(f"module {module_name!r} has no {short(attribute)!r}{_hint(module)}") from None
        except Exception as error:  # a module may make its app when it is asked for
            raise _raised(module_name, error) from error
    if not isinstance(found, Horsies):
        raise LocatorError(f"{locator!r} is {_described(found)}, not a Horsies app{_hint(module)}")
    return found


def full_locator(locator: str) -> str:
    """`shop.tasks:app` for the loaded module `shop.tasks`, so that another process finds the same app."""
    if ":" in locator:
        return locator
    (name,) = _apps(sys.modules[locator])
    return f"{locator}:{name}"


def _require_a_locator(locator: str, module_name: str, attribute: str | None) -> None:
    if module_name.endswith(".py") or "/" in module_name or os.sep in module_name:
        dotted = short(_redacted(module_name)).removesuffix(".py").replace(os.sep, ".").replace("/", ".").strip(".")
        raise LocatorError(
            f"{_quoted(locator)} is a file path: name the module instead, such as {dotted}:{attribute or 'app'}"
        )
    names = [*module_name.split("."), *(attribute.split(".") if attribute is not None else ())]
    if not all(name.isidentifier() for name in names):
        raise LocatorError(f"{_quoted(locator)} is not a locator: write module:attribute, such as shop.tasks:app")


def _quoted(locator: str) -> str:
    return repr(short(_redacted(locator)))


def _redacted(locator: str) -> str:
    """What was given may be a database's URL, with its password."""
    from horsies._redaction import redact_word

    return redact_word(locator)


def _import(name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109  (sys.path holds strings)
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    except HorsiesError as error:  # an invalid definition or configuration: its message has the fix
        place = next((f" ({at.filename}:{at.lineno})" for at in reversed(_own_frames(error))), "")
        raise AppImportError(f"importing {short(name)!r} failed{place}\n{error}") from error
    except ModuleNotFoundError as error:
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            missing = "" if error.name == name else f" (there is no {error.name!r})"
            raise LocatorError(f"there is no module {short(name)!r}{missing} in {here} or on the path") from None
        raise _raised(name, error) from error
    except (Exception, SystemExit) as error:
        raise _raised(name, error) from error


def _raised(name: str, error: BaseException) -> AppImportError:
    from horsies._redaction import redact

    lines = [*traceback.format_list(_own_frames(error)[-_TRACEBACK_FRAMES:]), *traceback.format_exception_only(error)]
    # the source line in the traceback may contain the database's URL
    return AppImportError(f"importing {short(name)!r} failed\n{redact(''.join(lines).rstrip())}")


def _own_frames(error: BaseException) -> list[traceback.FrameSummary]:
    """The frames of user code: without those of the import system, of horsies, and of generated code."""
    package = os.path.dirname(__file__) + os.sep  # noqa: PTH120  (compared as text)
    frames = traceback.extract_tb(error.__traceback__)
    return [at for at in frames if not at.filename.startswith(("<", package)) and at.filename != importlib.__file__]


def _apps(module: ModuleType) -> dict[str, "Horsies"]:
    """The apps of a module by name; an app with two names is listed once."""
    from horsies.app import Horsies

    found = {id(value): (name, value) for name, value in reversed(vars(module).items()) if isinstance(value, Horsies)}
    return dict(sorted(found.values()))


def _only_app(module: ModuleType) -> "Horsies":
    apps = _apps(module)
    if len(apps) == 1:
        return next(iter(apps.values()))
    if not apps:
        raise LocatorError(f"module {module.__name__!r} has no Horsies app in it")
    choices = " or ".join(f"{module.__name__}:{name}" for name in apps)
    raise LocatorError(f"module {module.__name__!r} has {len(apps)} apps, name one of them: {choices}")


def _hint(module: ModuleType) -> str:
    names = list(_apps(module))
    return f"; did you mean {' or '.join(f'{module.__name__}:{name}' for name in names)}?" if names else ""


def _described(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if callable(value):
        return f"the function {getattr(value, '__name__', value)!s} (an app factory has to be called in the module)"
    return f"a {type(value).__name__}"
