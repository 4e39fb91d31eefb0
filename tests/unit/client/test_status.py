"""The states and their legal moves: the same law as the table's CHECKs and the design's table of edges."""

import json

import pytest

from horsies.status import (
    NODE_TERMINAL_STATES,
    TASK_TERMINAL_STATES,
    TRANSITIONS,
    WORKFLOW_TERMINAL_STATES,
    Edge,
    NodeStatus,
    TaskStatus,
    WorkflowStatus,
)


def test_the_states_are_these() -> None:
    assert list(TaskStatus) == ["PENDING", "CLAIMED", "RUNNING", "COMPLETED", "FAILED", "CANCELLED", "EXPIRED"]
    assert list(WorkflowStatus) == ["PENDING", "RUNNING", "PAUSED", "COMPLETED", "FAILED", "CANCELLED"]
    assert list(NodeStatus) == ["PENDING", "READY", "WAITING", "ENQUEUED", "RUNNING", "COMPLETED", "FAILED", "SKIPPED"]


@pytest.mark.parametrize(
    ("states", "terminal", "ended"),
    [
        (TaskStatus, TASK_TERMINAL_STATES, {"COMPLETED", "FAILED", "CANCELLED", "EXPIRED"}),
        (WorkflowStatus, WORKFLOW_TERMINAL_STATES, {"COMPLETED", "FAILED", "CANCELLED"}),
        (NodeStatus, NODE_TERMINAL_STATES, {"COMPLETED", "FAILED", "SKIPPED"}),
    ],
)
def test_which_are_the_end(
    states: type[TaskStatus] | type[WorkflowStatus] | type[NodeStatus], terminal: frozenset[str], ended: set[str]
) -> None:
    assert terminal == ended
    assert {state for state in states if state.is_terminal} == ended


def test_a_state_is_its_text() -> None:
    assert TaskStatus.RUNNING == "RUNNING"
    assert f"{TaskStatus.RUNNING}" == str(TaskStatus.RUNNING) == "RUNNING"
    assert json.dumps({"status": TaskStatus.RUNNING}) == '{"status": "RUNNING"}'
    assert TaskStatus("FAILED") is TaskStatus.FAILED
    with pytest.raises(ValueError, match="'running' is not a valid TaskStatus"):
        TaskStatus("running")


def test_the_edges_are_those_of_the_design() -> None:
    written = """
        new -> PENDING
        PENDING -> CLAIMED      PENDING -> RUNNING    PENDING -> EXPIRED    PENDING -> CANCELLED
        PENDING -> FAILED
        CLAIMED -> RUNNING      CLAIMED -> PENDING    CLAIMED -> EXPIRED    CLAIMED -> CANCELLED
        RUNNING -> COMPLETED    RUNNING -> FAILED     RUNNING -> CANCELLED  RUNNING -> PENDING
        FAILED -> PENDING       CANCELLED -> PENDING  EXPIRED -> PENDING
    """
    words = written.replace(" -> ", "->").split()
    assert sorted(str(edge).replace(" -> ", "->") for edge in TRANSITIONS) == sorted(words)


def test_nothing_leaves_the_end_but_by_an_operators_retry() -> None:
    leaving = {edge for edge in TRANSITIONS if edge.source in TASK_TERMINAL_STATES}
    assert {edge.target for edge in leaving} == {TaskStatus.PENDING}
    assert TaskStatus.COMPLETED not in {edge.source for edge in leaving}


def test_every_state_can_be_reached_and_only_birth_has_no_source() -> None:
    assert {edge.target for edge in TRANSITIONS} == set(TaskStatus)
    assert [edge for edge in TRANSITIONS if edge.source is None] == [Edge(None, TaskStatus.PENDING)]
