"""A run drawn as text and as a Mermaid flowchart: its edges, what its nodes wait for, and why they were skipped."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies.errors import UsageError
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.diagram import draw
from horsies.workflow.info import WorkflowInfo, WorkflowNodeInfo
from tests.support.graphs import node

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)


def run(**columns: Any) -> WorkflowInfo:
    plain: dict[str, Any] = {
        "id": "run-1", "name": "orders", "status": WorkflowStatus.RUNNING, "on_error": "fail", "definition_key": None,
        "parent_workflow_id": None, "depth": 0, "nodes_left": 1, "sent_at": NOW, "created_at": NOW, "started_at": NOW,
        "completed_at": None, "updated_at": NOW, "deadline": None, "start_at": None, "priority": None, "release": None,
        "ends_as": None, "continues": 0, "metadata": None,
    }  # fmt: skip
    return WorkflowInfo(**{**plain, **columns})


DONE, WAITING, SKIPPED = NodeStatus.COMPLETED, NodeStatus.WAITING, NodeStatus.SKIPPED
NODES = [
    node(0, node_id="check", status=DONE),
    node(1, 0, node_id="approve", kind="signal", signal_name="approve", status=WAITING,
         wake_at=NOW + timedelta(minutes=30), when_index=0, when_value=True),
    node(2, 0, node_id="refuse", status=SKIPPED, skip_reason="not_taken", when_index=0, when_value=False),
    node(3, 0, node_id="cool_off", kind="sleep", status=WAITING, wake_at=NOW + timedelta(days=1)),
    node(4, 1, 3, node_id="ship", is_subworkflow=True, kind="workflow"),
]  # fmt: skip


def test_text_draws_the_edges_and_says_what_is_waited_for() -> None:
    assert draw(run(deadline=NOW + timedelta(hours=2), continues=2), NODES) == (
        """
orders run-1: RUNNING, 2 of 5 nodes ended
deadline 14:00 UTC, continued 2 times

             ✓ check
   ┌┄┄┄┄┄┄┄┄┄┘ ┆ └────────┐
   ┆ if yes    ┆ if no    │
   ◷ approve   – refuse   ◷ cool_off
   └───────────┬──────────┘
               · ship ⊞

· pending  ◷ waiting  ✓ completed  – skipped  ⊞ workflow
approve   signal approve until 12:30 UTC
refuse    skipped: this branch was not taken
cool_off  sleeps until 2026-03-05 12:00 UTC
""".strip()
    )


def test_mermaid_has_dashed_branches_classes_and_what_is_waited_for() -> None:
    lines = [line.strip() for line in draw(run(), NODES, "mermaid").splitlines()]
    for line in (
        "flowchart TD",
        'n0["check<br/>COMPLETED"]:::completed',
        'n1{{"approve<br/>WAITING<br/>signal approve until 12:30 UTC"}}:::waiting',
        "n0 -. yes .-> n1",
        'n2["refuse<br/>SKIPPED<br/>this branch was not taken"]:::not_taken',
        "n0 -. no .-> n2",
        'n3(["cool_off<br/>WAITING<br/>sleeps until 2026-03-05 12:00 UTC"]):::waiting',
        "n0 --> n3",
        'n4[["ship<br/>PENDING"]]:::pending',
        "n1 --> n4",
        "n3 --> n4",
    ):
        assert lines.count(line) == 1, line
    assert not any(line.startswith("n0 --> n1") for line in lines), "one line for a branch that is a dependency too"
    classes = {line.split()[1] for line in lines if line.startswith("classDef")}
    assert {"waiting", "not_taken"} <= classes


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"ends_as": WorkflowStatus.FAILED}, "undoing, will end FAILED"),
        ({"start_at": NOW + timedelta(hours=1), "started_at": None}, "starts at 13:00 UTC"),
        ({"deadline": NOW + timedelta(days=3)}, "deadline 2026-03-07 12:00 UTC"),
        ({"continues": 1}, "continued 1 time"),
    ],
)
def test_the_second_line_says_what_is_particular_about_a_live_run(columns: dict[str, Any], said: str) -> None:
    assert draw(run(**columns), NODES).splitlines()[1] == said
    over = replace(run(**columns), status=WorkflowStatus.COMPLETED)
    assert said not in draw(over, NODES)


def test_compensations_and_waits_without_an_end_are_marked() -> None:
    nodes = [
        node(0, node_id="charge", status=DONE),
        node(1, 0, node_id="undo", is_compensation=True),
        node(2, 0, node_id="wait", kind="signal", signal_name="go", status=WAITING),
        node(3, 2, node_id="gone", status=SKIPPED, skip_reason="deadline"),
    ]
    text, mermaid = draw(run(), nodes), draw(run(), nodes, "mermaid")
    assert "· ↩ undo" in text
    assert "↩ undoes a node" in text
    assert "\nwait  signal go\n" in text
    assert "skipped: the run's deadline passed" in text
    assert 'n1["↩ undo<br/>PENDING"]' in mermaid
    assert 'n2{{"wait<br/>WAITING<br/>signal go"}}' in mermaid


def test_a_graph_that_is_too_large_is_a_list() -> None:
    wide = [node(0), *(node(index, 0, status=DONE) for index in range(1, 60)), node(60, *range(1, 60))]
    lines = draw(run(), wide).splitlines()
    assert lines[0] == "orders run-1: RUNNING, 59 of 61 nodes ended"
    assert lines[1] == "· n0   PENDING"
    assert lines[2] == "  ✓ n1   COMPLETED  <- n0"
    assert lines[-1] == "    · n60  PENDING  <- n1, n2, n3, n4, n5 and 54 more"
    many = draw(run(), [node(index) for index in range(300)]).splitlines()
    assert (len(many), many[-1]) == (202, "... and 100 more nodes")
    branch = node(61, 0, when_index=0, when_value=False, status=SKIPPED, skip_reason="not_taken")
    assert "<- n0 if n0 is no  skipped: this branch was not taken" in draw(run(), [*wide, branch])


def test_hostile_names_forge_nothing() -> None:
    evil = 'a"]:::failed\n<script>`x`#quot;\x1b[2J'
    nodes = [node(0, node_id=evil), node(1, 0, kind="signal", signal_name=evil, status=WAITING)]
    text, mermaid = draw(run(name=evil), nodes), draw(run(), nodes, "mermaid")
    for drawn in (text, mermaid):
        assert "\x1b" not in drawn
        assert not any(line.startswith("<script>") for line in drawn.splitlines())
    labels = [line for line in mermaid.splitlines() if line.strip().startswith(("n0", "n1{"))]
    for line in labels[:2]:
        assert line.count('"') == 2
        assert not set("<>`") & set(line.replace("<br/>", ""))
    assert "#quot;]:::failed" in mermaid
    assert "#35;quot;" in mermaid


def test_rows_that_no_run_has_are_drawn() -> None:
    cyclic: list[WorkflowNodeInfo] = [node(0, 1), node(1, 0), node(2, 2, 99)]
    text = draw(run(), cyclic)
    assert "· n2" in text
    assert text.splitlines()[-1] == "not drawn: 1 edge that would not go downwards"
    assert draw(run(), []).splitlines() == ["orders run-1: RUNNING, 0 of 0 nodes ended"]
    assert "n1 --> n0" in draw(run(), cyclic, "mermaid")


def test_an_unknown_style_or_run_is_told() -> None:
    assert draw(None, []) == "there is no such workflow"
    with pytest.raises(UsageError, match="text or mermaid"):
        draw(run(), [], "svg")
