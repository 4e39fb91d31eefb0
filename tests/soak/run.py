"""One run: server, fleet and producers start; faults fall; everything drains; the judge speaks."""

import json
import os
import shutil
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from tests.soak import app as soak_app, logs, recovery, report, settings
from tests.soak.clock_steps import unexplained
from tests.soak.fleet import Fleet
from tests.soak.ledger import FOLDER_VARIABLE, read_lines, read_sends
from tests.soak.machine import FAKETIME, namespace, older_release, orphans, small_disk
from tests.soak.nemesis import Nemesis
from tests.soak.plan import Plan, make_plan
from tests.soak.rules import Finding, judge
from tests.soak.server import Server, soak_server
from tests.soak.watch import Snapshots, Stalls
from tests.support import places
from tests.support.waiting import eventually

LEFT = """SELECT (SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NULL AND NOT (task_name = 'tick'))
               + (SELECT count(*) FROM horsies_workflows WHERE status NOT IN ('COMPLETED', 'FAILED', 'CANCELLED'))"""
SETTLED_S = settings.GRACE_S + 2.0


def soak(seed: int, minutes: float, folder: Path, *, tell: Callable[[str], None]) -> report.Verdict:
    """Run it. `folder` gets plan, fault log, ledgers and logs, and after a failure everything else."""
    mark = uuid.uuid4().hex
    with ExitStack() as stack:
        network = stack.enter_context(namespace())
        place = places.directory("horsies-soak-")
        stack.callback(shutil.rmtree, place, ignore_errors=True)
        disk = stack.enter_context(small_disk(place / "disk"))
        older = older_release(folder / "older")
        abilities = [
            name
            for name, has in (
                ("namespace", network), ("small_disk", disk), ("faketime", FAKETIME.exists()), ("older_release", older),
            )
            if has
        ]  # fmt: skip
        plan = make_plan(seed, minutes, abilities)
        (folder / "plan.json").write_text(json.dumps(plan.as_data(), indent=1))
        for line in plan.lines():
            tell(line)
        server = stack.enter_context(soak_server(place / "disk"))
        fleet = Fleet(stack, folder, server.url_with_secret, mark, seed, plan.produce_s, network)
        os.environ[FOLDER_VARIABLE] = str(folder / "ledger")
        stack.callback(os.environ.pop, FOLDER_VARIABLE, None)
        return _run(plan, fleet, server, folder, place, older or [], mark, tell)


def _run(
    plan: Plan, fleet: Fleet, server: Server, folder: Path, place: Path, older: list[Path], mark: str,
    tell: Callable[[str], None],
) -> report.Verdict:  # fmt: skip
    verdict = report.Verdict(plan)
    nemesis = Nemesis(plan, fleet, server, folder, older)
    snapshots, stalls = Snapshots(server.db), Stalls(nemesis.struck.append)
    with soak_app.build(server.db.url) as app:
        soak_app.register(app)
        app.schedules.put_many(soak_app.schedule(*each) for each in settings.STORED_SCHEDULES.items())
    fleet.start()
    tell("the fleet is up")
    for producer in fleet.producers:
        producer.start()
    for thread in (nemesis, snapshots, stalls):
        thread.start()
    for producer in fleet.producers:
        producer.process.wait(plan.produce_s + 120)
    nemesis.join(180)
    tell("producers and faults have ended; draining")
    fleet.restart_ended()
    drained = time.time()
    is_drained = _drain(server, plan.drain_s)
    verdict.drain_s = time.time() - drained
    time.sleep(SETTLED_S)
    snapshots.stop()
    stalls.stop()
    fleet.stop()
    _drain_ticks(server)
    verdict.struck = sorted(nemesis.struck, key=lambda fault: fault.began)
    _judge(verdict, fleet, server, folder, snapshots, mark, is_drained=is_drained)
    if verdict.findings or verdict.slow:
        report.keep(folder, place, verdict, server.db, read_lines(folder / "ledger"), read_sends(folder / "ledger"))
    return verdict


def _drain(server: Server, seconds: float) -> bool:
    """All that was sent has ended; schedules go on, and each of their tasks ends soon after its slot."""
    try:
        eventually(lambda: server.db.value(LEFT) == 0, timeout=seconds, interval=0.3)
    except AssertionError:
        return False
    return True


def _drain_ticks(server: Server) -> None:
    """Tasks of slots that fell into the stop of the fleet were handed back: that is what a stop promises."""
    server.db.execute("DELETE FROM horsies_tasks WHERE task_name = 'tick' AND status = 'PENDING'")


def _judge(
    verdict: report.Verdict, fleet: Fleet, server: Server, folder: Path, snapshots: Snapshots, mark: str, *,
    is_drained: bool,
) -> None:  # fmt: skip
    lines, sends = read_lines(folder / "ledger"), read_sends(folder / "ledger")
    found, overlaps = judge(server.db, sends, lines, verdict.struck)
    found += snapshots.findings.values()
    if not is_drained:
        found.append(Finding("D0", "drain", f"not drained within {verdict.plan.drain_s:.0f} s"))
    found += [
        Finding("X1", str(entry["k"]), json.dumps(entry)) for entry in sends if entry["phase"] == "unexpected"
    ]  # fmt: skip
    found += logs.of_server(server.log, verdict.struck)
    found += logs.of_processes({slot.name: slot.logs() for slot in fleet.all})
    found += _processes(verdict, fleet, mark)
    tasks = recovery.steady_tasks(sends, lines)
    crashes: dict[str, list[float]] = defaultdict(list)
    for worker_id, at in server.db.execute(
        "SELECT worker_id, extract(epoch FROM created_at)::float8 FROM horsies_task_attempts"
        " WHERE outcome = 'WORKER_FAILURE'"
    ):
        crashes[worker_id].append(at)
    verdict.recovery = recovery.longest(verdict.struck, tasks, crashes)
    found += [Finding("B1", "recovery", text) for text in verdict.recovery["late"]]
    began = min((task.sent for task in tasks), default=0.0)
    verdict.baseline = recovery.rate_in(tasks, began + 2.0, began + verdict.plan.baseline_s)
    verdict.rates = recovery.rates_after(tasks, verdict.struck)
    verdict.counts = report.count(server.db, sends, lines, overlaps)
    verdict.counts["snapshots judged"] = f"{snapshots.count} (no answer to {snapshots.unanswered})"
    verdict.findings = unexplained(server.db, found, verdict.struck)


def _processes(verdict: report.Verdict, fleet: Fleet, mark: str) -> list[Finding]:
    found = [
        Finding("X6", str(pid), f"an orphan: {line}") for pid, line in orphans(f"{settings.MARK}={mark}")
    ]  # fmt: skip
    for fault in verdict.struck:
        if (
            fault.kind == "kill_parent"
            and "children_gone_s" in fault.detail
            and fault.detail["children_gone_s"] is None
        ):
            found.append(Finding("X6", fault.target, "children outlived their parent"))
        if fault.detail.get("code", 0) != 0:
            found.append(Finding("X7", fault.target, f"{fault.kind}: exit code {fault.detail['code']}"))
        if fault.error and "struck" not in fault.error:
            found.append(Finding("X8", fault.target, f"{fault.kind}: {fault.error}"))
    for slot in (*fleet.workers, *fleet.schedulers):
        found += [Finding("X7", slot.name, f"exit code {code} at the end") for code in slot.codes if code != 0]
    for slot in fleet.producers:
        if slot.process.process.returncode != 0:
            found.append(Finding("X7", slot.name, f"exit code {slot.process.process.returncode}"))
    return found
