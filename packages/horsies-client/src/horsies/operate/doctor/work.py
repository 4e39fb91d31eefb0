"""Checks of the work: live workers, waiting tasks, stale tasks, schedules and retention. Plain functions."""

import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta

from horsies._text import plural, span
from horsies.config.recovery import RecoveryConfig
from horsies.operate.doctor.finding import Facts, Finding, Row, Severity
from horsies.operate.reading import QUEUE_BOUND
from horsies.operate.schedule_state import is_scheduler_seen
from horsies.operate.stale import StaleKind, StaleRules
from horsies.operate.views import StaleTask, retried_run
from horsies.status import TaskStatus

OK, WARN, PROBLEM = Severity.OK, Severity.WARN, Severity.PROBLEM
_DEFAULTS = RecoveryConfig()
_LATE = timedelta(minutes=1)
"""A scheduler needs this long to take over the row of another release's scheduler."""
_MANY = 10
"""The number of findings of one kind that are listed one by one."""
_RUNS = 3
"""The number of runs that one remedy names."""


def workers(facts: Facts) -> Iterator[Finding]:
    live = facts.live_workers()
    late = [worker for worker in live if worker.liveness.value == "late"]
    for worker in late:
        yield Finding(
            "workers", WARN,
            f"worker {worker.worker_id} (pid {worker.pid} on {worker.hostname}) is late: seen {span(worker.age)} ago",
            "it is cut off from the database, frozen, or starved of CPU; soon it will be judged dead",
            "look at its log and its machine",
        )  # fmt: skip
    if live and not late:
        slots = sum(worker.processes for worker in live if worker.is_claiming)
        drained = sum(not worker.is_claiming for worker in live)
        note = f", {drained:,} of them drained" if drained else ""
        yield Finding("workers", OK, f"{plural(len(live), 'live worker')}{note}, {plural(slots, 'process slot')}")
    elif not live:
        pairs = [row for row in facts.rows("waiting_pairs") if row["ready"]]
        queues = ", ".join(sorted({row["queue_name"] for row in pairs}))
        yield Finding(
            "workers", PROBLEM if pairs else WARN,
            "no live worker" + (f", and {_tasks(pairs)} ready to run in {queues}" if pairs else ""),
            "nothing runs, and no reaper recovers the tasks of dead workers", "start one: `horsies worker module:app`",
        )  # fmt: skip


def dead_workers(facts: Facts) -> Iterator[Finding]:
    """Tasks that a worker holds which is dead or unknown."""
    known = {worker.worker_id: worker for worker in facts.all_workers()}
    held = Counter[str]()
    for row in facts.rows("in_flight_counts"):
        worker = known.get(row["claimed_by_worker_id"])
        if worker is None or not worker.liveness.is_there:
            held[row["claimed_by_worker_id"]] += row["claimed"] + row["running"]
    rules = StaleRules(facts.all_workers())
    for worker_id, count in list(held.items())[:_MANY]:
        worker = known.get(worker_id)
        seen = f"last seen {span(worker.age)} ago" if worker is not None else "which has left no trace"
        by_hand = "`horsies stale list`, then `horsies stale requeue` and `horsies stale fail`"
        if worker is None:  # then its tasks are stale by their silence alone
            claimed, running = (span(rules.threshold(kind, None)) for kind in (StaleKind.CLAIMED, StaleKind.RUNNING))
            by_hand += f"; they list its tasks after {claimed} (CLAIMED) and {running} (RUNNING) of silence"
        yield Finding(
            "dead-workers", PROBLEM, f"{plural(count, 'task')} in the hands of worker {worker_id}, {seen}",
            "they wait until a live worker's reaper takes them back (about 20 s after a crash, at most the stale "
            "thresholds)" if facts.live_workers() else "there is no live worker whose reaper could take them back",
            f"start a worker, or by hand: {by_hand}",
        )  # fmt: skip
    if not held:
        yield Finding("dead-workers", OK, "no task is in the hands of a worker that is gone")


# -- waiting tasks -------------------------------------------------------------------------------


