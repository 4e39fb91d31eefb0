"""Reads live runs in pages and compares their nodes with the registered tasks."""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from horsies.envelopes import PLAIN_ENVELOPES, Envelopes
from horsies.errors import BrokerError
from horsies.operate.session import NEEDS_OPERATOR, OperatorSession, is_denied
from horsies.operate.workflow_check.compare import compare
from horsies.operate.workflow_check.report import Findings, Place, WorkflowCheck
from horsies.operate.workflow_check.stored import StoredNode

if TYPE_CHECKING:
    from horsies.registry import Registry

Row = Mapping[str, Any]

MAX_RUNS: Final = 10_000
"""How many live runs a check looks at, unless it is told otherwise."""
_RUNS: Final = 100
"""Runs per page, with the runs inside them."""
_NODES: Final = 500
"""Nodes per page: each may have megabytes of arguments."""
_ITEM: Final = re.compile(r"item-(\d+)")


class ArgumentsHidden(BrokerError):
    """The role may not read the arguments of runs."""


@dataclass(frozen=True, slots=True)
class _Run:
    """A live run, or a live run inside one."""

    id: str
    root: Row
    around: "_Run | None"
    node_id: str
    """The node that it is in; empty for the outermost run."""
    kind: str
    is_unchanged: bool

    @property
    def chain(self) -> "Iterator[_Run]":
        """The run, the one around it, and so on."""
        run: _Run | None = self
        while run is not None:
            yield run
            run = run.around

    def place(self, path: Sequence[str]) -> Place:
        """A node of this run by the path from the outermost one; the items of a map are numbered."""
        parts = [*path]
        for run in self.chain:
            if run.kind == "map":
                parts[0] = _ITEM.sub(r"item[\1]", parts[0])
            if run.node_id:
                parts.insert(0, run.node_id)
        return Place(self.root["id"], self.root["name"], self.root["release"], "/".join(parts))


async def check_runs(
    session: OperatorSession,
    tasks: "Registry",
    fingerprints: Mapping[str, Collection[str]],
    limit: int = MAX_RUNS,
    envelopes: Envelopes = PLAIN_ENVELOPES,
) -> WorkflowCheck:
    """Check the oldest `limit` live runs. `fingerprints`: those of the known workflows, by name. `envelopes`: those of
    the app."""
    roots = await session.read(lambda fetch: fetch("runs_to_check", limit + 1))
    findings = Findings()
    unchanged = nodes = 0
    kept = roots[:limit]
    for start in range(0, len(kept), _RUNS):
        runs = await _page(session, kept[start : start + _RUNS], tasks, fingerprints)
        unchanged += sum(run.is_unchanged and run.around is None for run in runs.values())
        nodes += await _compare(session, runs, tasks, findings, envelopes)
    return WorkflowCheck(findings.problems(), len(kept), unchanged, nodes, len(roots) <= limit)


async def _page(
    session: OperatorSession, roots: Sequence[Row], tasks: "Registry", fingerprints: Mapping[str, Collection[str]]
) -> dict[str, _Run]:
    """These runs and the live runs inside them, by id."""
    runs: dict[str, _Run] = {}
    for row in roots:
        same = row["continues"] == 0 and row["fingerprint"] in fingerprints.get(row["name"], ())
        runs[row["id"]] = _Run(row["id"], row, None, "", "", same)
    for row in await session.read(lambda fetch: fetch("runs_inside", list(runs))):
        around = runs.get(row["parent_workflow_id"])
        if around is None:  # rows that name each other as parents
            continue
        # the graph of a workflow or a map comes from the run around it, unless a task has continued it with another
        same = around.is_unchanged and row["continues"] == 0 and row["kind"] in ("workflow", "map")
        runs[row["id"]] = _Run(row["id"], around.root, around, row["node_id"] or "?", row["kind"] or "", same)
    same_ids = [run.id for run in runs.values() if run.is_unchanged]
    if not same_ids:
        return runs
    lacking = {row["workflow_id"] for row in await _read(session, "names_to_check", same_ids) if _lacks(row, tasks)}
    return {
        run.id: _Run(run.id, run.root, run.around, run.node_id, run.kind, is_unchanged=False)
        if run.id in lacking
        else run
        for run in runs.values()
    }


def _lacks(row: Row, tasks: "Registry") -> bool:
    names = [row["task_name"] if row["is_task"] else None, row["compensate"]]
    return any(name is not None and tasks.get(name) is None for name in names)


async def _compare(
    session: OperatorSession, runs: Mapping[str, _Run], tasks: "Registry", findings: Findings, envelopes: Envelopes
) -> int:
    """Compare the nodes of the runs that are not unchanged; returns how many."""
    ids = sorted(run.id for run in runs.values() if not run.is_unchanged)
    after: tuple[str, int] = ("", -1)
    count = 0
    while ids:
        rows = await _read(session, "nodes_to_check", ids, *after, _NODES)
        nodes = [(runs[row["workflow_id"]], StoredNode.from_row(row)) for row in rows]
        sources = await _sources(session, nodes)
        for run, node in nodes:
            levels = [sources.get(one.id, {}) for one in run.chain]
            for misfit in compare(node, levels, tasks, envelopes=envelopes):
                findings.add(misfit, run.place(misfit.path))
        count += len(rows)
        if len(rows) < _NODES:
            break
        after = (rows[-1]["workflow_id"], rows[-1]["task_index"])
    return count


async def _sources(
    session: OperatorSession, nodes: Sequence[tuple[_Run, StoredNode]]
) -> dict[str, dict[int, StoredNode]]:
    """The nodes whose results these take, by run and index. A workflow names those of its inner nodes as its inputs."""
    wanted: set[tuple[str, int]] = set()
    for run, node in nodes:
        if not node.is_open or node.is_expanded:
            continue
        chain = [one.id for one in run.chain]
        for source in node.sources.values():
            at, up = source.get("at"), source.get("up", 0)
            if isinstance(at, int) and isinstance(up, int) and up < len(chain):
                wanted.add((chain[up], at))
    found: dict[str, dict[int, StoredNode]] = {}
    if wanted:
        ids, indexes = zip(*sorted(wanted), strict=True)
        for row in await _read(session, "sources_to_check", list(ids), list(indexes)):
            found.setdefault(row["workflow_id"], {})[row["task_index"]] = StoredNode.from_row(row)
    return found


async def _read(session: OperatorSession, name: str, *values: Any) -> Sequence[Row]:
    try:
        return await session.read(lambda fetch: fetch(name, *values))
    except BrokerError as error:
        if not is_denied(error):
            raise
        raise ArgumentsHidden(
            f"the check reads the arguments and results of runs, which are {NEEDS_OPERATOR}"
        ) from error
