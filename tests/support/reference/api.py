"""api.md: every public name with its signature and its docstring.

Signatures are read from the source, as they are written there, so that the page is the same on every Python.
"""

import ast
import enum
import importlib
import inspect
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import cache
from typing import Any

import horsies
import horsies.contrib
from tests.support.reference import documented, markdown as md

WIDTH = 100
ELSEWHERE = {
    name: page
    for page, names in {
        "configuration.md": "AppConfig CustomQueueConfig GroupPolicy Limit PostgresConfig Rate RecoveryConfig "
        "ResilienceConfig ScheduleConfig TaskSchedule Interval Hourly Daily Weekly Monthly Cron RetryPolicy",
        "errors.md": "OperationalErrorCode ContractCode OutcomeCode RetrievalCode SendErrorCode",
    }.items()
    for name in names.split()
}
"""Classes whose fields or members another page explains."""
FIRST = ("TaskFunction",)
"""The class that shows the methods which it shares with others."""
INTERNAL = ("for the other horsies", "for `horsies.testing`", "for horsies itself")
"""Docstrings of members with these words say that they are not for users."""
PLUMBING = {"from_row", "keep", "sent_id", "warn_of_wait"}
"""Members by which horsies itself builds these objects."""
LAZY = {
    ("horsies.contrib.django", "app"): "The app of the project, a `Horsies`, made from its settings when it is first "
    "asked for.",
}
"""Names that need a configured project to be read."""
FORMER = "horsies.former_names"

GROUPS = {
    "The app": ("horsies.app", "horsies.app_schedules"),
    "Tasks": ("horsies.tasks", "horsies.batch_tasks", "horsies.context", "horsies.snoozing", "horsies.lifespan"),
    "Results": ("horsies.handle", "horsies.result", "horsies.batches.handle", "horsies.workflow.batch_reading"),
    "Workflows": ("horsies.workflow",),
    "Configuration": ("horsies.config", "horsies.retry", "horsies.schedule", "horsies.exception_codes"),
    "States and errors": ("horsies.status", "horsies.errors"),
    "Middleware and payloads": ("horsies.middleware", "horsies.payload_codec"),
    "Operating": ("horsies.operate",),
}
"""The groups of the names of `horsies`, by where they are defined; others come last."""

INTRO = """\
# Python API

Every public name: what `from horsies import ...` gives, and what the packages beside it offer. Names that are not here
are internal and may change with any release. [Configuration](configuration.md), [events](events.md) and
[error codes](errors.md) have pages of their own.
"""


@dataclass(frozen=True, slots=True)
class Public:
    """One public name."""

    module: str
    name: str
    value: Any
    about: str | None = None
    """Given when the value cannot be read here."""


def modules() -> list[str]:
    """The modules whose names are public."""
    contrib = [item.name for item in pkgutil.iter_modules(horsies.contrib.__path__, "horsies.contrib.")]
    return ["horsies", "horsies.testing", *contrib, "horsies_schema"]


def public_names(module_name: str) -> list[Public]:
    module = importlib.import_module(module_name)
    listed: list[str] = getattr(module, "__all__", None) or [
        name
        for name, value in vars(module).items()
        if not name.startswith("_") and getattr(value, "__module__", None) == module_name
    ]
    return [
        Public(module_name, name, None, LAZY[module_name, name])
        if (module_name, name) in LAZY
        else Public(module_name, name, getattr(module, name))
        for name in listed
    ]


def api_page() -> str:
    parts = [md.note("the docstrings in the code"), INTRO]
    own = public_names("horsies")
    home = _homes()
    for title, places in GROUPS.items():
        chosen = [one for one in own if _is_in(home[one.name], places)]
        own = [one for one in own if one not in chosen]
        parts.append(f"\n## {title}\n")
        parts += _entries(chosen)
    former = [one for one in own if home[one.name] == FORMER]
    parts.append("\n## More\n")
    parts += _entries([one for one in own if one not in former])
    parts.append("\n## Names of horsies 0.x\n\nThey are kept for code that was written for it.\n\n")
    parts.append(md.table(("Name", "Is now"), ((f"`{one.name}`", _now(one)) for one in former)))
    for module_name in modules()[1:]:
        told = importlib.import_module(module_name).__doc__
        parts.append(f"\n## {module_name}\n\n{md.paragraphs(told)}\n")
        parts += _entries(public_names(module_name))
    return "".join(parts)


@cache
def _homes() -> dict[str, str]:
    """By name: the module that `horsies` loads it from, as its own source says."""
    tree = ast.parse(inspect.getsource(horsies))
    return {
        alias.name: str(node.module)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("horsies.")
        for alias in node.names
    }


def _is_in(home: str, places: tuple[str, ...]) -> bool:
    return any(home == place or home.startswith(f"{place}.") for place in places)


def _now(one: Public) -> str:
    value = one.value
    same = [name for name in horsies.__all__ if name != one.name and getattr(horsies, name) is value]
    if same:
        return f"`{same[0]}`"
    told = documented.constants(importlib.import_module(FORMER)).get(one.name)
    return told or "`" + re.sub(r"\b[a-z_.]+\.(?=[A-Z])", "", str(value)) + "`"