def backlog(facts: Facts) -> Iterator[Finding]:
    """Queues that no worker serves or claims from, paused queues with ready tasks, and tasks that have been ready for
    long."""
    live = facts.live_workers()
    served = {queue for worker in live for queue in worker.queues}
    claimed = {queue for worker in live if worker.is_claiming for queue in worker.queues}
    paused = {
        row["queue_name"]: row["paused_for"] for row in facts.rows("queue_states") if row["paused_at"] is not None
    }
    pairs = [row for row in facts.rows("waiting_pairs") if row["ready"]]
    queues: dict[str, list[Row]] = {}
    for row in pairs:
        queues.setdefault(row["queue_name"], []).append(row)
    good = True
    for name, rows in queues.items():
        oldest = max(row["oldest_ready"] for row in rows)
        if name in paused:
            good = False
            yield Finding(
                "paused", WARN,
                f"queue {name} has been paused for {span(paused[name])}, with {_tasks(rows)} ready in it",
                f"none of them runs; the oldest has been ready for {span(oldest)}", f"`horsies queues resume {name}`",
            )  # fmt: skip
        elif not live:
            good = False  # the check of the workers reports it
        elif name not in served and oldest >= facts.limits.unserved:
            good = False
            yield Finding(
                "unserved", PROBLEM,
                f"no live worker serves queue {name}, with {_tasks(rows)} ready in it",
                f"none of them runs; the oldest has been ready for {span(oldest)}",
                f"start a worker that serves it (--queues {name}), or correct the queue that is sent to",
            )  # fmt: skip
        elif name in served - claimed and oldest >= facts.limits.unserved:
            good = False
            of = [worker.worker_id for worker in live if name in worker.queues]
            yield Finding(
                "drained", PROBLEM,
                f"every live worker of queue {name} is drained ({_named(of[:3], len(of))}), with {_tasks(rows)} ready "
                "in it",
                f"none of them runs; the oldest has been ready for {span(oldest)}",
                "`horsies workers resume ID` lets one claim again; or start another worker",
            )  # fmt: skip
        else:
            for row in rows:
                if row["oldest_ready"] >= facts.limits.ready:
                    good = False
                    yield _waiting(row)
    if good:
        oldest = max((row["oldest_ready"] for row in pairs), default=None)
        said = f"the oldest ready task has waited for {span(oldest)}" if oldest is not None else "nothing waits"
        yield Finding("backlog", OK, said)


def _tasks(rows: Sequence[Row]) -> str:
    """How many tasks are ready; counting stopped at a bound for each priority."""
    more = "at least " if any(row["ready"] >= QUEUE_BOUND for row in rows) else ""
    return more + plural(sum(row["ready"] for row in rows), "task")


def _waiting(row: Row) -> Finding:
    if row["is_grouped"]:
        name = row["queue_name"]
        return Finding(
            "backlog", WARN,
            f"queue {name}, priority {row['priority']}: of {_tasks([row])} of groups that are due, the oldest has "
            f"waited for {span(row['oldest_ready'])}",
            "the limits of their groups hold them back, or the workers do not keep up",
            f"`horsies queues groups {name}` says which groups and why; raise a limit by `horsies queues set {name}`, "
            "or add workers",
        )  # fmt: skip
    return Finding(
        "backlog", WARN,
        f"queue {row['queue_name']}, priority {row['priority']}: of {_tasks([row])} that can "
        f"run, the oldest has waited for {span(row['oldest_ready'])}",
        "the workers do not keep up, a cap holds them back, or tasks of higher priority always come first: priority is "
        "strict",
        "add workers or processes, raise max_concurrency or cluster_wide_cap, or give it a better priority",
    )  # fmt: skip


