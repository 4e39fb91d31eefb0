"""The strings that follow the fields of classes in the source, which document them."""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Mapping
from functools import cache
from types import ModuleType
from typing import Any

from tests.support.reference import markdown as md


@cache
def fields(kind: type) -> Mapping[str, str]:
    """By the name of a field: the string that follows it. Fields of base classes count, too."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if one.__module__.startswith("horsies"):
            tree = ast.parse(textwrap.dedent(inspect.getsource(one))).body[0]
            found.update(_following(tree.body if isinstance(tree, ast.ClassDef) else []))
    return found


def members(kind: type) -> Mapping[str, str]:
    """By the name of the member of an enumeration: the string that follows it."""
    tree = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0]
    return dict(_following(tree.body if isinstance(tree, ast.ClassDef) else []))


@cache
def constants(module: ModuleType) -> Mapping[str, str]:
    """By the name of a constant of the module: the string that follows it."""
    return dict(_following(ast.parse(inspect.getsource(module)).body))


def _following(body: list[ast.stmt]) -> Iterator[tuple[str, str]]:
    for line, after in zip(body, [*body[1:], None], strict=True):
        target: Any = None
        if isinstance(line, ast.AnnAssign):
            target = line.target
        elif isinstance(line, ast.Assign):
            target = line.targets[0]
        if isinstance(target, ast.Name):
            is_told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            yield target.id, md.one_line(str(after.value.value)) if is_told else ""
