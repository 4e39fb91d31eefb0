"""The workflows that an app has defined, by name: names are unique, and runs find the types of their results here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from horsies.errors import Problem
from horsies.workflow.spec import WorkflowDefinitionError, WorkflowSpec

if TYPE_CHECKING:
    from horsies.workflow.definition import WorkflowDefinition

SHAPES: Final = 32
"""Graphs of one name that are remembered: a workflow that is built anew for each run may have many."""


class Workflows:
    """A name belongs to one definition: a class, or one place in the code that calls `app.workflow`. The same place may
    build the workflow again, with other arguments or another graph, and so may different functions, which make one for
    each run: an error there would depend on which of them ran first in this process."""

    def __init__(self) -> None:
        self._specs: dict[str, WorkflowSpec[Any]] = {}
        self._definitions: dict[str, type[WorkflowDefinition[Any]]] = {}
        self._shapes: dict[str, dict[str, WorkflowSpec[Any]]] = {}
        self._rebuilt: set[str] = set()

    def add(self, spec: WorkflowSpec[Any]) -> None:
        """One that `app.workflow` has made."""
        definition, before = self._definitions.get(spec.name), self._specs.get(spec.name)
        if definition is not None:
            raise _taken(spec.name, definition.location, spec.location)
        if before is not None and not before.same_content(spec):
            if before.location != spec.location and _clashes(before, spec):
                raise _taken(spec.name, before.location, spec.location)
            self._rebuilt.add(spec.name)
        self.add_built(spec)

    def add_built(self, spec: WorkflowSpec[Any]) -> None:
        """One that a definition's `build_with` has made."""
        self._specs[spec.name] = spec
        shapes = self._shapes.setdefault(spec.name, {})
        shapes.pop(spec.definition_key, None)
        shapes[spec.definition_key] = spec
        if len(shapes) > SHAPES:
            del shapes[next(iter(shapes))]

    def add_definition(self, definition: type[WorkflowDefinition[Any]]) -> None:
        name, before = definition.name, self._definitions.get(definition.name)
        if before is None and name in self._specs:
            raise _taken(name, self._specs[name].location, definition.location)
        if before is not None and before.location != definition.location and not _same(before, definition):
            raise _taken(name, before.location, definition.location)
        self._definitions[name] = definition
        static = static_of(definition)
        if static is not None:
            self.add_built(static)

    def get(self, name: str) -> WorkflowSpec[Any] | None:
        """The one of this name; of a definition its own nodes, before what its `build_with` made last."""
        definition = self._definitions.get(name)
        static = None if definition is None else static_of(definition)
        return static or self._specs.get(name)

    def known(self, name: str, definition_key: str | None) -> WorkflowSpec[Any] | None:
        """The one of this name, if it still has the shape that the run was started with."""
        return self._shapes.get(name, {}).get(definition_key or "")

    def is_rebuilt(self, name: str) -> bool:
        """True if `app.workflow` has made different ones of this name."""
        return name in self._rebuilt

    def definition(self, name: str) -> type[WorkflowDefinition[Any]] | None:
        return self._definitions.get(name)

    def definitions(self) -> list[type[WorkflowDefinition[Any]]]:
        return list(self._definitions.values())

    def __iter__(self) -> Iterator[WorkflowSpec[Any]]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)


def static_of(definition: type[WorkflowDefinition[Any]]) -> WorkflowSpec[Any] | None:
    """The workflow of the class's own nodes, if it has any."""
    return definition._static  # pyright: ignore[reportPrivateUsage]


def _clashes(before: WorkflowSpec[Any], spec: WorkflowSpec[Any]) -> bool:
    """True where two graphs of one name can only be a mistake: both in one function, or one of them made at import."""
    if before.same_definition(spec):
        return False
    return before.place.scope == spec.place.scope or not (before.place.is_built and spec.place.is_built)


def _same(one: type[WorkflowDefinition[Any]], other: type[WorkflowDefinition[Any]]) -> bool:
    """The same nodes, and no builder whose work cannot be compared."""
    mine, theirs = static_of(one), static_of(other)
    if mine is None or theirs is None or hasattr(one, "build_with") or hasattr(other, "build_with"):
        return False
    return mine.same_definition(theirs)


def _taken(name: str, first: str, second: str) -> WorkflowDefinitionError:
    problem = Problem("name", f"two workflows are called {name!r}: at {first} and at {second}", "rename one of them")
    return WorkflowDefinitionError([problem], subject=f"workflow {name!r} ({second})")