def _entries(names: list[Public]) -> Iterator[str]:
    for one in sorted(names, key=lambda one: (one.name.lower(), one.name)):
        yield f"\n### {one.name}\n\n" + "\n\n".join(part.strip("\n") for part in _entry(one) if part) + "\n"


def _entry(one: Public) -> Iterator[str]:
    value = one.value
    if one.about is not None:
        yield one.about
    elif inspect.isclass(value):
        yield from _class(one.name, value)
    elif inspect.isfunction(value) or "cache_info" in dir(type(value)):
        yield _block(_signature(one.name, value))
        yield md.paragraphs(inspect.unwrap(value).__doc__)
    else:
        yield _constant(one)


@cache
def _shown_by() -> dict[type, str]:
    """By class: the public class that shows its methods. Several public classes inherit from one that is not public."""
    users: dict[type, list[str]] = {}
    for name in horsies.__all__:
        kind = getattr(horsies, name)
        if inspect.isclass(kind) and kind.__name__ == name:
            for base in kind.__mro__:
                if base.__module__.startswith("horsies"):
                    users.setdefault(base, []).append(name)
    return {
        base: base.__name__
        if base.__name__ in names
        else next((one for one in FIRST if one in names), min(names, key=len))
        for base, names in users.items()
    }


def _class(name: str, kind: type) -> Iterator[str]:
    shown_by = {
        base: _shown_by()[base]
        for base in kind.__mro__
        if _shown_by().get(base, name) != name and any(_own_members(base))
    }
    told = documented.fields(kind)
    page = ELSEWHERE.get(name)
    if issubclass(kind, enum.Enum):
        yield md.paragraphs(vars(kind).get("__doc__"))
        if page is None:
            yield md.table(("Member", "Meaning"), ((f"`{member.name}`", told.get(member.name, "")) for member in kind))
        else:
            yield f"Its members: [{kind.__name__}]({page}#{kind.__name__.lower()})."
        return
    yield _block(f"class {name}{_bases(kind)}" if page or is_dataclass(kind) else _constructor(name, kind))
    yield md.paragraphs(kind.__doc__ if kind.__doc__ and not kind.__doc__.startswith(f"{name}(") else "")
    if page:
        yield f"Its fields: [{kind.__name__}]({page}#{kind.__name__.lower()})."
    elif is_dataclass(kind):
        rows = [
            (f"`{field}`", f"`{annotation}`", told.get(field, "")) for field, annotation in _annotations(kind).items()
        ]
        if rows:
            yield md.table(("Field", "Type", "Meaning"), rows)
    methods = list(_methods(kind, shown_by))
    if methods:
        yield "\n".join(methods)
    yield _inherited(kind, shown_by)


def _inherited(kind: type, shown_by: Mapping[type, str]) -> str:
    """The members that another class shows: those of a public class as a whole, others by their names."""
    public = [base for base in kind.__mro__[1:] if base.__name__ in horsies.__all__]
    covered = {base for one in public for base in one.__mro__}
    told = [f"the methods of [{base.__name__}](#{base.__name__.lower()})" for base in public if base in shown_by]
    for other in sorted({name for base, name in shown_by.items() if base not in covered}):
        bases = [base for base, name in shown_by.items() if name == other and base not in covered]
        names = sorted({name for base in bases for name, _ in _own_members(base) if name not in vars(kind)})
        if names:
            told.append(f"{', '.join(f'`{name}`' for name in names)} as [{other}](#{other.lower()})")
    return f"It also has {', and '.join(told)}." if told else ""


def _constructor(name: str, kind: type) -> str:
    made = kind.__init__ if "__init__" in vars(kind) else vars(kind).get("__new__")
    if inspect.isfunction(made) and made.__module__.startswith("horsies"):
        return _signature(name, made, returns=False)
    return f"class {name}{_bases(kind)}"


def _bases(kind: type) -> str:
    """Those that a user knows: public ones, and those of Python."""
    known = [
        base.__name__ for base in kind.__bases__ if base.__name__ in horsies.__all__ or base.__module__ == "builtins"
    ]
    shown = [name for name in known if name != "object"]
    return f"({', '.join(shown)})" if shown else ""


