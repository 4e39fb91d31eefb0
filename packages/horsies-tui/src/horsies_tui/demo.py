"""A source without a database: `horsies tui --demo`, snapshots, screenshots. Actions change what it holds in memory.

With a frozen clock (`clock=` a constant) it says the same thing for ever.
"""

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from horsies.info import Heartbeat, QueueStatus, TaskAttempt, TaskDetail, WorkerStatus
from horsies.stale import StaleKind, StaleRules
from horsies.status import TASK_TERMINAL_STATES, AttemptOutcome, TaskStatus, WorkflowStatus
from horsies_tui.data.acting import CHANGED, GONE
from horsies_tui.data.alerts import FAILING_SPAN, alerts
from horsies_tui.data.facets import FIELDS, SHOWN
from horsies_tui.data.filters import IN_FLIGHT, Query
from horsies_tui.data.models import (
    Breakdown,
    Count,
    Ends,
    Facet,
    Failing,
    LostAttempt,
    Maintenance,
    Overview,
    Place,
    Rights,
    ScheduleRow,
    Series,
    Session,
    Stale,
    StaleTask,
    TaskList,
    TaskRow,
    WorkerAttempt,
    WorkerDetail,
    WorkerLine,
    WorkerMoment,
    WorkflowDetail,
    WorkflowList,
    worker_name,
)
from horsies_tui.data.series import NOW_SPAN, SLOTS, Tally
from horsies_tui.data.source import OnHint, OnLive, Outcome, Target
from horsies_tui.demo_data import PAYLOAD_ERROR, PROCESSES, RETRY_S, DemoTask, World

FAILED: Final = (TaskStatus.FAILED, TaskStatus.EXPIRED)