def unknown_names(facts: Facts) -> Iterator[Finding]:
    good = True
    for row in facts.rows("missing_names"):
        good = False
        waiting = f"{plural(row['found'], 'task') if row['found'] else 'tasks'} named {row['task_name']!r}"
        waiting += f" in queue {row['queue_name']}" if row["queue_name"] is not None else " behind many others"
        grace = _longest(facts, "retired_task_grace_ms")
        if row["known_in"]:
            yield Finding(
                "unknown-names", WARN,
                f"{waiting}: no live worker of their queue knows the name, only those of {', '.join(row['known_in'])}",
                "they fail, WORKER_RESOLUTION_ERROR, after unknown_task_grace_ms (5 minutes unless set otherwise), or "
                f"after retired_task_grace_ms ({span(grace)}) if a worker of their queue knew the name before",
                "send it to a queue whose workers know it, or start one of them with "
                f"--queues {row['queue_name'] or 'QUEUE'}",
            )  # fmt: skip
        elif row["was_known"]:
            yield Finding(
                "unknown-names", WARN,
                f"{waiting}: no live worker knows the name, the last one did {span(row['unknown_for'])} ago",
                f"they wait for a worker that registers it; each fails, WORKER_RESOLUTION_ERROR, when it has waited "
                f"for retired_task_grace_ms ({span(grace)})",
                "start the workers of the app that has it; if it was removed for good, "
                f"`horsies tasks cancel --task {shlex.quote(row['task_name'])}`",
            )  # fmt: skip
        else:
            yield Finding(
                "unknown-names", WARN,
                f"{waiting}: no worker ever registered the name; missing for {span(row['missing_for'])}",
                "they fail, WORKER_RESOLUTION_ERROR, after unknown_task_grace_ms (5 minutes unless set otherwise)",
                "deploy a worker that registers it, or correct the name that is sent",
            )  # fmt: skip
    for row in facts.rows("unresolved"):
        good = False
        yield Finding(
            "unknown-names", WARN,
            f"{plural(row['found'], 'task')} named {row['task_name']!r} failed within a day: no worker knew the name",
            "they were sent, and never run",
            f"deploy the code, then {_retried(row, facts.rows('unresolved_runs'))}",
        )  # fmt: skip
    if facts.names is not None:
        strangers = [row for row in facts.rows("waiting_names") if row["task_name"] not in facts.names]
        for row in strangers[:_MANY]:
            good = False
            yield Finding(
                "unknown-names", WARN,
                f"{plural(row['found'], 'waiting task')} named {row['task_name']!r}, which this app does not register",
                "unless another app's workers know it, they will fail",
                "register it, or correct the name that is sent",
            )  # fmt: skip
    if good:
        yield Finding("unknown-names", OK, "live workers know the names of all tasks that wait in their queues")


def quarantine(facts: Facts) -> Iterator[Finding]:
    yield from quarantine_findings(facts.rows("quarantined"))


def quarantine_findings(rows: Sequence[Row]) -> Iterator[Finding]:
    """One finding for each name in the rows of `quarantined`, also for the dashboard's alerts."""
    for row in rows:
        name = shlex.quote(row["task_name"])
        more = "at least " if sum(one["found"] for one in rows) >= 1000 else ""
        told = f"`horsies quarantine release --task {name}`, or `purge` in place of `release`"
        if not row["alone"]:
            told = (
                "`horsies workflows retry` with their runs; where a run has completed all the same, as that of a batch "
                f"or of a partial map, `horsies quarantine purge --task {name}`"
            )
        elif row["alone"] < row["found"]:
            told += "; those of workflows run again by `horsies workflows retry`"
        yield Finding(
            "quarantine", WARN,
            f"{more}{plural(row['found'], 'task')} named {row['task_name']!r} in quarantine, the last since "
            f"{span(row['age'])}",
            "their process died as often as the max_crashes of their policy allows (CRASH_LIMIT); they do not run "
            "again by themselves",
            f"`horsies quarantine list --task {name}`, find the cause (`horsies tasks show ID`), then {told}",
        )  # fmt: skip
    if not rows:
        yield Finding("quarantine", OK, "no task is in quarantine")


def _retried(row: Row, runs: Sequence[Row]) -> str:
    """How to run the failed tasks of a name again: those of workflows with their runs, the others by themselves."""
    told: list[str] = []
    if row["alone"]:
        name = shlex.quote(row["task_name"])
        told.append(f"`horsies tasks retry --error-code WORKER_RESOLUTION_ERROR --task {name}`")
    mine = [one for one in runs if one["task_name"] == row["task_name"]]
    for one in mine[:_RUNS]:
        told.append(f"`horsies workflows retry {retried_run(one['root_id'], one['root_status'], one['node_id'])}`")
    if len(mine) > _RUNS:
        told.append("the same for the other runs in `horsies workflows list`")
    if not mine and row["alone"] < row["found"]:
        told.append("start new runs of their workflows, which have ended COMPLETED or are gone")
    return " and ".join(told)


