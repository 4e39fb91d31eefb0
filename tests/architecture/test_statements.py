"""The .sql files against the law of the states: what a statement says it does, and what it may do."""

import re
from collections import Counter

import pytest

from horsies._pg.statements import load, qualify
from horsies.status import TRANSITIONS, Edge, TaskStatus
from tests.support import statements

ALL = dict(statements.statements())


def edge(text: str) -> Edge:
    source, arrow, target = text.partition(" -> ")
    assert arrow, f"not an edge: {text!r}"
    return Edge(None if source == "new" else TaskStatus(source), TaskStatus(target))


def test_there_are_statements() -> None:
    assert ("horsies._pg", "tasks.sql") in statements.files()
    assert len(ALL) > 20


@pytest.mark.parametrize("name", ALL)
def test_a_named_edge_is_legal(name: str) -> None:
    """Which edges a statement really makes is seen by tests/e2e/test_transitions.py."""
    edges = [edge(text) for text in ALL[name].edges]
    assert set(edges) <= TRANSITIONS
    assert [str(one) for one in edges] == list(ALL[name].edges)


def test_every_edge_has_a_statement() -> None:
    named = {edge(text) for statement in ALL.values() for text in statement.edges}
    assert {str(missing) for missing in TRANSITIONS - named} == set()


@pytest.mark.parametrize("name", ALL)
def test_params_are_those_of_the_text(name: str) -> None:
    statement = ALL[name]
    used = {int(number) for number in re.findall(r"\$(\d+)", statement.sql)}
    assert used == set(range(1, len(statement.params) + 1))
    assert len(set(statement.params)) == len(statement.params)
    assert not statement.sql.endswith(";")
    assert ";" not in re.sub(r"--[^\n]*|'[^']*'", "", statement.sql), "one statement each"


@pytest.mark.parametrize("package", sorted({package for package, _ in statements.files()}))
def test_names_are_unique_in_a_package(package: str) -> None:
    names = Counter(
        statement for where, file in statements.files() if where == package for statement in load(where, file)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_qualifying_leaves_other_names_alone() -> None:
    text = "SELECT horsies_tasks.id FROM horsies_tasks WHERE x.horsies_tasks = my_horsies_tasks"
    assert qualify(text, None) == text
    qualified = 'SELECT "a".horsies_tasks.id FROM "a".horsies_tasks WHERE x.horsies_tasks = my_horsies_tasks'
    assert qualify(text, "a") == qualified
    assert qualify("FROM horsies_tasks", 'b"c') == 'FROM "b""c".horsies_tasks'
    assert qualify("FROM horsies_tasks_archive, horsies_tasks", "a") == 'FROM horsies_tasks_archive, "a".horsies_tasks'