def _annotations(kind: type) -> dict[str, str]:
    """The public fields of a dataclass, with their types as the source writes them."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if one.__module__.startswith("horsies"):
            tree = _tree(one)
            if isinstance(tree, ast.ClassDef):
                lines = [line for line in tree.body if isinstance(line, ast.AnnAssign)]
                found.update({ast.unparse(line.target): _unquoted(line.annotation) for line in lines})
    return {name: kind_of for name, kind_of in found.items() if not name.startswith("_") and "ClassVar" not in kind_of}


def _own_members(kind: type) -> Iterator[tuple[str, Any]]:
    """The public methods and properties that this class itself defines."""
    for name, value in vars(kind).items():
        plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
        is_property = isinstance(value, property) or hasattr(value, "func")
        if not name.startswith("_") and name not in PLUMBING and (inspect.isfunction(plain) or is_property):
            function = getattr(value, "fget", None) or getattr(value, "func", None) or plain
            if not any(word in md.one_line(function.__doc__) for word in INTERNAL):
                yield name, value


def _methods(kind: type, elsewhere: Collection[type]) -> Iterator[str]:
    """Those of the class and of its bases, but for bases that another class shows."""
    found: dict[str, Any] = {}
    own = [one for one in kind.__mro__ if one.__module__.startswith("horsies")]
    for one in own:
        if one not in elsewhere:
            for name, value in _own_members(one):
                # where the nearest class says that a member is internal, a base need not say so again
                nearest = next(base for base in own if name in vars(base))
                if name in dict(_own_members(nearest)):
                    found.setdefault(name, value)
    for name, value in sorted(found.items()):
        if isinstance(value, property) or hasattr(value, "func"):
            function = value.fget if isinstance(value, property) else value.func
            yield f"- `{name}`: {_first(function)}".removesuffix(": ")
        else:
            plain = value.__func__ if isinstance(value, classmethod | staticmethod) else value
            yield f"- `{_signature(name, plain, width=120)}`: {_first(plain)}".removesuffix(": ")


def _first(function: Callable[..., Any] | None) -> str:
    """The whole docstring as one paragraph; a method has rarely more."""
    text = inspect.cleandoc(getattr(function, "__doc__", None) or "")
    kept = [part for part in re.split(r"\n\s*\n", text) if not part.startswith("    ")]
    return md.one_line(" ".join(kept))


def _tree(value: Any) -> ast.stmt:
    return ast.parse(textwrap.dedent(inspect.getsource(value))).body[0]


def _signature(name: str, function: Callable[..., Any], *, returns: bool = True, width: int = 0) -> str:
    """With `width`, a signature that is longer goes without types."""
    plain = inspect.unwrap(function)
    tree = _tree(plain)
    if not isinstance(tree, ast.FunctionDef | ast.AsyncFunctionDef):
        return f"{name}(...)"
    _resolve(tree.args, plain.__globals__)
    before = "async " if isinstance(tree, ast.AsyncFunctionDef) else ""
    after = f" -> {_unquoted(tree.returns)}" if returns and tree.returns is not None else ""
    shown = f"{before}{name}({', '.join(_parameters(tree.args))}){after}"
    if width and len(shown) > width:
        return f"{before}{name}({', '.join(_parameters(tree.args, types=False))})"
    if not width and len(shown) > WIDTH:
        return f"{before}{name}(" + "".join(f"\n    {one}," for one in _parameters(tree.args)) + f"\n){after}"
    return shown


def _resolve(arguments: ast.arguments, known: Mapping[str, Any]) -> None:
    """Put the values of constants in the place of their names."""
    for listed in (arguments.defaults, arguments.kw_defaults):
        for at, default in enumerate(listed):
            if isinstance(default, ast.Name) and isinstance(known.get(default.id), int | float | str):
                listed[at] = ast.Constant(known[default.id])


def _parameters(arguments: ast.arguments, *, types: bool = True) -> list[str]:
    def written(one: ast.arg, default: ast.expr | None) -> str:
        text = one.arg + (f": {_unquoted(one.annotation)}" if types and one.annotation is not None else "")
        sign = " = " if types and one.annotation is not None else "="
        return text + (f"{sign}{ast.unparse(default)}" if default is not None else "")

    placed = [*arguments.posonlyargs, *arguments.args]
    defaults = [*([None] * (len(placed) - len(arguments.defaults))), *arguments.defaults]
    found = [written(one, default) for one, default in zip(placed, defaults, strict=True)]
    if arguments.posonlyargs:
        found.insert(len(arguments.posonlyargs), "/")
    if placed and placed[0].arg in ("self", "cls"):
        found = found[1:]
        if found[:1] == ["/"]:
            found = found[1:]
    if arguments.vararg is not None:
        found.append("*" + written(arguments.vararg, None))
    elif arguments.kwonlyargs:
        found.append("*")
    found += [written(one, default) for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg is not None:
        found.append("**" + written(arguments.kwarg, None))
    return found


def _expression(annotation: ast.expr) -> ast.expr:
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return ast.parse(annotation.value, mode="eval").body
    return annotation


def _unquoted(annotation: ast.expr) -> str:
    return ast.unparse(_expression(annotation))


def _block(text: str) -> str:
    return f"```text\n{text}\n```"


def _constant(one: Public) -> str:
    """The string that follows it in the module that defines it."""
    places = [
        module for name, module in list(sys.modules.items()) if name.startswith("horsies") and one.name in vars(module)
    ]
    told = next(filter(None, (documented.constants(module).get(one.name, "") for module in places)), "")
    if isinstance(one.value, frozenset | set | tuple):
        return f"{told} Holds {', '.join(f'`{item}`' for item in sorted(map(str, one.value)))}.".strip()
    return told
