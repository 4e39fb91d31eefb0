"""The verdict of a run as text, and the directory that a failed run leaves."""

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from tests.soak.ledger import Line
from tests.soak.nemesis import Struck
from tests.soak.plan import Plan
from tests.soak.recovery import Rate
from tests.soak.rules import Finding
from tests.soak.settings import BOUND_S
from tests.support.postgres import Database

LEAST_RATE = 0.95
NOTHING = Rate(0, 0, 0.0)


@dataclass
class Verdict:
    plan: Plan
    findings: list[Finding] = field(default_factory=list[Finding])
    struck: list[Struck] = field(default_factory=list[Struck])
    counts: dict[str, Any] = field(default_factory=dict[str, Any])
    baseline: Rate = NOTHING
    rates: Mapping[str, Rate] = field(default_factory=dict[str, Rate])
    recovery: Mapping[str, Any] = field(default_factory=dict[str, Any])
    drain_s: float = 0.0

    @property
    def slow(self) -> list[str]:
        """Kinds after which the fleet did less than 95 % of before."""
        before = self.baseline.share or 1.0
        return [kind for kind, rate in self.rates.items() if rate.share / before < LEAST_RATE or not rate.sent]

    def exit_code(self, *, with_rates: bool) -> int:
        """0: good. 1: something is wrong. 2: only a rate is too low."""
        if self.findings:
            return 1
        return 2 if with_rates and self.slow else 0

    def lines(self) -> list[str]:
        done = Counter(fault.kind for fault in self.struck if not fault.error)
        left_out = Counter(fault.kind for fault in self.struck if fault.error)
        text = ["", f"seed {self.plan.seed}, {self.plan.minutes:g} minutes"]
        text += [f"  {name:34} {value}" for name, value in self.counts.items()]
        text.append(f"  {'drain after the last send':34} {self.drain_s:.1f} s")
        text += [
            "",
            f"  {'fault':18}{'times':>6}{'left out':>9}{'flow s':>8}{'takeover s':>11}{'rate':>8}   (sent/ended)",
        ]
        for kind in sorted({*done, *left_out}):
            flow, takeover = (self.recovery.get(name, {}).get(kind) for name in ("flow", "takeover"))
            rate = self.rates.get(kind)
            text.append(
                f"  {kind:18}{done[kind]:6}{left_out[kind] or '':>9}{_seconds(flow):>8}{_seconds(takeover):>11}"
                + (f"{rate.share / (self.baseline.share or 1):8.0%}   {rate.sent}/{rate.ended}" if rate else "")
            )
        text += [
            f"  flow: until the first task that was sent after the fault had ended; takeover: until the last task of"
            f" the worker was recovered, bound {BOUND_S:g} s; rate: share of the steady sends that ended, against"
            f" {self.baseline.share:.0%} before the faults",
            "",
        ]
        rules = Counter(finding.rule for finding in self.findings)
        text.append(f"  violations: {sum(rules.values())} {dict(rules) if rules else ''}")
        text += [f"    {finding.rule} {finding.id}: {finding.text[:300]}" for finding in self.findings[:30]]
        if self.slow:
            text.append(f"  rate below {LEAST_RATE:.0%} after: {', '.join(self.slow)}")
        return text


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def count(db: Database, sends: Sequence[Mapping[str, Any]], lines: Sequence[Line], overlaps: int) -> dict[str, Any]:
    phases = Counter(entry["phase"] for entry in sends if not entry["kind"].startswith(("wf:", "verb", "hostile")))
    return {
        "sends": phases["ok"],
        "sends with an unknown answer": phases["unknown"],
        "sends refused as they must be": sum(entry["phase"] == "refused" for entry in sends),
        "tasks": db.value("SELECT count(*) FROM horsies_tasks"),
        "attempts": db.value("SELECT count(*) FROM horsies_task_attempts"),
        "attempts that crashed": db.value(
            "SELECT count(*) FROM horsies_task_attempts WHERE outcome = 'WORKER_FAILURE'"
        ),
        "workflows": db.value("SELECT count(*) FROM horsies_workflows WHERE depth = 0"),
        "slots of schedules": db.value("SELECT count(*) FROM horsies_tasks WHERE task_name = 'tick'"),
        "starts in the ledger": sum(line.phase == "start" for line in lines),
        "overlaps inside freezes, partitions": overlaps,
    }  # fmt: skip


def keep(
    folder: Path, place: Path, verdict: Verdict, db: Database, lines: Sequence[Line], sends: Sequence[Any]
) -> None:
    """Everything about the failure: `folder` has plan, fault log, ledgers and logs already."""
    (folder / "report.txt").write_text("\n".join([*verdict.plan.lines(), *verdict.lines()]) + "\n")
    shutil.copy(place / "server.log", folder / "server.log")
    told: list[Any] = []
    for finding in verdict.findings:
        keys = {entry["k"] for entry in sends if finding.id in (entry.get("id"), str(entry["k"]))}
        told.append(
            {
                "finding": {"rule": finding.rule, "id": finding.id, "text": finding.text},
                "rows": _rows(db, finding.id, keys),
                "sends": [entry for entry in sends if entry["k"] in keys],
                "ledger": [list(line) for line in lines if line.k in keys],
            }
        )
    (folder / "violations.json").write_text(json.dumps(told, indent=1, default=str))


def _rows(db: Database, given: str, keys: set[int]) -> list[Any]:
    found: list[Any] = []
    questions = {
        "horsies_tasks": "SELECT to_jsonb(t) FROM horsies_tasks t WHERE id = %s"
        " OR id IN (SELECT task_id FROM chaos_sent WHERE k = ANY(%s))",
        "horsies_task_attempts": "SELECT to_jsonb(t) FROM horsies_task_attempts t WHERE task_id = %s"
        " OR task_id IN (SELECT task_id FROM chaos_sent WHERE k = ANY(%s)) ORDER BY attempt",
        "horsies_workflows": "SELECT to_jsonb(t) FROM horsies_workflows t WHERE id = %s AND %s::bigint[] IS NOT NULL",
        "horsies_workflow_tasks": "SELECT to_jsonb(t) FROM horsies_workflow_tasks t WHERE %s IN (id, workflow_id)"
        " AND %s::bigint[] IS NOT NULL ORDER BY task_index",
    }
    for table, question in questions.items():
        try:
            found += [{table: row[0]} for row in db.execute(question, given, list(keys))]
        except psycopg.Error as error:
            found.append({table: str(error)})
    return found
