"""Compares the rows of runs with what the model of `workflow_plans` says, and checks what must hold of signals, clocks
and compensations in every order of events."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from horsies.envelopes import PLAIN_ENVELOPES, Envelopes
from tests.support.postgres import Database
from tests.support.workflow_plans import GONE, MAPS, Expected, Graph, Plan, expect, item_ends

Row = Mapping[str, Any]
EARLY = """
CREATE TABLE test_early (what text, node_id text);
CREATE FUNCTION test_note_early() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO test_early
    SELECT CASE WHEN OLD.wake_at IS NULL OR OLD.wake_at > clock_timestamp() THEN 'before its time'
                WHEN w.status = 'PAUSED' THEN 'timed out during a pause'
                ELSE 'timed out beside a signal' END, NEW.id
      FROM horsies_workflows w
     WHERE w.id = NEW.workflow_id AND (
           OLD.wake_at IS NULL OR OLD.wake_at > clock_timestamp()
           OR (NEW.kind = 'signal' AND (w.status = 'PAUSED' OR EXISTS (
               SELECT FROM horsies_workflow_signals s
                WHERE s.workflow_id = w.id AND s.name = NEW.signal_name AND s.consumed_at IS NULL))));
    RETURN NULL;
END $$;
CREATE TRIGGER test_early AFTER UPDATE ON horsies_workflow_tasks FOR EACH ROW
WHEN (OLD.status = 'WAITING' AND (NEW.kind = 'sleep' AND NEW.status = 'COMPLETED'
                                  OR NEW.kind = 'signal' AND NEW.status = 'FAILED'))