def _longest(facts: Facts, field: str) -> timedelta:
    """The longest setting of this name among the live workers."""
    told = [value for worker in facts.live_workers() if (value := worker.recovery(field)) is not None]
    return timedelta(milliseconds=max(told, default=getattr(_DEFAULTS, field)))


# -- stale tasks, schedules, retention -----------------------------------------------------------


def stale(facts: Facts) -> Iterator[Finding]:
    """Stale tasks that no reaper recovers, or that one should have recovered by now."""
    live = facts.live_workers()
    rules = StaleRules(facts.all_workers())
    sweep = max((worker.recovery("check_interval_ms") or 0 for worker in live), default=_DEFAULTS.check_interval_ms)
    patience = timedelta(milliseconds=2 * sweep)
    counts: dict[TaskStatus, list[timedelta]] = {}
    for row in facts.rows("stale_tasks"):
        task = StaleTask.from_row(row)
        verdict = rules.verdict(task)
        if task.silence > verdict.threshold + patience or (verdict.is_stale and not live):
            counts.setdefault(task.status, []).append(task.silence)
    for status, silences in counts.items():
        verb = "requeue" if status is TaskStatus.CLAIMED else "fail"
        yield Finding(
            "stale", PROBLEM,
            f"{plural(len(silences), f'{status} task')} without a sign of life, the longest for {span(max(silences))}",
            "their worker is gone, and no reaper has taken them back: does one run, and are "
            "auto_requeue_stale_claimed and auto_fail_stale_running on?",
            f"start a worker, or by hand: `horsies stale {verb} --dry-run`",
        )  # fmt: skip
    if not counts:
        yield Finding("stale", OK, "every task in hand has given a sign of life")


def overdue(facts: Facts) -> Iterator[Finding]:
    yield _late(
        facts, "reaper", "overdue", "no overdue task waits for a sweep",
        "task", "{} past good_until were not swept, the oldest {} late",
        "no reaper has swept since: waiters are not told, and stale tasks are not healed either",
        "start a worker; if some run, look in their logs for the reaper",
    )  # fmt: skip


def workflow_clocks(facts: Facts) -> Iterator[Finding]:
    yield _late(
        facts, "workflow-clocks", "late_clocks", "no workflow waits for a time that has come",
        "workflow", "{} should have gone on, the first {} ago",
        "their sleeps, timeouts, deadlines or later starts have come, and no worker has moved them on",
        "start a worker; if some run, look in their logs for workflows and the reaper",
    )  # fmt: skip


def _late(facts: Facts, check: str, statement: str, fine: str, noun: str, what: str, why: str, fix: str) -> Finding:
    """Work that one of the reaper's last two sweeps should have done. The statement counts it, up to 1,000."""
    row = facts.row(statement)
    if not row["found"] or row["longest"] <= 2 * _longest(facts, "check_interval_ms") + facts.limits.overdue:
        return Finding(check, OK, fine)
    more = "at least " if row["found"] >= 1000 else ""
    return Finding(check, PROBLEM, more + what.format(plural(row["found"], noun), span(row["longest"])), why, fix)


def schedules(facts: Facts) -> Iterator[Finding]:
    yield from schedule_findings(facts.row("schedule_facts"))


