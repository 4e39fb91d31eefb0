"""The registry of an app's workflows: names are unique, and handles find the types of results here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from horsies.errors import Problem
from horsies.workflow.graph import Graph, WorkflowDefinitionError

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime

SHAPES: Final = 32
"""How many graphs of one name are kept: a workflow that is built for each run may have many."""


@dataclass(frozen=True, slots=True)
class Definition:
    """A subclass of `WorkflowDefinition`, as far as the registry, schedules and `horsies check` need it."""

    name: str
    location: str
    static: Graph[Any] | None
    """The workflow of the class's own nodes."""
    build_with: Callable[..., Graph[Any]] | None
    check_with: Sequence[Mapping[str, Any]]


class Workflows:
    """A name belongs to one definition: a class, or one place in the code that calls `app.workflow`. The same place may
    build the workflow again, with other arguments or another graph. Different functions that build one for each run may
    do so too: an error would depend on which of them ran first in this process."""

    def __init__(self) -> None:
        self._specs: dict[str, Graph[Any]] = {}
        self._definitions: dict[str, Definition] = {}
        self._shapes: dict[str, dict[str, Graph[Any]]] = {}
        self._rebuilt: set[str] = set()

    def add(self, spec: Graph[Any]) -> None:
        """Add a workflow that `app.workflow` has made."""
        definition, before = self._definitions.get(spec.name), self._specs.get(spec.name)
        if definition is not None:
            raise _taken(spec.name, definition.location, spec.location)
        if before is not None and not before.same_content(spec):
            if before.location != spec.location and _clashes(before, spec):
                raise _taken(spec.name, before.location, spec.location)
            self._rebuilt.add(spec.name)
        self.add_built(spec)

    def add_built(self, spec: Graph[Any]) -> None:
        """Add a workflow that a definition's `build_with` has made."""
        self._specs[spec.name] = spec
        shapes = self._shapes.setdefault(spec.name, {})
        shapes.pop(spec.definition_key, None)
        shapes[spec.definition_key] = spec
        if len(shapes) > SHAPES:
            del shapes[next(iter(shapes))]

    def add_definition(self, definition: Definition) -> None:
        name, before = definition.name, self._definitions.get(definition.name)
        if before is None and name in self._specs:
            raise _taken(name, self._specs[name].location, definition.location)
        if before is not None and before.location != definition.location and not _same(before, definition):
            raise _taken(name, before.location, definition.location)
        self._definitions[name] = definition
        if definition.static is not None:
            self.add_built(definition.static)

    def get(self, name: str) -> Graph[Any] | None:
        """The workflow of this name. A definition's own nodes win over the workflow that its `build_with` made last."""
        definition = self._definitions.get(name)
        static = None if definition is None else definition.static
        return static or self._specs.get(name)

    def known(self, name: str, definition_key: str | None) -> Graph[Any] | None:
        """The workflow of this name with the shape that the run was started with, or of any name: a run that continues
        with another workflow keeps its name."""
        key = definition_key or ""
        found = self._shapes.get(name, {}).get(key)
        return found or next((shapes[key] for shapes in self._shapes.values() if key in shapes), None)

    def fingerprints(self) -> dict[str, frozenset[str]]:
        """By name: the fingerprints of the workflows that this process knows."""
        return {name: frozenset(spec.fingerprint for spec in made.values()) for name, made in self._shapes.items()}

    def is_rebuilt(self, name: str) -> bool:
        """True if `app.workflow` has made different workflows of this name."""
        return name in self._rebuilt

    def definition(self, name: str) -> Definition | None:
        return self._definitions.get(name)

    def definitions(self) -> list[Definition]:
        return list(self._definitions.values())

    def __iter__(self) -> Iterator[Graph[Any]]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)


def workflows_of(app: AppRuntime) -> Workflows:
    """The workflows of an app. `setdefault` is atomic, so all threads get the same object."""
    return vars(app).setdefault("_workflows", Workflows())


def _clashes(before: Graph[Any], spec: Graph[Any]) -> bool:
    """True where two graphs of one name must be a mistake: both in one function, or one of them made at import."""
    if before.same_definition(spec):
        return False
    return before.place.scope == spec.place.scope or not (before.place.is_built and spec.place.is_built)


def _same(one: Definition, other: Definition) -> bool:
    """True for the same nodes and arguments without a `build_with`, whose graphs cannot be compared."""
    if one.static is None or other.static is None or one.build_with or other.build_with:
        return False
    return one.static.same_content(other.static)


def _taken(name: str, first: str, second: str) -> WorkflowDefinitionError:
    problem = Problem("name", f"two workflows are called {name!r}: at {first} and at {second}", "rename one of them")
    return WorkflowDefinitionError([problem], subject=f"workflow {name!r} ({second})")