EXECUTE FUNCTION test_note_early();
"""
"""Notes waits that a clock ends too early: it sees the clock before the step clears it."""

RULES = {
    "a wait ended too early": "SELECT what || ': ' || node_id FROM test_early",
    "a signal was taken twice or by a node that did not wait for it": """
        SELECT s.id FROM horsies_workflow_signals s LEFT JOIN horsies_workflow_tasks n ON n.id = s.consumed_by
         WHERE s.consumed_at IS NOT NULL AND (n.id IS NULL OR n.signal_name IS DISTINCT FROM s.name
               OR n.status <> 'COMPLETED' OR n.result <> '{"ok":' || s.value || '}'
               -- the value of a node that decides is stored decoded
               AND NOT (n.decides <> '{}' AND s.value LIKE '%"horsies.encoded"%'
                        AND n.result IN ('{"ok":true}', '{"ok":false}')))
        UNION ALL SELECT consumed_by FROM horsies_workflow_signals WHERE consumed_by IS NOT NULL
         GROUP BY 1 HAVING count(*) > 1""",
    "a node waited for a signal, completed, and took none": """
        SELECT n.id FROM horsies_workflow_tasks n WHERE n.kind = 'signal' AND n.status = 'COMPLETED'
           AND NOT EXISTS (SELECT FROM horsies_workflow_signals s WHERE s.consumed_by = n.id)""",
    "a node waits in a run that has ended": """
        SELECT n.id FROM horsies_workflow_tasks n JOIN horsies_workflows w ON w.id = n.workflow_id
         WHERE w.completed_at IS NOT NULL AND n.status = 'WAITING'""",
    "a run has ended and has a clock": """
        SELECT id FROM horsies_workflows WHERE completed_at IS NOT NULL AND (wake_at IS NOT NULL OR ends_as IS NOT NULL)
        UNION ALL SELECT n.id FROM horsies_workflow_tasks n
         WHERE n.status IN ('COMPLETED', 'FAILED', 'SKIPPED') AND n.wake_at IS NOT NULL""",
    "two nodes have the same place in the order of ends": """
        SELECT workflow_id || ' ' || ended_seq FROM horsies_workflow_tasks
         WHERE ended_seq IS NOT NULL AND compensates IS NULL
           AND (compensate IS NOT NULL OR sub_workflow_id IS NOT NULL)  -- the order is of no use to others
         GROUP BY workflow_id, ended_seq HAVING count(*) > 1""",
    "a node is undone twice": """
        SELECT compensates FROM horsies_workflow_tasks WHERE compensates IS NOT NULL GROUP BY 1 HAVING count(*) > 1""",
    "a compensation started before the one before it had ended": """
        SELECT b.id FROM horsies_workflow_tasks b JOIN horsies_workflow_tasks a ON a.workflow_id = b.workflow_id
           AND a.task_index = ANY (b.dependencies) JOIN horsies_tasks t ON t.id = b.task_id
         WHERE b.compensates IS NOT NULL AND (a.status <> 'COMPLETED' OR t.enqueued_at < a.completed_at)""",
    "what is undone has not run once more than it was undone": """
        WITH ran AS (
            SELECT n.id, count(*) FILTER (WHERE t.task_name NOT LIKE 'undo%%'
                                            AND t.result NOT LIKE '{"continue":%%') AS done,
                   count(*) FILTER (WHERE t.task_name LIKE 'undo%%') AS undone
              FROM horsies_workflow_tasks n
              JOIN horsies_tasks t ON t.status = 'COMPLETED' AND (t.id = n.task_id OR t.former_node_id = n.id
                   OR t.id = (SELECT u.task_id FROM horsies_workflow_tasks u WHERE u.compensates = n.id))
             WHERE n.kind = 'task' AND n.sub_workflow_id IS NULL AND n.compensate IS NOT NULL AND n.status = 'COMPLETED'
               AND n.result NOT LIKE '{"continue":%%' GROUP BY n.id)
        SELECT ran.id || ' ' || done || ' ' || undone FROM ran
         WHERE done - undone <> CASE WHEN EXISTS (SELECT FROM horsies_workflow_tasks u WHERE u.compensates = ran.id
                                                     AND u.status = 'COMPLETED') THEN 0 ELSE 1 END""",
    "a workflow that was undone as a whole has not run again": """
        SELECT n.id FROM horsies_workflow_tasks n JOIN horsies_workflows c ON c.id = n.sub_workflow_id
          JOIN horsies_tasks t ON t.former_node_id = n.id AND t.status = 'COMPLETED' AND t.task_name LIKE 'undo%%'
         WHERE n.status = 'COMPLETED' AND n.compensate IS NOT NULL AND c.started_at < t.terminal_at""",
    "a failed run has no error": "SELECT id FROM horsies_workflows WHERE status = 'FAILED' AND error IS NULL",
}  # fmt: skip


def broken_rules(db: Database) -> list[str]:
    return [f"{rule}: {row[0]}" for rule, sql in RULES.items() for row in db.execute(sql.replace("%%", "%"))]


@dataclass
class Undone:
    """A node that a failed run has to undo, with its place in the order: smaller ones first."""

    node: Row
    key: tuple[int, ...]


class Rows:
    """All runs and nodes of a database."""

    def __init__(self, db: Database, envelopes: Envelopes = PLAIN_ENVELOPES) -> None:
        names = "id, status, result, error, continued_from, continues, ends_as"
        self.runs = {row[0]: dict(zip(names.split(", "), row, strict=True))
                     for row in db.execute(f"SELECT {names} FROM horsies_workflows")}  # fmt: skip
        for run in self.runs.values():
            run |= {name: run[name] and envelopes.unwrap(run[name]) for name in ("result", "error")}
        names = (
            "id, workflow_id, task_index, node_id, kind, status, skip_reason, result, error, sub_workflow_id,"
            " ended_seq, compensate, compensates, dependencies"
        )
        self.nodes: dict[str, list[Row]] = {}
        self.undo: dict[str, list[Row]] = {}
        for row in db.execute(f"SELECT {names} FROM horsies_workflow_tasks ORDER BY workflow_id, task_index"):
            made: dict[str, Any] = dict(zip(names.split(", "), row, strict=True))
            made |= {name: made[name] and envelopes.unwrap(made[name]) for name in ("result", "error")}
            kept = self.nodes if made["compensates"] is None else self.undo
            kept.setdefault(made["workflow_id"], []).append(made)
        past = {run["continued_from"] for run in self.runs.values()} - {None}
        undone = {row["compensates"] for rows in self.undo.values() for row in rows}
        self.undone_past = {row["id"] for run_id in past for row in self.nodes.get(run_id, []) if row["id"] in undone}
        """What runs did before they continued and have undone, perhaps before a retry."""

    def generations(self, run_id: str) -> list[str]:
        """What a run was before it continued, the first first, and what it is now."""
        found = [run_id]
        while (before := self.runs[found[0]]["continued_from"]) is not None:
            found.insert(0, before)
        return found

    # -- the model -------------------------------------------------------------------------------

    def compare(self, run_id: str, graph: Graph, item: int | None = None) -> Iterator[str]:
        """Where a run, and what is inside it, differs from what the model says of its graph."""
        generations = self.generations(run_id)
        for at, generation in enumerate(generations):
            wanted = expect(graph, item)
            is_last = at == len(generations) - 1
            nodes = self.nodes.get(generation, [])
            if len(nodes) != len(graph.nodes):
                yield f"{generation} has {len(nodes)} nodes, not {len(graph.nodes)}"
                return
            for index, (node, plan) in enumerate(zip(nodes, graph.nodes, strict=True)):
                if is_last or index != graph.output:
                    yield from self._node(node, plan, wanted, index)
                elif node["status"] != "COMPLETED" or not node["result"].startswith('{"continue":'):
                    yield f"{generation} n{index} is {node['status']}, and did not continue"
            if is_last:
                yield from self._run(run_id, wanted, graph)
            else:
                following = graph.nodes[graph.output].inside
                assert following is not None
                graph, item = following, None
        yield from self._compensations(run_id)

    def _node(self, node: Row, plan: Plan, wanted: Expected, at: int) -> Iterator[str]:
        named = f"{node['workflow_id']} n{at} ({plan.kind})"
        found = (node["status"], node["skip_reason"])
        if found != (wanted.states[at], wanted.reasons[at]):
            yield f"{named} is {found}, not {wanted.states[at], wanted.reasons[at]}: {node['error'] or node['result']}"
            return
        value = value_of(node["result"])
        if found[0] == "COMPLETED" and value != wanted.values[at]:
            yield f"{named} returned {value}, not {wanted.values[at]}"
        if (node["compensate"] is not None) != (plan.undo and plan.kind not in MAPS):
            yield f"{named} has the compensation {node['compensate']}"
        if node["sub_workflow_id"] is None or found[0] == "SKIPPED":
            return
        if plan.kind not in MAPS:
            assert plan.inside is not None
            yield from self.compare(node["sub_workflow_id"], plan.inside)
            return
        items = wanted.values[plan.takes["*"][0]]
        for one, part, (state, end) in zip(
            items, self.nodes.get(node["sub_workflow_id"], []), item_ends(plan, items, wanted.values), strict=True
        ):
            if part["status"] != state or (state == "COMPLETED" and value_of(part["result"]) != end):
                yield f"{named}[{one}] is {part['status']} {part['result']}, not {state} {end}"
            elif plan.inside is not None:
                yield from self.compare(part["sub_workflow_id"], plan.inside, one)
        yield from self._compensations(node["sub_workflow_id"])

    def _run(self, run_id: str, wanted: Expected, graph: Graph) -> Iterator[str]:
        run = self.runs[run_id]
        if run["status"] != wanted.status:
            yield f"the run {run_id} is {run['status']}, not {wanted.status}: {run['error']}"
        elif run["status"] == "COMPLETED" and value_of(run["result"]) != wanted.output:
            yield f"the run {run_id} returned {run['result']}, not {wanted.output}"
        elif (
            run["status"] == "COMPLETED"
            and wanted.reasons[graph.output] == "not_taken"
            and ("RESULT_NOT_AVAILABLE" not in run["result"])
        ):
            yield f"the run {run_id} returned {run['result']}, and its output was not taken"

    # -- compensations ---------------------------------------------------------------------------

    def undoable(self, run_id: str) -> Iterator[Undone]:
        """What a run did that has a compensation: its own nodes, those of completed runs inside, and of its past."""
        for back, generation in enumerate(reversed(self.generations(run_id))):
            for node in self.nodes.get(generation, []):
                key = (back, -(node["ended_seq"] or 0))
                if node["status"] != "COMPLETED" or (node["result"] or "").startswith('{"continue":'):
                    continue
                if node["compensate"] is not None:
                    yield Undone(node, (*key, node["task_index"]))
                elif node["sub_workflow_id"] is not None:
                    for one in self.undoable(node["sub_workflow_id"]):
                        yield Undone(one.node, (*key, *one.key))

    def _compensations(self, run_id: str) -> Iterator[str]:
        """A failed run has undone what it did, each after the one that ended before it. A completed one has undone
        nothing, but for its past: if it was stopped after it had continued, that has been undone, and stays so."""
        undo = [row for generation in self.generations(run_id) for row in self.undo.get(generation, [])]
        undoable = {one.node["id"]: one for one in self.undoable(run_id)}
        past = {one.node["id"] for one in undoable.values() if one.key[0] > 0}
        made = {row["compensates"] for row in undo}
        is_failed = self.runs[run_id]["status"] == "FAILED"
        missing = undoable.keys() - made - self.undone_past
        if is_failed and (missing or not made <= undoable.keys()):
            yield f"{run_id} has undone {made}, not {undoable.keys()}"
        elif not is_failed and not made <= past:
            yield f"{run_id} has undone {made - past}, and has not failed"
        by_index = {(row["workflow_id"], row["task_index"]): row for row in undo}
        for row in undo:
            for index in row["dependencies"]:
                before = by_index[row["workflow_id"], index]
                if {before["compensates"], row["compensates"]} <= undoable.keys() and not (
                    undoable[before["compensates"]].key < undoable[row["compensates"]].key
                ):
                    yield f"{run_id} has undone {before['node_id']} before {row['node_id']}"
                allowed = {"COMPLETED": ("COMPLETED", "FAILED"), "FAILED": ("SKIPPED",), "SKIPPED": ("SKIPPED",)}
                if row["status"] not in allowed.get(before["status"], ()):
                    yield f"{run_id} {row['node_id']} is {row['status']} after {before['status']}"


def value_of(text: str | None) -> Any:
    if text is None:
        return GONE
    found = json.loads(text).get("ok")
    if isinstance(found, list):
        return [one.get("ok") if isinstance(one, dict) else one for one in found]  # of a partial map: TaskResults
    return found