def schedule_findings(row: Row) -> Iterator[Finding]:
    """The findings in the row of `schedule_facts`, also for the dashboard's alerts."""
    seen: timedelta | None = row["scheduler_seen"]
    is_there = is_scheduler_seen(seen)
    start = "start one: `horsies scheduler module:app`, or a worker with --with-scheduler"
    good = True
    if row["overdue"]:
        good = False
        are = f"{plural(row['overdue'], 'schedule')} {'is' if row['overdue'] == 1 else 'are'} overdue"
        told = f"{are}, the longest by {span(row['longest'])}: {_named(row['overdue_names'], row['overdue'])}"
        gone = f"no scheduler is running (the last sign of one is {span(seen)} old), and " if seen is not None else ""
        yield Finding(
            "schedules", WARN if is_there and row["longest"] <= _LATE else PROBLEM, told if is_there else gone + told,
            "no scheduler has sent their tasks: none is running, or the one that runs cannot write",
            f"{start}; if one runs, look in its log; `horsies schedules pause NAME` silences what should not run",
        )  # fmt: skip
    elif row["runs"] and not is_there and seen is not None:
        good = False
        yield Finding(
            "schedules", WARN,
            f"no scheduler is running: the last sign of one is {span(seen)} old, and the next slot is due in "
            f"{span(row['next_in'])}",
            "the slots of the schedules will pass without a run", start,
        )  # fmt: skip
    if row["unlisted"]:
        good = False
        yield Finding(
            "schedules", WARN,
            f"no live scheduler has listed {plural(row['unlisted'], 'schedule')} for {span(row['unlisted_for'])}: "
            f"{_named(row['unlisted_names'], row['unlisted'])}",
            "removed from the code, or the scheduler of their app is down",
            "start that scheduler; what was removed is no longer mentioned after a day",
        )  # fmt: skip
    if row["ahead"]:
        good = False
        yield Finding(
            "schedules", WARN,
            f"the last run of {plural(row['ahead'], 'schedule')} is in the future, by up to {span(row['ahead_by'])}: "
            f"{_named(row['ahead_names'], row['ahead'])}",
            "the database's clock was ahead and was put back; the next run comes after that last one, so that no slot "
            "runs twice",
            "wait until then; if that is more than a day, `horsies schedules run-now NAME` runs it once, and its slots "
            "count from now again",
        )  # fmt: skip
    for one in _stored_findings(row):
        good = False
        yield one
    if good:
        said = f"{plural(row['runs'], 'schedule')}, none overdue" if row["known"] else "no schedule is known"
        yield Finding("schedules", OK, said)


def _stored_findings(row: Row) -> Iterator[Finding]:
    """About schedules that were made at run time."""
    if row["unknown"]:
        yield Finding(
            "schedules", PROBLEM,
            f"no running scheduler knows the task of {plural(row['unknown'], 'schedule')}: "
            f"{_named(row['unknown_names'], row['unknown'])}",
            "the task is misspelt or was removed from the code, or the scheduler of its app is down",
            "start that scheduler, `horsies schedules edit NAME --task ...`, or `horsies schedules remove NAME`",
        )  # fmt: skip
    if row["broken"]:
        yield Finding(
            "schedules", PROBLEM,
            f"{plural(row['broken'], 'schedule')} cannot run: {_named(row['broken_names'], row['broken'])}",
            "a scheduler could not read the pattern, or the task does not take the arguments",
            "`horsies schedules show NAME` says why; `horsies schedules edit NAME` corrects it",
        )  # fmt: skip
    if row["clashing"]:
        yield Finding(
            "schedules", WARN,
            f"{plural(row['clashing'], 'schedule')} of the code {'is' if row['clashing'] == 1 else 'are'} skipped, "
            f"because one that was made at run time has the same name: "
            f"{_named(row['clashing_names'], row['clashing'])}",
            "the one that was made at run time is served in its place",
            "`horsies schedules remove NAME` gives the name back to the code; or rename one of the two",
        )  # fmt: skip


def _named(names: Sequence[str], count: int) -> str:
    return ", ".join(names) + (f" and {count - len(names):,} more" if count > len(names) else "")


def retention(facts: Facts) -> Iterator[Finding]:
    rows = facts.rows("oldest_ended")
    oldest: timedelta | None = rows[0]["age"] if rows else None
    if oldest is None:
        yield Finding("retention", OK, "no ended task is kept")
        return
    live = facts.live_workers()
    hours = [worker.recovery("terminal_record_retention_hours") for worker in live if worker.recovery_config]
    said = f"the oldest ended task is kept since {span(oldest)}"
    if not hours or None in hours:
        note = "no live worker prunes" if not live else "retention is off (terminal_record_retention_hours=None)"
        yield Finding("retention", OK, f"{said}; {note}")
        return
    longest = timedelta(hours=max(hour for hour in hours if hour is not None))
    if oldest <= longest + facts.limits.retention:
        yield Finding("retention", OK, f"{said}; the workers prune after {span(longest)}")
        return
    yield Finding(
        "retention", WARN, f"{said}, though the workers prune after {span(longest)}",
        "the table grows beyond what was meant: pruning does not keep up, or does not run",
        f"look in the workers' logs; by hand: `horsies tasks purge --older-than {max(longest.days, 1)}d --dry-run`",
    )  # fmt: skip
