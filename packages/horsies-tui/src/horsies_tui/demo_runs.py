"""The runs of the demo's workflows: a few that go on, are paused, have ended or failed, and one that waits."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from horsies.status import NodeStatus, TaskStatus, WorkflowStatus
from horsies_tui.data.models import WorkflowDetail, WorkflowNode, WorkflowRow
from horsies_tui.demo_tasks import ERRORS, DemoTask

_GRAPHS: Final[dict[str, tuple[tuple[str, tuple[int, ...]], ...]]] = {
    "fulfil_orders": (
        ("fetch_orders", ()), ("validate", (0,)), ("reserve_stock", (1,)), ("charge_cards", (1,)),
        ("print_labels", (2, 3)), ("send_receipts", (3,)), ("close_orders", (4, 5)),
    ),
    "nightly_report": (
        ("read_sales", ()), ("read_returns", ()), ("join_both", (0, 1)), ("render_report", (2,)), ("mail_report", (3,)),
    ),
}  # fmt: skip
_FAILS_AT: Final = 3
"""The node at which a failed run failed: the cards, or the rendering."""
_RUNS: Final = 14
WAITING_ID: Final = "0193f0b1-00ff-7000-8000-0000000000ff"
_WAITING_SINCE: Final = 312.0
_WAITING: Final[tuple[tuple[str, tuple[int, ...], NodeStatus, dict[str, Any]], ...]] = (
    ("read_order", (), NodeStatus.COMPLETED, {}),
    ("is_small", (0,), NodeStatus.COMPLETED, {}),
    ("approve_itself", (1,), NodeStatus.SKIPPED, {"when_index": 1, "when_value": True, "skip_reason": "not_taken"}),
    ("ask_manager", (1,), NodeStatus.WAITING,
     {"when_index": 1, "when_value": False, "kind": "signal", "signal_name": "approval", "wake": 1_500.0}),
    ("cooling_off", (0,), NodeStatus.WAITING, {"kind": "sleep", "wake": 10_800.0}),
    ("refund_order", (2, 3), NodeStatus.PENDING, {"join_type": "any"}),
    ("mail_customer", (5,), NodeStatus.PENDING, {}),
    ("close_case", (4, 5), NodeStatus.PENDING, {}),
)  # fmt: skip
"""A refund that waits for a manager and for a time: name, dependencies, state and other columns of its nodes."""


class DemoRuns:
    """The runs, the newest first. Ages count back from `began`."""

    def __init__(
        self, tasks: Mapping[str, DemoTask], add: Callable[..., DemoTask], workers: Sequence[str], began: float
    ) -> None:
        self._tasks = tasks
        self._add = add
        self._workers = workers
        self._began = began
        self.moved: dict[str, WorkflowStatus] = {}
        """The states that actions gave to runs."""
        self.signals: set[tuple[str, str]] = set()
        """The signals that were sent, by run and name."""
        self._nodes: dict[tuple[str, int], str] = {}
        self._fill()

    # -- tasks -----------------------------------------------------------------------------------

    def _fill(self) -> None:
        """Add the tasks of started nodes; a node takes three seconds."""
        for number in range(_RUNS):
            run_id, name, status, age = _run(number)
            graph = _GRAPHS[name]
            for index, (node, _) in enumerate(graph):
                state = _node_status(status, index, _ended(status, len(graph)))
                if state not in (NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.RUNNING):
                    continue
                is_live = status in (WorkflowStatus.RUNNING, WorkflowStatus.PAUSED)
                begins = age - 3.0 * index if is_live else age + 3.0 * (len(graph) - index)
                runs = state is NodeStatus.RUNNING
                self._nodes[run_id, index] = self._add(
                    TaskStatus(state.value), node, enqueued=begins + 0.2, started=begins,
                    ended=None if runs else begins - 2.8,
                    worker=self._workers[number % 2], workflow=run_id,
                    error=None if state is not NodeStatus.FAILED else ERRORS["payments"][0] if name == "fulfil_orders"
                    else ERRORS["default"][0],
                ).id  # fmt: skip

    def fill_waiting(self) -> None:
        """Add the tasks of the run that waits; after all others, so that these stay as they are."""
        for index, (name, _, state, _) in enumerate(_WAITING):
            if state is NodeStatus.COMPLETED:
                begins = _WAITING_SINCE - 3.0 * index
                self._nodes[WAITING_ID, index] = self._add(
                    TaskStatus.COMPLETED, name, enqueued=begins + 0.2, started=begins, ended=begins - 2.8,
                    worker=self._workers[0], workflow=WAITING_ID,
                ).id  # fmt: skip

    # -- runs ------------------------------------------------------------------------------------

    def runs(self) -> list[WorkflowDetail]:
        found = [self._waiting()]
        for number in range(_RUNS):
            run_id, name, first, age = _run(number)
            graph = _GRAPHS[name]
            ended = _ended(first, len(graph))
            nodes = [
                self._node(run_id, index, node, waits, _node_status(first, index, ended))
                for index, (node, waits) in enumerate(graph)
            ]
            found.append(self._detail(run_id, name, first, age, nodes))
        return found

    def _waiting(self) -> WorkflowDetail:
        nodes: list[WorkflowNode] = []
        for index, (name, waits, first, columns) in enumerate(_WAITING):
            more, state = dict(columns), first
            wake = more.pop("wake", None)
            if (WAITING_ID, more.get("signal_name")) in self.signals:
                state, wake = NodeStatus.COMPLETED, None
            if wake is not None:
                more["wake_at"] = self._at(-wake)
            nodes.append(replace(self._node(WAITING_ID, index, name, waits, state), **more))
        found = self._detail(WAITING_ID, "refund_order", WorkflowStatus.RUNNING, _WAITING_SINCE, nodes)
        return replace(found, run=replace(found.run, deadline=self._at(-14_400.0), continues=1))

    def _node(self, run_id: str, index: int, name: str, waits: Sequence[int], state: NodeStatus) -> WorkflowNode:
        task = self._tasks.get(self._nodes.get((run_id, index), ""))
        took = timedelta(seconds=2.8) if task is not None and task.ended is not None else None
        return WorkflowNode(
            index, name, name, list(waits), "all", False, None, task.id if task else None, state, None, None,
            skip_reason="upstream" if state is NodeStatus.SKIPPED else None,
            error_code=task.error if task else None, took=took,
        )  # fmt: skip

    def _detail(
        self, run_id: str, name: str, first: WorkflowStatus, age: float, nodes: Sequence[WorkflowNode]
    ) -> WorkflowDetail:
        status = self.moved.get(run_id, first)
        if status is WorkflowStatus.CANCELLED:
            nodes = [
                replace(one, status=NodeStatus.SKIPPED, skip_reason="cancelled", wake_at=None)
                if one.status in (NodeStatus.PENDING, NodeStatus.WAITING)
                else one
                for one in nodes
            ]
        is_over = status.is_terminal
        over = sum(one.status.is_terminal for one in nodes)
        at = self._at(age)
        run = WorkflowRow(
            id=run_id, name=name, status=status, on_error="fail", definition_key=None, parent_workflow_id=None,
            depth=0, nodes_left=len(nodes) - over, sent_at=at, created_at=at, started_at=at,
            completed_at=at if is_over else None, updated_at=at, deadline=None, start_at=None, priority=None,
            release=None, ends_as=None, continues=0, metadata=None, age=timedelta(seconds=age),
            took=timedelta(seconds=3.0 * len(nodes)) if is_over else None, nodes=len(nodes), ended=over,
            failed=sum(one.status is NodeStatus.FAILED for one in nodes),
        )  # fmt: skip
        return WorkflowDetail(run, tuple(nodes))

    def _at(self, age: float) -> datetime:
        return datetime.fromtimestamp(self._began - age, UTC)


def _run(number: int) -> tuple[str, str, WorkflowStatus, float]:
    """The id, name, state and age of a run; from the start of a live run, from the end of another."""
    status = (WorkflowStatus.RUNNING, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED, WorkflowStatus.COMPLETED,
              WorkflowStatus.FAILED)[min(number, 3 if number % 4 else 4)]  # fmt: skip
    name = "fulfil_orders" if number % 3 else "nightly_report"
    return f"0193f0a0-{number:04x}-7000-8000-{number:012x}", name, status, 20.0 + number * 240


def _ended(status: WorkflowStatus, nodes: int) -> int:
    """How many nodes of a run have ended by themselves."""
    return {WorkflowStatus.COMPLETED: nodes, WorkflowStatus.FAILED: _FAILS_AT, WorkflowStatus.PAUSED: 2}.get(status, 3)


def _node_status(run: WorkflowStatus, index: int, ended: int) -> NodeStatus:
    if index < ended:
        return NodeStatus.COMPLETED
    if run is WorkflowStatus.FAILED:
        return NodeStatus.FAILED if index == ended else NodeStatus.SKIPPED
    return NodeStatus.RUNNING if run is WorkflowStatus.RUNNING and index == ended else NodeStatus.PENDING
