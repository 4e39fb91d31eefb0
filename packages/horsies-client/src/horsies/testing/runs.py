"""Runs a workflow in this process. When a node runs or is skipped, how a run ends and what its errors say is decided by
the worker's own functions (`horsies_worker.workflows`); this module has what they do with rows in SQL.

Ready nodes run one after the other, in the order in which they became ready. When nothing else can run, the virtual
time passes to the next clock.
"""

import json
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from horsies.app import Horsies
from horsies.codec import decode_untyped_result, encode_error
from horsies.envelopes import stored_bytes
from horsies.errors import OutcomeCode
from horsies.ids import new_id
from horsies.payload_codec import PayloadError
from horsies.result import CONTINUES, TaskError
from horsies.status import NodeStatus, TaskStatus, WorkflowStatus
from horsies.testing.clocks import Clock, next_clock, passes_by_itself, wake_at
from horsies.testing.inline_run import InlineNode, InlineRun
from horsies.testing.node_tasks import task_of
from horsies.testing.node_values import decode_condition, gap_of, items_of, join_of, map_graph, output_of
from horsies.testing.run_ends import outcome_of, stop_overdue
from horsies.testing.store import RunRow, Store, TaskRow, moment_of
from horsies.testing.undo_nodes import undo_nodes
from horsies.workflow.control import absent
from horsies_worker.workflows.failures import inside, stored_form, told_first
from horsies_worker.workflows.refused import large_output, no_condition, not_a_list, too_wide, unreadable
from horsies_worker.workflows.resolve import Readiness, readiness
from horsies_worker.workflows.starting import refusal_to_continue
from horsies_worker.workflows.step import BRANCH, UPSTREAM
from horsies_worker.workflows.undoing import with_failed_compensation
from horsies_worker.workflows.waiting import TIMED_OUT, WAITS

RunTask = Callable[[TaskRow], BaseException | None]


