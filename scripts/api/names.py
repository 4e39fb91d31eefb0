"""Public names of modules with their signatures, read from the source, so that every Python prints the same."""

import ast
import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from types import ModuleType
from typing import Any

import horsies

OURS = ("horsies", "horsies_schema", "horsies_tui", "horsies_worker")
_SPECIAL = {"__init__", "__call__", "__enter__", "__exit__", "__aenter__", "__aexit__", "__iter__", "__aiter__"}
_HOW = {"property", "cached_property", "classmethod", "staticmethod", "overload", "abstractmethod", "contextmanager"}
_BY_SETTINGS = {"horsies.contrib.django.app": "Horsies"}
"""Names whose value needs the settings of a project, with their types."""
_UNSET = object()
Function = ast.FunctionDef | ast.AsyncFunctionDef


def lines_of(module_name: str) -> Iterator[str]:
    """One or more lines for each name of `__all__`, or for each name that the module itself defines."""
    module = importlib.import_module(module_name)
    names = getattr(module, "__all__", None) or _own_names(module)
    values = {name: getattr(module, name) for name in names if f"{module_name}.{name}" not in _BY_SETTINGS}
    public = {id(value) for value in values.values()}
    for name in sorted(names):
        if module_name != "horsies" and values.get(name, _UNSET) is getattr(horsies, name, None):
            yield f"{module_name}.{name} = horsies.{name}"
        elif name in values:
            yield from _name_lines(module, name, public)
        else:
            yield f"{module_name}.{name}: {_BY_SETTINGS[f'{module_name}.{name}']}"


def _own_names(module: ModuleType) -> list[str]:
    found: list[str] = []
    for node in _tree(module.__name__).body:
        found += [name for name in _defined(node) if not name.startswith("_")]
    return found


def _defined(node: ast.stmt) -> list[str]:
    match node:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            return [name]
        case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
            return [name]
        case _:
            return []


def _name_lines(module: ModuleType, name: str, public: set[int]) -> Iterator[str]:
    value = getattr(module, name)
    full = f"{module.__name__}.{name}"
    home = getattr(value, "__module__", None)
    if inspect.isclass(value) and home is not None and home.partition(".")[0] in OURS:
        if value.__name__ != name:
            yield f"{full} = {value.__module__}.{value.__qualname__}"
            return
        node = _find(home, value.__qualname__)
        assert isinstance(node, ast.ClassDef)
        yield f"{full}: class({', '.join(ast.unparse(base) for base in (*node.bases, *node.keywords))})"
        yield from (f"{full}{line}" for line in sorted(set(_member_lines(value, public))))
    elif inspect.isfunction(value) and value.__module__.partition(".")[0] in OURS:
        for node in _functions(value.__module__, value.__qualname__):
            yield f"{full}{_signature(node)}"
    else:
        yield f"{full} = {_assigned(module, name)}"


def _member_lines(value: type[Any], public: set[int]) -> Iterator[str]:
    """Members of the class, and of its bases that users cannot import by themselves."""
    seen: set[str] = set()
    for one in value.__mro__:
        if one.__module__.partition(".")[0] not in OURS or (one is not value and id(one) in public):
            continue
        node = _find(one.__module__, one.__qualname__)
        if not isinstance(node, ast.ClassDef):
            continue
        mine = dict(_members(node))
        for name, lines in mine.items():
            if name not in seen:
                yield from (f".{name}{line}" for line in lines)
        seen |= mine.keys()


def _members(node: ast.ClassDef) -> list[tuple[str, list[str]]]:
    found: dict[str, list[str]] = {}
    for statement in node.body:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name in _SPECIAL or not name.startswith("_"):
                    found.setdefault(name, []).append(_signature(statement))
                if name == "__init__":
                    for attribute, kind in _set_in(statement):
                        found.setdefault(attribute, []).append(kind)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=default):
                told = f": {ast.unparse(annotation)}" + (f" = {ast.unparse(default)}" if default else "")
                if not name.startswith("_"):
                    found.setdefault(name, []).append(told)
            case ast.Assign(targets=[ast.Name(id=name)], value=default) if not name.startswith("_"):
                found.setdefault(name, []).append(f" = {ast.unparse(default)}")
            case _:
                pass
    return list(found.items())


def _set_in(node: Function) -> Iterator[tuple[str, str]]:
    """Public attributes that `__init__` sets, with their types where they are written."""
    for statement in ast.walk(node):
        match statement:
            case ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=annotation):
                told = f": {ast.unparse(annotation)}"
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)]):
                told = ": attribute"
            case _:
                continue
        if not name.startswith("_"):
            yield name, told


def _signature(node: Function) -> str:
    how = [word for one in node.decorator_list if (word := ast.unparse(one).rpartition(".")[2]) in _HOW]
    begin = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    returns = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    told = f"({ast.unparse(node.args)}){returns}"
    marks = " ".join([*sorted(how), begin.strip()]).strip()
    return told + (f"  [{marks}]" if marks else "")


def _functions(module_name: str, qualname: str) -> list[Function]:
    """The function, or its overloads."""
    nodes = [
        node
        for node in _tree(module_name).body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == qualname
    ]
    assert nodes, f"{module_name} has no function {qualname}"
    return nodes


def _assigned(module: ModuleType, name: str) -> str:
    """The right-hand side, looked up where the name comes from."""
    for place, there in _homes(module.__name__, name):
        for node in _tree(place).body:
            if there in _defined(node) and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                return ast.unparse(node.value)
    return type(getattr(module, name)).__name__


def _homes(module_name: str, name: str) -> Iterator[tuple[str, str]]:
    """The module, and those from which it imports the name in turn, each with the name that it has there."""
    yield module_name, name
    for node in ast.walk(_tree(module_name)):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0] in OURS:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    yield from _homes(node.module, alias.name)


@cache
def _tree(module_name: str) -> ast.Module:
    return ast.parse(inspect.getsource(importlib.import_module(module_name)))


def _find(module_name: str, qualname: str) -> ast.stmt | None:
    body: list[ast.stmt] = _tree(module_name).body
    found: ast.stmt | None = None
    for part in qualname.split("."):
        found = next((node for node in body if part in _defined(node)), None)
        body = getattr(found, "body", [])
    return found
