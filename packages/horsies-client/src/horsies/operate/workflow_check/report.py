"""What the check found: one problem per task and cause, with the runs and nodes that have it."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

MAX_PLACES: Final = 1_000
"""How many nodes of one problem are kept; all are counted."""


class MisfitKind(StrEnum):
    """Why a node of a run does not fit the code."""

    UNKNOWN_TASK = "UNKNOWN_TASK"
    MISSING_PARAMETER = "MISSING_PARAMETER"
    UNKNOWN_PARAMETER = "UNKNOWN_PARAMETER"
    ARGUMENT_REFUSED = "ARGUMENT_REFUSED"
    RESULT_REFUSED = "RESULT_REFUSED"
    """The stored result of an upstream that has ended."""
    RESULT_TYPE = "RESULT_TYPE"
    """The result type of an upstream that has not ended."""
    UNREADABLE = "UNREADABLE"
    """The stored graph of a workflow inside the run."""


@dataclass(frozen=True, slots=True)
class Misfit:
    """One reason why one node does not fit. Those with the same `kind`, `task_name` and `subject` are one problem."""

    kind: MisfitKind
    task_name: str
    subject: str
    """The parameter; empty when it is about the task itself."""
    what: str
    fix: str
    path: tuple[str, ...]
    """The nodes that lead to it from its run, itself included."""


@dataclass(frozen=True, slots=True)
class Place:
    """A node that has a problem."""

    workflow_id: str
    workflow_name: str
    release: str | None
    """`AppConfig.release` of the process that started the run."""
    node: str
    """The path of the node in its run, such as `outer/inner`."""


@dataclass(slots=True)
class WorkflowProblem:
    """Something that the code lacks, and the runs that need it."""

    kind: MisfitKind
    task_name: str
    subject: str
    what: str
    """In one sentence, as it is for the first of the nodes."""
    fix: str
    nodes: int = 0
    """How many nodes have it."""
    workflow_ids: list[str] = field(default_factory=list[str])
    """Every run that has it."""
    places: list[Place] = field(default_factory=list[Place])
    """The first thousand of the nodes."""


@dataclass(slots=True)
class WorkflowCheck:
    """The result of a check."""

    problems: list[WorkflowProblem]
    """The most frequent first."""
    runs: int
    """Live runs that were looked at, without the runs inside them."""
    unchanged: int
    """Of these, runs whose definition is that of this code: their nodes were not compared one by one."""
    nodes: int
    """Nodes that were compared."""
    is_complete: bool
    """False when there are more live runs than the limit; the oldest were looked at."""

    @property
    def is_fine(self) -> bool:
        return not self.problems


class Findings:
    """Collects misfits by problem."""

    def __init__(self) -> None:
        self._found: dict[tuple[MisfitKind, str, str], WorkflowProblem] = {}
        self._runs: dict[tuple[MisfitKind, str, str], dict[str, None]] = {}

    def add(self, misfit: Misfit, place: Place) -> None:
        key = (misfit.kind, misfit.task_name, misfit.subject)
        problem = self._found.get(key)
        if problem is None:
            problem = self._found[key] = WorkflowProblem(*key, misfit.what, misfit.fix)
        problem.nodes += 1
        self._runs.setdefault(key, {})[place.workflow_id] = None
        if len(problem.places) < MAX_PLACES:
            problem.places.append(place)

    def problems(self) -> list[WorkflowProblem]:
        for key, problem in self._found.items():
            problem.workflow_ids = list(self._runs[key])
        return sorted(self._found.values(), key=lambda one: (-len(one.workflow_ids), one.task_name, one.subject))
