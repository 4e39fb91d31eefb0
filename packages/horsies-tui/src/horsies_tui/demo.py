"""A source without a database, for `horsies tui --demo`, snapshots and screenshots. Actions change its rows in memory.

With a frozen clock (a constant `clock`) every read returns the same.
"""

import asyncio
import json
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from horsies.operate.actions import Outcome
from horsies.operate.stale import StaleRules
from horsies.operate.views import Heartbeat, QueueStatus, StaleTask, TaskAttempt, TaskDetail, TaskSummary, WorkerStatus
from horsies.status import TASK_TERMINAL_STATES, AttemptOutcome, TaskStatus, WorkflowStatus
from horsies_tui.data import models
from horsies_tui.data.acting import CHANGED, GONE
from horsies_tui.data.alerts import FAILING_SPAN, alerts
from horsies_tui.data.facets import FIELDS, SHOWN
from horsies_tui.data.filters import IN_FLIGHT, Query
from horsies_tui.data.series import NOW_SPAN, SLOTS, Tally
from horsies_tui.data.source import OnHint, OnLive, Target
from horsies_tui.demo_data import PAYLOAD_ERROR, PROCESSES, World
from horsies_tui.demo_limits import DemoPolicies
from horsies_tui.demo_tasks import RETRY_S, DemoTask

FAILED: Final = (TaskStatus.FAILED, TaskStatus.EXPIRED)