class DemoSource:
    """See `Source`."""

    def __init__(self, *, seed: int = 7, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._began = clock()
        self.world = World(seed, self._began)

    @property
    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _at(self, age: float) -> datetime:
        return datetime.fromtimestamp(self._began - age, UTC)

    async def session(self) -> Session:
        return Session("demo", "operator", "18.1", Rights())

    # -- tasks -----------------------------------------------------------------------------------

    def _row(self, task: DemoTask) -> TaskRow:
        since = self._at(next(age for age in (task.ended, task.started, task.enqueued) if age is not None))
        return TaskRow(
            task.id, task.name, task.queue, 100, task.status, since, self._now - since, task.retries, task.max_retries,
            task.worker, task.error, task.workflow is not None, self._at(task.enqueued),
            self._at(task.ended) if task.ended is not None else None,
        )  # fmt: skip

    async def overview(self, window: timedelta) -> Overview:
        tasks = list(self.world.tasks.values())
        workers = self.world.worker_statuses(self._now)
        counts = {status: Count(sum(task.status is status for task in tasks)) for status in TaskStatus}
        queues = tuple(self._queue(name, workers) for name in ("default", "mail", "media", "payments"))
        found = alerts(queues, workers, self._ends(FAILING_SPAN))
        return Overview(counts, queues, tuple(workers), self._series(window), found, self._failing(window))

    def _ends(self, span: timedelta) -> Ends:
        late = [row for row in map(self._row, self.world.tasks.values()) if row.terminal_at and row.age <= span]
        return Ends(len(late), sum(row.status in FAILED for row in late), span)

    def _failing(self, window: timedelta) -> tuple[Failing, ...]:
        ages: dict[tuple[str, str], list[timedelta]] = {}
        for row in map(self._row, self.world.tasks.values()):
            if row.status in FAILED and row.age <= window:
                ages.setdefault((row.task_name, row.error_code or ""), []).append(row.age)
        found = [Failing(name, error, len(seen), min(seen)) for (name, error), seen in ages.items()]
        return tuple(sorted(found, key=lambda one: (-one.tasks, one.age))[:SHOWN])

    def _queue(self, name: str, workers: Sequence[WorkerStatus]) -> QueueStatus:
        mine = [task for task in self.world.tasks.values() if task.queue == name]
        ready = [task for task in mine if task.status is TaskStatus.PENDING and task.enqueued >= 0]
        paused = name in self.world.paused
        return QueueStatus(
            name, len(ready), sum(task.status is TaskStatus.PENDING and task.enqueued < 0 for task in mine),
            sum(task.status is TaskStatus.CLAIMED for task in mine),
            sum(task.status is TaskStatus.RUNNING for task in mine), False,
            max((self._now - self._at(task.enqueued) for task in ready), default=None),
            self._at(1_200) if paused else None, timedelta(minutes=20) if paused else None,
            sum(name in worker.queues and worker.liveness.is_there for worker in workers),
        )  # fmt: skip

    def _series(self, window: timedelta) -> Series:
        """Counted from the same rows that the lists show."""
        slot_s = window.total_seconds() / SLOTS
        span_s = max(NOW_SPAN.total_seconds(), slot_s)
        sent, ended = [0] * SLOTS, [Tally() for _ in range(SLOTS)]
        now_sent, now = 0, Tally()
        for task in self.world.tasks.values():
            was_sent = (self._now - self._at(task.sent)).total_seconds()
            if 0 <= was_sent < window.total_seconds():
                sent[-1 - int(was_sent / slot_s)] += 1
            now_sent += 0 <= was_sent < span_s
            if task.ended is None:
                continue
            age = (self._now - self._at(task.ended)).total_seconds()
            waited = math.floor(8 * math.log2(max(task.enqueued - task.started, 0.0005))) if task.started else None
            row = {"tasks": 1, "failed": int(task.status in FAILED), "waited": waited}
            if 0 <= age < window.total_seconds():
                ended[-1 - int(age / slot_s)].add(row)
            if 0 <= age < span_s:
                now.add(row)
        whole = window.total_seconds()
        return Series(
            slot_s, tuple(count / slot_s for count in sent), tuple(one.tasks / slot_s for one in ended),
            tuple(one.failed / slot_s for one in ended), tuple(one.wait(0.5) for one in ended),
            tuple(one.wait(0.95) for one in ended), whole, whole, whole, span_s, span_s, span_s, now_sent / span_s,
            now.tasks / span_s, now.failed / span_s, now.wait(0.5), now.wait(0.95),
        )  # fmt: skip

    async def tasks(self, query: Query, *, since: timedelta | None, after: Place | None, limit: int) -> TaskList:
        wanted = query.tasks
        rows = [self._row(task) for task in self.world.tasks.values() if task.status in wanted]
        rows = [row for row in rows if _matches(row, query) and _within(row.terminal_at, self._now, since, query)]
        flying = sorted((row for row in rows if row.status in IN_FLIGHT), key=lambda row: row.since)
        waiting = sorted((row for row in rows if row.status == "PENDING"), key=lambda row: (row.queue_name, row.since))
        ended = sorted((row for row in rows if row.terminal_at), key=lambda row: row.since, reverse=True)
        shown = waiting[:25] if ended else waiting
        whole = [*flying, *shown, *ended]
        start = next((place for place, row in enumerate(whole, 1) if after is not None and row.id == after.id), 0)
        page = whole[start : start + limit]
        more = Place("ended", page[-1].id, page[-1].since) if page and start + limit < len(whole) else None
        return TaskList(tuple(page), more, None, len(shown) < len(waiting))

    async def breakdown(self, query: Query, *, since: timedelta | None) -> Breakdown:
        every = [row for row in map(self._row, self.world.tasks.values())
                 if _within(row.terminal_at, self._now, since, query)]  # fmt: skip
        like = [row for row in every if _matches(row, query)]
        statuses = {status: Count(sum(row.status is status for row in like)) for status in TaskStatus}
        facets: list[Facet] = []
        for field in FIELDS:
            rest = replace(query, **{field: ""})
            column = {"queue": "queue_name", "name": "task_name", "worker": "claimed_by_worker_id"}[field]
            values = Counter(getattr(row, column) for row in every
                             if _matches(row, rest) and row.status in query.tasks)  # fmt: skip
            values.pop(None, None)
            facets += [
                Facet(field, value, self.world.host(value) if field == "worker" else None, Count(count),
                      getattr(query, field) == value)
                for value, count in sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))[:SHOWN]
            ]  # fmt: skip
        return Breakdown(statuses, tuple(facets))

    async def task(self, task_id: str) -> TaskDetail | None:
        task = self.world.tasks.get(task_id)
        if task is None:
            return None
        result = None
        if task.ended is not None:
            error = {"err": {"error_code": task.error, "message": task.message}}
            result = json.dumps(error if task.error else {"ok": {"receipt": task.kwargs["order"]["id"]}})
            result = PAYLOAD_ERROR if task.error == "SMTP_DOWN" else result
        texts = {"args": None, "kwargs": json.dumps(task.kwargs), "result": result, "progress": None,
                 "task_options": json.dumps({"timeout_ms": 30_000})}  # fmt: skip
        payload = {**texts, **{f"{name}_chars": len(text) if text else None for name, text in texts.items()}}
        held = task.claimed or 0.0
        beats = [
            Heartbeat("runner" if task.started else "claimer", task.worker or "", self.world.host(task.worker),
                      self.world.pid(task.worker), self._at(age), self._now - self._at(age))
            for number in range(3) if task.status in IN_FLIGHT and (age := task.silence + 30 * number) < held
        ]  # fmt: skip
        return TaskDetail(self._columns(task), payload, self._attempts(task), tuple(beats))

    def _columns(self, task: DemoTask) -> dict[str, object]:
        row = self._row(task)
        return {
            "id": task.id, "task_name": task.name, "queue_name": task.queue, "priority": 100, "status": task.status,
            "sent_at": self._at(task.sent), "created_at": self._at(task.sent), "enqueued_at": row.enqueued_at,
            "claimed_at": self._at(task.claimed) if task.claimed is not None else None,
            "started_at": self._at(task.started) if task.started is not None else None, "terminal_at": row.terminal_at,
            "cancel_requested_at": None, "good_until": None, "next_retry_at": None, "retry_count": task.retries,
            "max_retries": task.max_retries, "manual_retries": 0, "claimed_by_worker_id": task.worker,
            "worker_hostname": self.world.host(task.worker) if task.started is not None else None,
            "worker_pid": 5120 if task.started is not None else None, "error_code": task.error, "unique_key": None,
            "failed_reason": task.message if task.status is TaskStatus.FAILED else None,
            "workflow_id": task.workflow, "seen_at": self._now,
        }  # fmt: skip

    def _attempts(self, task: DemoTask) -> tuple[TaskAttempt, ...]:
        if task.ended is None or task.started is None:
            return ()
        failed = task.status is not TaskStatus.COMPLETED
        found: list[TaskAttempt] = []
        for number in range(task.retries + 1):
            back = (task.retries - number) * RETRY_S
            found.append(
                TaskAttempt(
                    number + 1, AttemptOutcome.FAILED if failed else AttemptOutcome.COMPLETED, number < task.retries,
                    self._at(task.started + back), self._at(task.ended + back), task.error,
                    task.message if failed else None, None, task.worker, self.world.host(task.worker), 5120,
                    "child-1",
                )
            )  # fmt: skip
        return tuple(found)

    # -- workers, what is stale ------------------------------------------------------------------

    async def workers(self) -> tuple[WorkerLine, ...]:
        draw = random.Random(5)
        return tuple(
            WorkerLine(one, tuple(min(100.0, max(4.0, draw.gauss(one.cpu_percent or 0, 16))) for _ in range(12)))
            for one in self.world.worker_statuses(self._now)
        )

    async def worker(self, worker_id: str, window: timedelta) -> WorkerDetail | None:
        status = next((one for one in self.world.worker_statuses(self._now) if one.worker_id == worker_id), None)
        if status is None:
            return None
        draw = random.Random(9)
        history = tuple(
            WorkerMoment(self._at(window.total_seconds() / 60 * (60 - place)), draw.randrange(2, PROCESSES + 1), 0,
                         61.0, 300 + place + draw.uniform(0, 40),
                         min(100.0, 40 + 25 * math.sin(place / 6) + draw.uniform(0, 20))) for place in range(60)
        )  # fmt: skip
        mine = [task for task in self.world.tasks.values() if task.worker == worker_id]
        holds = tuple(self._row(task) for task in mine if task.status in IN_FLIGHT)
        over = [task for task in mine if task.ended is not None and task.started]
        ended = sorted(over, key=lambda one: one.ended or 0)
        return WorkerDetail(status, history, holds, tuple(self._finished(task) for task in ended[:50]))

    def _finished(self, task: DemoTask) -> WorkerAttempt:
        outcome = "COMPLETED" if task.status is TaskStatus.COMPLETED else "FAILED"
        started, ended = self._at(task.started or 0), self._at(task.ended or 0)
        return WorkerAttempt(task.id, task.name, outcome, task.error, self._now - ended, ended - started)

    async def stale(self) -> Stale:
        workers = self.world.worker_statuses(self._now)
        rules = StaleRules(workers)
        names = {one.worker_id: worker_name(one) for one in workers}
        found: list[StaleTask] = []
        for task in self.world.tasks.values():
            if task.status not in IN_FLIGHT or task.worker != self.world.dead:
                continue
            kind = StaleKind(task.status.lower())
            silence = self._now - self._at(task.silence)
            held, threshold = self._now - self._at(task.claimed or task.silence), rules.threshold(kind, task.worker)
            found.append(
                StaleTask(task.id, task.name, task.queue, task.status, kind, task.worker, names[self.world.dead], 0, 0,
                          held, silence, threshold, min(silence, threshold), True, False)
            )  # fmt: skip
        lost = tuple(
            LostAttempt(self.world.lost, task.id, task.name, task.queue, task.status, False,
                        self._now - self._at(task.ended or 0), task.message)
            for task in self.world.tasks.values() if task.worker == self.world.lost
        )  # fmt: skip
        return Stale(tuple(found), tuple(sorted(rules.dead, key=lambda one: one.age)), lost, False)

    # -- workflows, schedules, maintenance -------------------------------------------------------

    async def workflows(
        self, query: Query, *, since: timedelta | None, after: Place | None, limit: int
    ) -> WorkflowList:
        rows = [
            row for row in (detail.run for detail in self.world.runs())
            if query.name in row.name and row.id.startswith(query.id)
            and (row.took is None or since is None or query.id or row.age <= since)
        ]  # fmt: skip
        counts = {status: Count(sum(row.status is status for row in rows)) for status in WorkflowStatus}
        return WorkflowList(tuple(row for row in rows if row.status in query.workflows), counts=counts)

    async def workflow(self, workflow_id: str) -> WorkflowDetail | None:
        return next((detail for detail in self.world.runs() if detail.run.id == workflow_id), None)

    async def schedules(self) -> tuple[ScheduleRow, ...]:
        return self.world.schedules(self._now)

    async def maintenance(self) -> Maintenance:
        return Maintenance(self.world.findings(self._now), self.world.tables())

    # -- acting, watching, leaving ---------------------------------------------------------------

    async def act(self, action: str, targets: Sequence[Target]) -> Outcome:
        left: list[tuple[str, str]] = []
        done = 0
        for target in targets:
            why = self._act_on(action, target)
            if why is None:
                done += 1
            else:
                left.append((target.id, why))
        return Outcome(done, not_done=tuple(left))

    def _act_on(self, action: str, target: Target) -> str | None:
        if action == "pause_queue":
            self.world.paused ^= {target.id}
            return None
        if action == "pause_schedule":
            self.world.paused_schedules ^= {target.id}
            return None
        if action == "run_schedule":
            self.world.asked.add(target.id)
            return None
        if action.endswith("_workflow"):
            paused = WorkflowStatus.RUNNING if target.expected == "PAUSED" else WorkflowStatus.PAUSED
            moved = {"cancel_workflow": WorkflowStatus.CANCELLED, "retry_workflow": WorkflowStatus.RUNNING}
            self.world.moved_workflows[target.id] = moved.get(action, paused)
            return None
        task = self.world.tasks.get(target.id)
        if task is None:
            return GONE
        if task.status != target.expected:
            return CHANGED
        if action in ("retry", "requeue_stale"):
            task.status, task.started, task.ended, task.error, task.worker = TaskStatus.PENDING, None, None, None, None
            task.enqueued = self._began - self._clock()
        else:
            task.status = TaskStatus.CANCELLED if action == "cancel" else TaskStatus.FAILED
            task.error = "TASK_CANCELLED" if action == "cancel" else "WORKER_CRASHED"
            task.ended = self._began - self._clock()
        return None

    async def watch(self, on_hint: OnHint, on_live: OnLive) -> None:
        on_live(True)
        await asyncio.Event().wait()

    async def close(self) -> None:
        return None


def _matches(row: TaskRow, query: Query) -> bool:
    return (
        query.queue in ("", row.queue_name)
        and query.name in row.task_name
        and query.error in (row.error_code or "").lower()
        and row.id.startswith(query.id)
        and query.worker in (row.claimed_by_worker_id or "")
        and (not query.error or row.status in TASK_TERMINAL_STATES)
    )


def _within(ended: datetime | None, now: datetime, since: timedelta | None, query: Query) -> bool:
    return ended is None or since is None or bool(query.id) or now - ended <= since
