"""Starts ready nodes: tasks are enqueued, workflows and maps become runs inside. In the step's transaction."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from horsies.codec import encode_error
from horsies.ids import new_id, new_ids
from horsies.payload_codec import PayloadError
from horsies.result import TaskError
from horsies.status import WorkflowStatus
from horsies.workflow.retrying import PAUSED_ALONG
from horsies_worker.database.split_batch import is_data_error, write_or_split
from horsies_worker.workflows.refused import (
    NOT_AVAILABLE,
    NOT_READY,
    STOPPED,
    cannot,
    no_value,
    not_a_list,
    too_large,
    too_wide,
    unreadable,
)
from horsies_worker.workflows.waiting import WAITS
from horsies_worker.workflows.work import RunStatements, Work

CHUNK: Final = 1_000
"""Nodes per statement, and ready nodes per step."""
GAPS: Final = ("skipped", "not taken")
"""Why a ready node is skipped that takes a value which does not exist."""

MAX_CONTINUES: Final = 1_000
"""How often a run may go on in its own place."""
MAX_DEPTH: Final = 60
"""How deep a run may stand in others whose task continues in a run inside it."""

Outcome = str | TaskError
"""The outcome of a ready node: "enqueued", "launched", "waits", a gap, or the error that it ends with."""


@dataclass
class ReadyNode:
    index: int
    kind: str
    child_id: str | None
    """The run inside it, of a node that is retried."""


def ready_node(row: Mapping[str, Any]) -> ReadyNode:
    return ReadyNode(row["task_index"], row["kind"], row["sub_workflow_id"])


def refusal_to_continue(ends_as: object, continues: int, depth: int) -> str | None:
    """The error of a task that returns Continue, if it cannot: its run is being stopped, has continued too often, or
    stands too deep. Pure."""
    if ends_as is not None:
        return STOPPED
    if continues >= MAX_CONTINUES:
        return encode_error(cannot(f"the run has continued {MAX_CONTINUES:,} times, which is the limit"))
    if depth >= MAX_DEPTH:
        return encode_error(cannot(f"runs stand in runs {MAX_DEPTH} levels deep: continue from the output of a run"))
    return None


class Starter:
    """Starts nodes of one run, in one step. `careful`: with savepoints, because one of them cannot be started."""

    def __init__(self, run: RunStatements, max_bytes: int, *, careful: bool) -> None:
        self._fetch = run.fetch
        self._envelopes = run.envelopes
        self._connection = run.connection
        self._id = run.workflow_id
        self._max_bytes = max_bytes
        self._careful = careful
        self.following: dict[str, Work] = {}
        """The runs to step next."""

    async def start(self, ready: Sequence[ReadyNode]) -> dict[int, Outcome]:
        """Enqueue or launch these nodes; those that wait are left to the caller."""
        # a task that continued as a workflow and is retried has that workflow
        tasks = [node.index for node in ready if node.kind == "task" and node.child_id is None]
        inner = {node.index: node for node in ready if node.kind in ("workflow", "map") or node.child_id is not None}
        outcomes: dict[int, Outcome] = {}
        for at in range(0, len(tasks), CHUNK):
            outcomes |= await self._enqueue(tasks[at : at + CHUNK])
        # a retried node already has its workflow, with its values
        new = [index for index, node in inner.items() if node.child_id is None]
        for at in range(0, len(new), CHUNK):
            rows = await self._fetch("missing_values", new[at : at + CHUNK])
            outcomes |= {row["task_index"]: self._outcome(row) for row in rows}
        for index, node in inner.items():
            if index not in outcomes:
                outcomes[index] = await self._launch(node)
        return outcomes | {node.index: "waits" for node in ready if node.kind in WAITS}

    def _outcome(self, row: Mapping[str, Any]) -> Outcome:
        match row["outcome"]:
            case "no value":
                return no_value(row["missing"])
            case "too large":
                return too_large(self._max_bytes)
            case what:
                return what

    async def _enqueue(self, indexes: Sequence[int]) -> dict[int, Outcome]:
        async def write(part: Sequence[int]) -> dict[int, Outcome]:
            values = (list(part), new_ids(len(part)), NOT_READY, self._max_bytes, NOT_AVAILABLE)
            rows = await self._fetch("enqueue_nodes", *values)
            return {row["task_index"]: self._outcome(row) for row in rows}

        def refuse(index: int, error: Exception) -> dict[int, Outcome]:
            return {index: cannot(f"its arguments cannot be put together: {error}")}

        if not self._careful:
            return await write(indexes)
        parts = await write_or_split(indexes, write, refuse, transaction=self._connection)
        return {index: what for part in parts for index, what in part.items()}

    async def _launch(self, node: ReadyNode) -> Outcome:
        if node.child_id is not None and (rows := await self._fetch("reopen_child", node.index)):
            # the node was retried: its workflow continues, or has ended meanwhile
            child = rows[0]
            is_open = child["status"] == WorkflowStatus.PENDING
            following = {child["child_id"]: Work(whole=True)} if is_open else {self._id: Work(whole=True)}
            self.following |= following
            return "launched"
        # for a map, its items; for a workflow, no reason to be paused along with this run
        third = await self._items(node.index) if node.kind == "map" and self._envelopes.codec is not None else None
        if isinstance(third, TaskError):
            return third
        return await self._inserted(node, third)

    async def _inserted(self, node: ReadyNode, third: str | None) -> str | TaskError:
        child_id = new_id()
        name = f"launch_{node.kind}"
        values = (node.index, child_id, third)
        try:
            if self._careful:
                async with self._connection.transaction():  # a savepoint
                    rows = await self._fetch(name, *values)
            else:
                rows = await self._fetch(name, *values)
        except Exception as error:
            if not self._careful or not is_data_error(error):
                raise
            return cannot(f"the workflow inside it cannot be made: {error}")
        match rows[0]["outcome"] if rows else None:
            case None:
                return "launched"  # by another step
            case "too wide":
                return too_wide(rows[0]["width"], rows[0]["max_width"])
            case "no width":
                return cannot("its row has no pattern for the items, or the pattern has no max_width")
            case "not a list":
                return not_a_list() if third is not None else await self._in_envelope(node)
            case what:
                self.following[child_id] = Work(ready=True)
                return what

    async def _in_envelope(self, node: ReadyNode) -> str | TaskError:
        """A list that the database does not recognise, because one of its items looks like an envelope."""
        items = await self._items(node.index)
        if items is None:
            return not_a_list()
        return items if isinstance(items, TaskError) else await self._inserted(node, items)

    async def _items(self, index: int) -> str | TaskError | None:
        """The items of a map whose list is in an envelope; None: the database finds them."""
        rows = await self._fetch("encoded_list", index)
        try:
            items = [self._envelopes.rewrap_items(row["value"]) for row in rows]
        except PayloadError as error:
            return unreadable(f"the list to map over: {error}")
        if not items:
            return None
        return not_a_list() if items[0] is None else f"[{','.join(items[0])}]"

    async def continue_in_place(self, index: int) -> None:
        """The task of the output returned Continue, and nothing else is open: the run goes on with other nodes."""
        archive_id = new_id()
        await self._fetch("archive_run", index, archive_id)
        await self._fetch("move_to_archive", archive_id)
        await self._fetch("continue_run", archive_id)
        self.following[self._id] = Work(ready=True)

    async def continue_inside(self, indexes: Sequence[int], *, is_paused: bool) -> None:
        """The tasks of these nodes returned Continue: each goes on as a workflow in its node."""
        for index in indexes:
            child_id = new_id()
            await self._fetch("launch_continued", index, child_id, PAUSED_ALONG if is_paused else None)
            self.following[child_id] = Work(ready=True)