class DemoSource:
    """See `Source`."""

    def __init__(self, *, seed: int = 7, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._began = clock()
        self.world = World(seed, self._began)
        self._policies = DemoPolicies(self._began)

    @property
    def now(self) -> datetime:
        return datetime.fromtimestamp(self._clock(), UTC)

    def _at(self, age: float) -> datetime:
        return datetime.fromtimestamp(self._began - age, UTC)

    def _at_or_none(self, age: float | None) -> datetime | None:
        return None if age is None else self._at(age)

    def _since(self, age: float) -> timedelta:
        return self.now - self._at(age)

    def _rows(self) -> list[TaskSummary]:
        return [self._row(task) for task in self.world.tasks.values()]

    async def session(self) -> models.Session:
        return models.Session("demo", "operator", models.Rights())

    def origin(self) -> str:
        return ""

    # -- tasks -----------------------------------------------------------------------------------

    def _row(self, task: DemoTask) -> TaskSummary:
        since = self._at(next(age for age in (task.ended, task.started, task.enqueued) if age is not None))
        return TaskSummary(
            id=task.id, task_name=task.name, queue_name=task.queue, status=task.status, priority=100, since=since,
            age=self.now - since, retry_count=task.retries, max_retries=task.max_retries, manual_retries=0,
            claimed_by_worker_id=task.worker, worker_hostname=self.world.host(task.worker), error_code=task.error,
            is_workflow_task=task.workflow is not None, withdrawn=False,
            terminal_at=self._at_or_none(task.ended), group=task.group,
        )  # fmt: skip

    async def overview(self, window: timedelta) -> models.Overview:
        tasks = list(self.world.tasks.values())
        workers = self.world.worker_statuses(self.now)
        counts = {status: models.Count(sum(task.status is status for task in tasks)) for status in TaskStatus}
        queues = tuple(self._queue(name, workers) for name in ("default", "mail", "media", "payments"))
        quarantined = sum(task.error == "CRASH_LIMIT" for task in tasks)
        found = alerts(queues, workers, self._ends(FAILING_SPAN), quarantined=quarantined)
        return models.Overview(counts, queues, tuple(workers), self._series(window), found, self._failing(window))

    def _ends(self, span: timedelta) -> models.Ends:
        late = [row for row in self._rows() if row.terminal_at and row.age <= span]
        return models.Ends(len(late), sum(row.status in FAILED for row in late), span)

    def _failing(self, window: timedelta) -> tuple[models.Failing, ...]:
        ages: dict[tuple[str, str], list[timedelta]] = {}
        for row in self._rows():
            if row.status in FAILED and row.age <= window:
                ages.setdefault((row.task_name, row.error_code or ""), []).append(row.age)
        found = [models.Failing(name, error, len(seen), min(seen)) for (name, error), seen in ages.items()]
        return tuple(sorted(found, key=lambda one: (-one.tasks, one.age))[:SHOWN])

    def _queue(self, name: str, workers: Sequence[WorkerStatus]) -> QueueStatus:
        mine = [task for task in self.world.tasks.values() if task.queue == name]
        ready = [task for task in mine if task.status is TaskStatus.PENDING and task.enqueued >= 0]
        paused = name in self.world.paused
        return QueueStatus(
            name, len(ready), sum(task.status is TaskStatus.PENDING and task.enqueued < 0 for task in mine),
            sum(task.status is TaskStatus.CLAIMED for task in mine),
            sum(task.status is TaskStatus.RUNNING for task in mine), False,
            max((self._since(task.enqueued) for task in ready), default=None),
            self._at(1_200) if paused else None, timedelta(minutes=20) if paused else None,
            sum(name in worker.queues and worker.liveness.is_there for worker in workers),
        )  # fmt: skip

    def _series(self, window: timedelta) -> models.Series:
        """Rates of the same rows that the lists show."""
        slot_s = window.total_seconds() / SLOTS
        span_s = max(NOW_SPAN.total_seconds(), slot_s)
        sent, ended = [0] * SLOTS, [Tally() for _ in range(SLOTS)]
        now_sent, now = 0, Tally()
        for task in self.world.tasks.values():
            was_sent = self._since(task.sent).total_seconds()
            if 0 <= was_sent < window.total_seconds():
                sent[-1 - int(was_sent / slot_s)] += 1
            now_sent += 0 <= was_sent < span_s
            if task.ended is None:
                continue
            age = self._since(task.ended).total_seconds()
            waited = math.floor(8 * math.log2(max(task.enqueued - task.started, 0.0005))) if task.started else None
            row = {"tasks": 1, "failed": int(task.status in FAILED), "waited": waited}
            if 0 <= age < window.total_seconds():
                ended[-1 - int(age / slot_s)].add(row)
            if 0 <= age < span_s:
                now.add(row)
        whole = window.total_seconds()

        def rate(counts: list[int], lately: int) -> models.Rate:
            return models.Rate(tuple(count / slot_s for count in counts), whole, lately / span_s, span_s)

        return models.Series(
            slot_s,
            sent=rate(sent, now_sent),
            done=rate([one.tasks for one in ended], now.tasks),
            failed=rate([one.failed for one in ended], now.failed),
            wait_p95=tuple(one.wait(0.95) for one in ended),
            wait_p50_now=now.wait(0.5),
            wait_p95_now=now.wait(0.95),
        )

    async def tasks(
        self, query: Query, *, since: timedelta | None, after: models.Place | None, limit: int
    ) -> models.TaskList:
        rows = [row for row in self._listed(query, since) if row.status in query.tasks and self._matches(row, query)]
        flying = sorted((row for row in rows if row.status in IN_FLIGHT), key=lambda row: row.since)
        waiting = sorted((row for row in rows if row.status == "PENDING"), key=lambda row: (row.queue_name, row.since))
        ended = sorted((row for row in rows if row.terminal_at), key=lambda row: row.since, reverse=True)
        shown = waiting[:25] if ended else waiting
        whole = [*flying, *shown, *ended]
        start = next((place for place, row in enumerate(whole, 1) if after is not None and row.id == after.id), 0)
        page = whole[start : start + limit]
        more = models.Place("ended", page[-1].id, page[-1].since) if page and start + limit < len(whole) else None
        return models.TaskList(tuple(page), more, None, len(shown) < len(waiting))

    def _listed(self, query: Query, since: timedelta | None) -> list[TaskSummary]:
        """The tasks that the window does not hide."""
        oldest = timedelta.max if since is None or query.id else since
        return [row for row in self._rows() if row.terminal_at is None or row.age <= oldest]

    def _matches(self, row: TaskSummary, query: Query) -> bool:
        metadata = self.world.tasks[row.id].metadata
        return (
            query.queue in ("", row.queue_name)
            and query.group in ("", row.group)
            and query.name in row.task_name
            and query.error in (row.error_code or "").lower()
            and row.id.startswith(query.id)
            and query.worker in (row.claimed_by_worker_id or "")
            and all(metadata.get(key) == value for key, value in query.meta)
            and (not query.error or row.status in TASK_TERMINAL_STATES)
        )

    async def breakdown(self, query: Query, *, since: timedelta | None) -> models.Breakdown:
        every = self._listed(query, since)
        like = [row for row in every if self._matches(row, query)]
        statuses = {status: models.Count(sum(row.status is status for row in like)) for status in TaskStatus}
        facets: list[models.Facet] = []
        for field in FIELDS:
            rest = replace(query, **{field: ""})
            column = {"queue": "queue_name", "name": "task_name", "worker": "claimed_by_worker_id"}[field]
            values = Counter(getattr(row, column) for row in every
                             if self._matches(row, rest) and row.status in query.tasks)  # fmt: skip
            values.pop(None, None)
            facets += [
                models.Facet(field, value, self.world.host(value) if field == "worker" else None, models.Count(count),
                      getattr(query, field) == value)
                for value, count in sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))[:SHOWN]
            ]  # fmt: skip
        return models.Breakdown(statuses, tuple(facets))

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
                      self.world.pid(task.worker), self._at(age), self._since(age))
            for number in range(3) if task.status in IN_FLIGHT and (age := task.silence + 30 * number) < held
        ]  # fmt: skip
        return TaskDetail(self._columns(task), payload, self._attempts(task), tuple(beats))

    def _columns(self, task: DemoTask) -> dict[str, Any]:
        has_run = task.started is not None
        return asdict(self._row(task)) | {
            "sent_at": self._at(task.sent), "created_at": self._at(task.sent), "enqueued_at": self._at(task.enqueued),
            "claimed_at": self._at_or_none(task.claimed), "started_at": self._at_or_none(task.started),
            "cancel_requested_at": None, "good_until": None, "next_retry_at": None, "unique_key": None,
            "crash_count": 0, "snoozes": 0,
            "unique_until": None,
            "metadata": task.metadata,
            "worker_hostname": self.world.host(task.worker) if has_run else None,
            "worker_pid": 5120 if has_run else None, "workflow_id": task.workflow, "seen_at": self.now,
            "failed_reason": task.message if task.status is TaskStatus.FAILED else None,
        }  # fmt: skip

    def _attempts(self, task: DemoTask) -> tuple[TaskAttempt, ...]:
        if task.ended is None or task.started is None:
            return ()
        failed = task.status is not TaskStatus.COMPLETED
        return tuple(
            TaskAttempt(
                task.retries + 1 - left, AttemptOutcome.FAILED if failed else AttemptOutcome.COMPLETED, left > 0,
                self._at(task.started + left * RETRY_S), self._at(task.ended + left * RETRY_S), task.error,
                task.message if failed else None, None, task.worker, self.world.host(task.worker), 5120, "child-1",
            )
            for left in range(task.retries, -1, -1)
        )  # fmt: skip

    async def queue(self, name: str) -> models.QueueDetail:
        return self._policies.detail(name, self.world.tasks.values(), self.now)

    # -- workers, stale tasks ------------------------------------------------------------------

    async def workers(self) -> tuple[models.WorkerLine, ...]:
        draw = random.Random(5)
        return tuple(
            models.WorkerLine(one, tuple(min(100.0, max(4.0, draw.gauss(one.cpu_percent or 0, 16))) for _ in range(12)))
            for one in self.world.worker_statuses(self.now)
        )

    async def worker(self, worker_id: str, window: timedelta) -> models.WorkerDetail | None:
        status = next((one for one in self.world.worker_statuses(self.now) if one.worker_id == worker_id), None)
        if status is None:
            return None
        draw = random.Random(9)
        history = tuple(
            models.WorkerMoment(
                self._at(window.total_seconds() / 60 * (60 - place)), draw.randrange(2, PROCESSES + 1),
                61.0 + (300 + place + draw.uniform(0, 40)),
                min(100.0, 40 + 25 * math.sin(place / 6) + draw.uniform(0, 20)),
            )
            for place in range(60)
        )  # fmt: skip
        mine = [task for task in self.world.tasks.values() if task.worker == worker_id]
        holds = tuple(self._row(task) for task in mine if task.status in IN_FLIGHT)
        over = [task for task in mine if task.ended is not None and task.started]
        ended = sorted(over, key=lambda one: one.ended or 0)
        return models.WorkerDetail(status, history, holds, tuple(self._finished(task) for task in ended[:50]))

    def _finished(self, task: DemoTask) -> models.WorkerAttempt:
        outcome = "COMPLETED" if task.status is TaskStatus.COMPLETED else "FAILED"
        started, ended = task.started or 0, task.ended or 0
        took = timedelta(seconds=started - ended)
        return models.WorkerAttempt(task.id, task.name, outcome, task.error, self._since(ended), took)

    async def stale(self) -> models.Stale:
        workers = self.world.worker_statuses(self.now)
        rules = StaleRules(workers)
        names = {one.worker_id: models.worker_name(one) for one in workers}
        found: list[models.StaleRow] = []
        for task in self.world.tasks.values():
            if task.status not in IN_FLIGHT or task.worker != self.world.dead:
                continue
            last_sign, held_since = self._at(task.silence), self._at(task.claimed or task.silence)
            stale = StaleTask(
                id=task.id, task_name=task.name, queue_name=task.queue, status=task.status,
                claimed_by_worker_id=task.worker, worker_hostname=self.world.host(task.worker), worker_pid=None,
                claimed_at=held_since, started_at=None, retry_count=0, max_retries=0, last_sign=last_sign,
                silence=self.now - last_sign, is_finalizing=False, is_workflow_task=False,
                held_for=self.now - held_since,
            )  # fmt: skip
            found.append(models.StaleRow(stale, rules.verdict(stale), names[self.world.dead]))
        gone = self.world.lost
        lost = tuple(
            models.LostAttempt(gone, task.id, task.name, task.status, self._since(task.ended or 0), task.message)
            for task in self.world.tasks.values() if task.worker == gone
        )  # fmt: skip
        return models.Stale(tuple(found), tuple(sorted(rules.dead, key=lambda one: one.age)), lost, False)

    # -- workflows, schedules, maintenance -------------------------------------------------------

    async def workflows(
        self, query: Query, *, since: timedelta | None, after: models.Place | None, limit: int
    ) -> models.WorkflowList:
        rows = [
            row for row in (detail.run for detail in self.world.flows.runs())
            if query.name in row.name and row.id.startswith(query.id)
            and (row.took is None or since is None or query.id or row.age <= since)
        ]  # fmt: skip
        counts = {status: models.Count(sum(row.status is status for row in rows)) for status in WorkflowStatus}
        return models.WorkflowList(tuple(row for row in rows if row.status in query.workflows), counts=counts)

    async def workflow(self, workflow_id: str) -> models.WorkflowDetail | None:
        return next((detail for detail in self.world.flows.runs() if detail.run.id == workflow_id), None)

    async def schedules(self) -> tuple[models.ScheduleRow, ...]:
        return self.world.schedules(self.now)

    async def schedule(self, name: str) -> models.ScheduleDetail | None:
        return self.world.schedule(name, self.now)

    async def maintenance(self) -> models.Maintenance:
        return models.Maintenance(self.world.findings(self.now), self.world.tables())

    # -- acting, watching, closing ---------------------------------------------------------------

    async def act(self, action: str, targets: Sequence[Target]) -> Outcome:
        told = [(target.id, self._act_on(action, target)) for target in targets]
        left = tuple((one, why) for one, why in told if why is not None)
        return Outcome(len(told) - len(left), not_done=left)

    def _act_on(self, action: str, target: Target) -> str | None:
        """Carry it out, or return why it was left alone."""
        world = self.world
        if action == "pause_queue":
            world.paused ^= {target.id}
        elif action.endswith("_worker"):
            return "the demo has no workers to ask"
        elif action.endswith("_policy"):
            self._policies.act(action, target.id, target.change)
        elif action == "pause_schedule":
            world.paused_schedules ^= {target.id}
        elif action == "remove_schedule":
            world.removed_schedules.add(target.id)
        elif action == "run_schedule":
            world.asked.add(target.id)
        elif action.endswith("_workflow"):
            paused = WorkflowStatus.RUNNING if target.expected == "PAUSED" else WorkflowStatus.PAUSED
            moved = {"cancel_workflow": WorkflowStatus.CANCELLED, "retry_workflow": WorkflowStatus.RUNNING}
            world.flows.moved[target.id] = moved.get(action, paused)
        elif action == "retry_node":
            world.flows.moved[target.id] = WorkflowStatus.RUNNING
        elif action == "signal":
            world.flows.signals.add((target.id, target.part))
        elif (task := world.tasks.get(target.id)) is None:
            return GONE
        elif task.status != target.expected:
            return CHANGED
        elif action == "purge":
            del world.tasks[target.id]
        elif action in ("retry", "requeue_stale"):
            task.status, task.started, task.ended, task.error, task.worker = TaskStatus.PENDING, None, None, None, None
            task.enqueued = self._began - self._clock()
        else:
            is_cancel = action == "cancel"
            task.status = TaskStatus.CANCELLED if is_cancel else TaskStatus.FAILED
            task.error = "TASK_CANCELLED" if is_cancel else "WORKER_CRASHED"
            task.ended = self._began - self._clock()
        return None

    async def watch(self, on_hint: OnHint, on_live: OnLive) -> None:
        on_live(True)
        await asyncio.Event().wait()

    async def close(self) -> None:
        return None