class Runs:
    """A run that was started, and the runs inside it."""

    def __init__(self, app: Horsies, store: Store, run_task: RunTask, row: RunRow, now: datetime) -> None:
        self._app = app
        self._store = store
        self._run_task = run_task
        self.row = row
        self._envelopes = app.envelopes
        limit = app.config.payload_max_bytes
        self._max_bytes = stored_bytes(limit) if app.envelopes.codec is not None else limit
        self._queue: deque[tuple[InlineRun, InlineNode, TaskRow] | InlineRun] = deque()
        """Tasks that wait for their turn, and runs that have not begun."""
        data = row.data
        # a start that was to come later comes at once, and the time of the run begins there
        self._now = self._until = max(moment_of(data, "start_at", now) or now, now)
        self._deadline = moment_of(data, "deadline", self._now)
        self._top = InlineRun(data["id"], data, data["metadata"], data["group_key"], data.get("priority"))
        self._all: list[InlineRun] = []
        self.by_id: dict[str, InlineRun] = {}
        """All runs of the tree."""
        self._lock = threading.Lock()
        self._is_driven = False
        self._has_news = False
        """Signals have come, or the time has been moved, since the last look."""
        self.first_error: BaseException | None = None
        """Of the first task that failed."""
        self._add(self._top)

    # -- what moves it ---------------------------------------------------------------------------

    def signal(self, run_id: str, name: str, value: str) -> None:
        with self._lock:
            self.by_id[run_id].signals.setdefault(name, deque()).append(value)
            self._has_news = True
        self.drive()

    def advance(self, time: timedelta) -> None:
        """Let time pass."""
        with self._lock:
            self._until = max(self._now, self._until) + time
            self._has_news = True
        self.drive()

    def drive(self) -> None:
        """Run it until it ends, or until it waits for a signal, for more time or for a resume. When another call is at
        it, which may be the one whose task has called this, that one goes on with the news."""
        with self._lock:
            if self._is_driven:
                return
            self._is_driven = True
        try:
            while True:
                self._has_news = False
                while self._move():
                    pass
                with self._lock:
                    if not self._has_news:
                        self._fill_in()
                        self._is_driven = False
                        return
        except BaseException:
            self._is_driven = False
            raise

    def _move(self) -> bool:
        """One turn: signals first, then tasks, then the time. False: nothing can move."""
        if self._deadline is not None and self._deadline <= self._now and self._top.is_open:
            self._ring(Clock(self._deadline, self._top, None))
            return True
        for run in self._all:
            if run.signals and not run.status.is_terminal and (ended := self._consume(run)):
                self._ended(run, ended)
                return True
        if self._queue:
            self._turn(self._queue.popleft())
            return True
        clock = next_clock(self._all, self._deadline)
        if clock is None or not (clock.when <= self._until or passes_by_itself(clock, self._all)):
            self._now = max(self._now, self._until)
            return False
        self._now = max(self._now, clock.when)
        self._ring(clock)
        return True

    def _turn(self, first: "tuple[InlineRun, InlineNode, TaskRow] | InlineRun") -> None:
        run = first if isinstance(first, InlineRun) else first[0]
        if run.status is not WorkflowStatus.RUNNING:
            return  # withdrawn: the run is paused, or was stopped
        if isinstance(first, InlineRun):
            self._proceed(run, run.first_nodes())
            return
        _, node, task = first
        if node.status is not NodeStatus.ENQUEUED:
            return
        error = self._run_task(task)
        self.first_error = self.first_error or error
        is_ok = task.sent.status is TaskStatus.COMPLETED
        if is_ok and task.result is not None and task.result.startswith(CONTINUES):
            self._continue(run, node, task.result)
            return
        if is_ok:
            node.end(NodeStatus.COMPLETED, result=task.result)
        else:
            node.end(NodeStatus.FAILED, error=task.result)
        self._ended(run, [node])

    def _ring(self, clock: Clock) -> None:
        node = clock.node
        if node is None:
            for run in stop_overdue(clock.run, self._all):
                if not run.left and not run.status.is_terminal:
                    self._finish(run)
            return
        if clock.is_sleep:
            node.end(NodeStatus.COMPLETED, result='{"ok":null}')
        else:
            node.end(NodeStatus.FAILED, error=TIMED_OUT)
        self._ended(clock.run, [node])

    def _fill_in(self) -> None:
        for run in reversed(self._all):  # a run with a paused run inside is paused when nothing else of it moves
            if run.status is WorkflowStatus.RUNNING and _is_held_inside(run):
                run.status = WorkflowStatus.PAUSED
        row, top = self.row, self._top
        row.result, row.error = top.result, top.error
        row.name, row.definition_key = top.data["name"], top.data["definition_key"]
        row.node_texts = {
            node.node_id: node.result or node.error or absent(node.node_id, node.status) for node in top.nodes
        }
        row.started.status = top.status
        row.started.nodes = {node.node_id: node.status for node in top.nodes}
        row.started.error = decode_untyped_result(self._envelopes.unwrap_result(top.error)).err if top.error else None

    def _add(self, run: InlineRun) -> None:
        """Let a run begin, in a turn of its own: the run around it is in the middle of a step."""
        self._all.append(run)
        self.by_id[run.id] = run
        self._queue.append(run)

    # -- nodes that have ended -------------------------------------------------------------------

    def _ended(self, run: InlineRun, nodes: Sequence[InlineNode]) -> None:
        ready = self._settle(run, nodes)
        if run.status is WorkflowStatus.RUNNING and _pauses(run):
            self._pause(run)
        if run.status is WorkflowStatus.RUNNING:
            self._proceed(run, ready)
        else:
            _hold(ready)

    def _settle(self, run: InlineRun, ended: Sequence[InlineNode]) -> list[InlineNode]:
        """Count down the dependents of ended nodes and skip those that can no longer run, repeatedly. Returns the nodes
        that can run now."""
        ready: dict[InlineNode, None] = {}
        while ended:
            counted: dict[InlineNode, None] = {}
            for node in ended:
                decode_condition(node, self._envelopes)
                run.left -= 1
                run.ended_count += 1
                node.seq = run.ended_count
                run.has_failed |= node.status is NodeStatus.FAILED
                for dependent in run.at(node.data["dependents"]):
                    if dependent.status is NodeStatus.PENDING:
                        dependent.left -= 1
                        dependent.ok += node.status is NodeStatus.COMPLETED
                        dependent.void += node.is_not_taken
                        counted[dependent] = None
                for decided in run.at(node.data.get("decides", ())):
                    if decided.status is NodeStatus.PENDING:
                        counted[decided] = None
            skipped: list[InlineNode] = []
            for node in counted:
                match readiness(join_of(run, node)):
                    case Readiness.RUN:
                        ready[node] = None
                    case Readiness.SKIP:
                        node.skip(*UPSTREAM)
                        skipped.append(node)
                    case Readiness.NOT_TAKEN:
                        node.skip(*BRANCH)
                        skipped.append(node)
                    case Readiness.FAIL:
                        node.status, node.error = NodeStatus.FAILED, encode_error(no_condition())
                        skipped.append(node)
                    case Readiness.WAIT:
                        pass
            ended = skipped
        return list(ready)

    def _consume(self, run: InlineRun) -> list[InlineNode]:
        """Give the signals of the run to nodes that wait for them: the oldest to the first node, one to each."""
        ended: list[InlineNode] = []
        for node in run.waiting("signal"):
            if values := run.signals.get(node.data["signal_name"]):
                node.end(NodeStatus.COMPLETED, result=f'{{"ok":{values.popleft()}}}')
                ended.append(node)
        return ended

    # -- nodes that are ready --------------------------------------------------------------------

    def _proceed(self, run: InlineRun, ready: Sequence[InlineNode]) -> None:
        while ready:
            # nodes that cannot start end here, which may make others ready or skip them
            ended = [node for node in ready if node.kind not in WAITS and self._start(run, node)]
            for node in ready:
                if node.kind in WAITS:
                    self._begin_to_wait(run, node)
            ended += self._consume(run)
            ready = self._settle(run, ended)
            if _pauses(run):
                self._pause(run)
                _hold(ready)
                return
        if not run.left:
            self._finish(run)

    def _begin_to_wait(self, run: InlineRun, node: InlineNode) -> None:
        node.status, node.wake_at = NodeStatus.WAITING, wake_at(node, self._now)
        if node.kind == "sleep" and node.wake_at is not None:
            self.row.started.sleeps[f"{run.path}{node.node_id}"] = max(node.wake_at - self._now, timedelta(0))

    def _start(self, run: InlineRun, node: InlineNode) -> bool:
        """Enqueue or launch a ready node. True: it has ended instead."""
        problem = gap_of(run, node)
        if problem is None:
            problem = self._enqueue(run, node) if node.kind == "task" else self._launch(run, node)
        if problem is None:
            return False
        if isinstance(problem, str):
            node.skip(*(UPSTREAM if problem == "skipped" else BRANCH))
        else:
            node.end(NodeStatus.FAILED, error=encode_error(problem))
        return True

    def _enqueue(self, run: InlineRun, node: InlineNode) -> TaskError | None:
        found = task_of(self._app, run, node)
        if isinstance(found, TaskError):
            return found
        task, call = found
        self._store.add(task, call)
        node.status, node.task = NodeStatus.ENQUEUED, task
        self._queue.append((run, node, task))
        return None

    def _launch(self, run: InlineRun, node: InlineNode) -> TaskError | None:
        inner: Any = node.data["kwargs"]
        graph: dict[str, Any] = json.loads(inner) if isinstance(inner, str) else inner
        is_map = node.kind == "map"
        if is_map:
            try:
                items, pattern = items_of(run, node, self._envelopes), graph["map"]
            except PayloadError as error:
                return unreadable(f"the list to map over: {error}")
            if items is None:
                return not_a_list()
            if len(items) > pattern["max_width"]:
                return too_wide(len(items), pattern["max_width"])
            graph = map_graph(node.data["sub_name"], pattern, items)
        self._run_inside(run, node, graph, is_map=is_map)
        return None

    def _run_inside(self, run: InlineRun, node: InlineNode, graph: Mapping[str, Any], *, is_map: bool = False) -> None:
        group = node.data.get("group_key") or run.group
        node.child = InlineRun(new_id(), graph, run.metadata, group, run.priority, (run, node), is_map=is_map)
        node.status = NodeStatus.RUNNING
        self._add(node.child)

    def _continue(self, run: InlineRun, node: InlineNode, text: str) -> None:
        """The task returned Continue: a workflow goes on in the node's place, or in that of the run when the node is
        its output and nothing else is open."""
        if (refusal := refusal_to_continue(run.ends_as, len(run.past), run.depth)) is not None:
            node.end(NodeStatus.FAILED, error=refusal)
            self._ended(run, [node])
            return
        graph: dict[str, Any] = json.loads(text)["continue"]
        is_output = run.left == 1 and node.index == run.data["output"]
        if is_output and run.data["success_policy"] is None and not run.first_failure():
            node.end(NodeStatus.COMPLETED, result=text)
            node.seq = run.ended_count + 1
            run.go_on(graph)
            self._queue.append(run)
        else:
            self._run_inside(run, node, graph)

    # -- the run ---------------------------------------------------------------------------------

    def _pause(self, run: InlineRun) -> None:
        """Pause the run because a node failed, and everything inside it along with it."""
        first = run.first_failure()
        message = f"{told_first(first, self._envelopes)}; on_error is pause"
        failed = {"failed": [row["node_id"] for row in first]}
        run.error = stored_form(TaskError(OutcomeCode.WORKFLOW_PAUSED, message, failed), self._envelopes)
        for one in self._all:
            if one.is_inside(run) and one.status is WorkflowStatus.RUNNING:
                one.status = WorkflowStatus.PAUSED

    def _finish(self, run: InlineRun) -> None:
        if run.ends_as is not None:
            undone = [node for node in run.nodes if node.is_undo]
            if not undone and self._undo(run, run.ends_as, run.error):
                return
            failed = next((node for node in undone if node.status is NodeStatus.FAILED), None)
            facts = {"failed": failed and failed.node_id, "error": failed and failed.error}
            self._end(run, run.ends_as, with_failed_compensation(run.error, facts, self._envelopes))
            return
        status, error = outcome_of(run, self._envelopes)
        if status is not WorkflowStatus.FAILED or not self._undo(run, status, error):
            self._end(run, status, error)

    def _undo(self, run: InlineRun, ends_as: WorkflowStatus, error: str | None) -> bool:
        """Begin to undo what the run did. False: there is nothing to undo."""
        if nodes := undo_nodes(run):
            run.ends_as, run.error = ends_as, error
            run.add(nodes)
            self._queue.append(run)
        return bool(nodes)

    def _end(self, run: InlineRun, status: WorkflowStatus, error: str | None) -> None:
        run.status, run.error, run.ends_as = status, error, None
        if status is WorkflowStatus.COMPLETED:
            run.result = output_of(run)
            if run.result is not None and len(run.result.encode()) > self._max_bytes:
                run.status, run.result = WorkflowStatus.FAILED, None
                run.error = encode_error(large_output(self._max_bytes))
        if run.around is not None:
            parent, node = run.around
            if node.status is not NodeStatus.RUNNING:
                return  # the run around it was stopped
            if run.status is WorkflowStatus.COMPLETED:
                node.end(NodeStatus.COMPLETED, result=run.result)
            else:
                node.end(NodeStatus.FAILED, error=inside(run.error, self._envelopes))
            self._ended(parent, [node])


def _pauses(run: InlineRun) -> bool:
    return run.has_failed and run.ends_as is None and run.data["on_error"] == "pause"


def _is_held_inside(run: InlineRun) -> bool:
    """Whether a workflow inside is paused, and no other node is under way."""
    live = [node for node in run.nodes if node.status in (NodeStatus.READY, NodeStatus.ENQUEUED, NodeStatus.WAITING)]
    inside_it = [node.child for node in run.nodes if node.status is NodeStatus.RUNNING and node.child is not None]
    return not live and bool(inside_it) and all(child.status is WorkflowStatus.PAUSED for child in inside_it)


def _hold(ready: Sequence[InlineNode]) -> None:
    """The run is paused: these would be enqueued when it is resumed."""
    for node in ready:
        node.status = NodeStatus.READY
