"""Tests speak of what the product does: they touch no name of it that begins with an underscore.

A private attribute that a test reads or replaces makes the test fail at a change that breaks nothing, and pass at one
that breaks the product. Rows, log lines, statistics of the server and sync points show the same. Modules such as `_pg`
are internal, and their public names may be imported.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
EVERYWHERE = {"_replace", "_exit"}
"""Public in spite of their names: of named tuples, and `os._exit`."""
ALLOWED = {
    # Textual offers no other way to skip frames that no test looks at, to read the screen as text, or to learn that
    # everything is drawn.
    "support/dashboards.py": {
        "_compositor", "_compositor_refresh", "_dirty_widgets", "_notifications", "_update_timer", "_active",
    },
    # What asyncpg makes of a URL is what the test is about; to connect would ask a server.
    "unit/client/test_dsn.py": {"_parse_connect_arguments"},
    # argparse offers no other way to list the arguments of a parser.
    "support/reference/parsers.py": {
        "_HelpAction", "_SubParsersAction", "_AppendAction", "_actions", "_action_groups", "_group_actions",
        "_choices_actions", "_mutually_exclusive_groups",
    },
    # There is no other way to overflow the C stack in every version of Python.
    "support/pool_harmful_tasks.py": {"_stack_overflow"},
}  # fmt: skip
BY_STRING = {"setattr", "delattr", "getattr", "hasattr", "attrgetter", "methodcaller", "patch", "object"}
"""Calls that name an attribute by a string: of builtins, of monkeypatch and of mock."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__")) and name != "_"


def private_names(source: str) -> Iterator[tuple[int, str]]:
    """The line and name of each access to something private of another object."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(attr=name) if is_private(name):
                yield node.lineno, name
            case ast.ImportFrom(names=names):
                yield from ((node.lineno, alias.name) for alias in names if is_private(alias.name))
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called)) if called in BY_STRING:
                for argument in node.args[:2]:
                    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
                        name = argument.value.rpartition(".")[2]
                        if is_private(name):
                            yield node.lineno, name
            case _:
                pass


def test_nothing_private_is_touched() -> None:
    found = [
        f"{path.relative_to(TESTS)}:{line}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for line, name in private_names(path.read_text())
        if name not in EVERYWHERE | ALLOWED.get(str(path.relative_to(TESTS)), set())
    ]
    assert found == []


@pytest.mark.parametrize("name", ALLOWED)
def test_what_is_allowed_is_needed(name: str) -> None:
    used = {private for _, private in private_names((TESTS / name).read_text())}
    assert used >= ALLOWED[name]


@pytest.mark.parametrize(
    "source",
    [
        "service._state", "service._state.read = other", "service._run()", "self.service._run()", "del service._state",
        "from horsies import _HOME_OF", "from horsies import cli as c, _text",
        "monkeypatch.setattr(service, '_state', 1)", "monkeypatch.setattr('horsies.ids._tails', [])",
        "getattr(service, '_state')", "mock.patch.object(service, '_state')", "mock.patch('horsies.ids._tails')",
        "monkeypatch.setitem(scheduler._slots, 'name', None)", "service.__state",
    ],
)  # fmt: skip
def test_it_finds(source: str) -> None:
    assert list(private_names(source))


@pytest.mark.parametrize(
    "source",
    [
        "self._state", "cls._made", "service.__dict__", "from horsies._pg.waiters import Waiters", "_, state = pair",
        "from __future__ import annotations", "monkeypatch.setattr('horsies._pg.waiters.LINGER_S', 0.3)",
        "monkeypatch.setenv('_X', '1')",
    ],
)  # fmt: skip
def test_it_passes(source: str) -> None:
    assert not list(private_names(source))
