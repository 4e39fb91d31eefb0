"""The rows of an invented shop; the same seed makes the same rows relative to now.

Every count, list and average of a screen is computed from these rows, so that the screens agree with each other.
"""

import json
import math
import random
from datetime import datetime, timedelta
from typing import Any, Final

from horsies.operate.doctor import Finding, Severity
from horsies.operate.schedule_views import ScheduleRun, StoredSchedule
from horsies.operate.views import WorkerLiveness, WorkerStatus
from horsies.status import TaskStatus
from horsies_tui.data.models import ScheduleDetail, ScheduleRow, TableFacts
from horsies_tui.demo_runs import DemoRuns
from horsies_tui.demo_tasks import ERRORS, NAMES, TENANTS, DemoTask

ENDED: Final = 2_600
"""The number of tasks that ended in the last hour."""
TRACEBACK: Final = (
    'Traceback (most recent call last):\n  File "shop/mail.py", line 41, in send_receipt\n'
    '    smtp.send(message)\n  File "shop/smtp.py", line 12, in send\n'
    '    raise SmtpDown("connection refused by mx1")\nshop.smtp.SmtpDown: connection refused by mx1\n'
)
PROCESSES: Final = 4
_RECOVERY: Final = {"claimed_stale_threshold_ms": 120_000, "running_stale_threshold_ms": 300_000}
_COMMON: Final = ["default", "mail", "payments"]
_PLAN: Final = (
    ("hourly_sync", "sync_inventory", 3_600, 300, 2_160), ("nightly_rebuild", "rebuild_index", 86_400, 7_200, 90),
    ("poll_carrier", "sync_inventory", 120, 47, 64_800), ("weekly_newsletter", "send_newsletter", 604_800, 381_600, 13),
)  # fmt: skip
"""Schedule, task, seconds between two runs, and their offset from the epoch; runs so far."""
_STORED: Final = frozenset({"poll_carrier", "weekly_newsletter"})
"""Those that were made at run time."""


class World:
    """Everything that the demo shows. Ages count back from `began`."""

    def __init__(self, seed: int = 7, began: float = 0.0) -> None:
        self.random = random.Random(seed)
        self.began = began
        self.tasks: dict[str, DemoTask] = {}
        self.paused = {"media"}
        self.workers = [self.new_id() for _ in range(3)]
        self.dead = self.new_id()
        """A silent worker that was not declared dead yet and still holds its tasks."""
        self.lost = self.new_id()
        """A worker that died earlier; other workers have ended its tasks."""
        self.paused_schedules = {"weekly_newsletter"}
        self.removed_schedules = set[str]()
        self.asked: set[str] = set()
        self._runs: dict[str, str] = {}
        self._fill_ended()
        self.flows = DemoRuns(self.tasks, self._add, self.workers, began)
        self._fill_live()
        self.flows.fill_waiting()

    @property
    def everyone(self) -> list[str]:
        return [*self.workers, self.dead, self.lost]

    def host(self, worker: str | None) -> str | None:
        return f"web-{self.everyone.index(worker) + 1}" if worker in self.everyone else None

    def pid(self, worker: str | None) -> int | None:
        return 4711 + self.everyone.index(worker) if worker in self.everyone else None

    def queues_of(self, worker: str) -> list[str]:
        return ["media"] if worker in (self.dead, self.lost) else _COMMON + ["media"] * (worker == self.workers[2])

    def _hex(self, digits: int) -> str:
        return f"{self.random.getrandbits(digits * 4):0{digits}x}"

    def new_id(self) -> str:
        return f"0193{self._hex(4)}-{self._hex(4)}-7{self._hex(3)}-8{self._hex(3)}-{self._hex(12)}"

    def _add(self, status: TaskStatus, name: str, **columns: Any) -> DemoTask:
        task = DemoTask(self.new_id(), name, status, **columns)
        task.kwargs = {"order": {"id": self.random.randrange(10_000), "total": f"{self.random.randrange(9_999) / 100}"}}
        if task.name != "send_newsletter":
            task.metadata = {"tenant": TENANTS[task.kwargs["order"]["id"] % len(TENANTS)]}
        self.tasks[task.id] = task
        return task

    # -- tasks -----------------------------------------------------------------------------------

    def _fill_ended(self) -> None:
        """Add ended tasks at a varying rate, with many failures of mail in one quarter of an hour."""
        draw = self.random
        for _ in range(ENDED):
            ended = draw.uniform(2, 3_600)
            while draw.random() > 0.6 + 0.4 * math.sin(ended / 500):
                ended = draw.uniform(2, 3_600)
            # no task of the paused queue media ended since
            name = draw.choice([one for one, queue in NAMES.items() if queue != "media" or ended > 1_300])
            queue = NAMES[name]
            started = ended + draw.uniform(0.02, 4)
            is_bad = queue == "mail" and 1_500 < ended < 2_400
            fate = draw.random()
            status, error = TaskStatus.COMPLETED, None
            if fate > (0.7 if is_bad else 0.97):
                status, error = TaskStatus.FAILED, ERRORS[queue][0]
            elif fate > 0.965:
                status, error = TaskStatus.CANCELLED, "TASK_CANCELLED"
            elif fate > 0.96:
                status, error = TaskStatus.EXPIRED, "TASK_EXPIRED"
            retries = draw.choice((0, 0, 0, 1, 2)) if status is TaskStatus.FAILED else 0
            has_run = status is not TaskStatus.EXPIRED
            self._add(
                status, name, enqueued=started + draw.uniform(0.01, 1.2), ended=ended, error=error, retries=retries,
                started=started if has_run else None, worker=self._server(queue) if has_run else None,
                max_retries=max(retries, draw.choice((0, 3))),
            )  # fmt: skip
        for ended in (1_560, 1_561, 1_562):
            self._add(
                TaskStatus.FAILED, "transcode_video", enqueued=ended + 95, started=ended + 90, ended=ended,
                worker=self.lost, error="WORKER_CRASHED",
            )  # fmt: skip
        for schedule, name, every, offset, _ in _PLAN:
            since = (self.began - offset) % every
            since += every * (since < 3)  # a schedule that is due now shows the run before
            self._runs[schedule] = self._add(
                TaskStatus.COMPLETED, name, enqueued=since - 0.01, started=since - 0.03, ended=since - 2.4,
                worker=self.workers[0],
            ).id  # fmt: skip

    def _server(self, queue: str) -> str:
        return self.random.choice([worker for worker in self.workers if queue in self.queues_of(worker)])

    def _fill_live(self) -> None:
        """Add live tasks. The workers are full, so tasks wait a moment, and those of the paused queue longer."""
        draw = self.random
        running = [task for task in self.tasks.values() if task.status is TaskStatus.RUNNING]
        open_names = [name for name, queue in NAMES.items() if queue != "media"]
        for worker in self.workers:
            for _ in range(PROCESSES - sum(task.worker == worker for task in running)):
                start = draw.uniform(0.2, 4)
                self._add(
                    TaskStatus.RUNNING, draw.choice(open_names), enqueued=start + 0.6, started=start, worker=worker
                )
        for silence in (112, 110):
            self._add(
                TaskStatus.RUNNING, "transcode_video", enqueued=silence + 1_300, started=silence + 1_250,
                worker=self.dead, silence=silence,
            )  # fmt: skip
        self._add(TaskStatus.CLAIMED, "resize_image", enqueued=1_260, worker=self.dead, silence=108)
        for _ in range(14):
            self._add(TaskStatus.PENDING, draw.choice(open_names), enqueued=draw.uniform(0.05, 1.2))
        for _ in range(31):
            self._add(TaskStatus.PENDING, draw.choice(("resize_image", "transcode_video")),
                      enqueued=draw.uniform(5, 1_195))  # fmt: skip
        for _ in range(6):
            self._add(TaskStatus.PENDING, "send_newsletter", enqueued=-draw.uniform(300, 9_000), max_retries=3)

    # -- workers ---------------------------------------------------------------------------------

    def worker_statuses(self, now: datetime) -> list[WorkerStatus]:
        return [self._worker_status(place, worker, now) for place, worker in enumerate(self.everyone)]

    def _worker_status(self, place: int, worker: str, now: datetime) -> WorkerStatus:
        is_lost = worker == self.lost
        age = timedelta(seconds={self.dead: 113.0, self.lost: 1_590.0}.get(worker, 1.4 + place))
        held = [task for task in self.tasks.values() if task.worker == worker]
        running = sum(task.status is TaskStatus.RUNNING for task in held)
        claimed = sum(task.status is TaskStatus.CLAIMED for task in held)
        is_dead = worker in (self.dead, self.lost)
        return WorkerStatus(
            worker_id=worker, snapshot_at=now - age, age=age, hostname=self.host(worker) or "",
            pid=self.pid(worker) or 0, processes=PROCESSES, queues=self.queues_of(worker),
            tasks_running=3 if is_lost else running, tasks_claimed=claimed, memory_usage_mb=61.0 + place,
            children_memory_mb=340.0 + 25 * place, cpu_percent=38.0 + 11 * place, memory_percent=21.0,
            max_claim_batch=100, max_claim_per_worker=None, cluster_wide_cap=None, queue_max_concurrency={},
            recovery_config=_RECOVERY, worker_started_at=now - timedelta(hours=30 + place),
            up_for=timedelta(hours=30 + place) - (age if is_dead else timedelta()), stopped_at=None,
            judged_dead_at=now - timedelta(seconds=1_570) if is_lost else None,
            judged_by=self.workers[0] if is_lost else None,
            liveness=WorkerLiveness.DEAD if is_dead else WorkerLiveness.ALIVE, holds_claimed=claimed,
            holds_running=running,
        )  # fmt: skip

    # -- schedules and tables --------------------------------------------------------------------

    def schedules(self, now: datetime) -> tuple[ScheduleRow, ...]:
        rows: list[ScheduleRow] = []
        for name, _, every, offset, runs in _PLAN:
            if name in self.removed_schedules:
                continue
            since = timedelta(seconds=(now.timestamp() - offset) % every)
            due = timedelta(seconds=every) - since
            task = self.tasks[self._runs[name]]
            rows.append(
                ScheduleRow(
                    schedule_name=name, next_run_at=now + due, last_run_at=now - since, last_task_id=task.id,
                    last_task_status=task.status, last_workflow_status=None, run_count=runs,
                    paused_at=now - timedelta(days=2) if name in self.paused_schedules else None,
                    run_requested_at=now if name in self.asked else None, updated_at=now - timedelta(seconds=3),
                    overdue_by=None, unlisted_for=timedelta(seconds=3), scheduler_seen=timedelta(seconds=3),
                    is_data=name in _STORED, is_enabled=True if name in _STORED else None,
                    is_known=True if name in _STORED else None, problem_at=None,
                    due_in=due, last_age=since, last_status=str(task.status), is_workflow=False,
                    drift=timedelta(milliseconds=10),
                )
            )  # fmt: skip
        return tuple(rows)

    def schedule(self, name: str, now: datetime) -> ScheduleDetail | None:
        row = next((row for row in self.schedules(now) if row.schedule_name == name), None)
        if row is None:
            return None
        _, task, every, _, runs = next(plan for plan in _PLAN if plan[0] == name)
        stored = None
        if row.is_data:
            made = now - timedelta(days=40)
            stored = StoredSchedule(
                name=name, task_name=task, workflow=None, pattern={"kind": "interval", "seconds": every},
                kwargs={"region": "eu"}, queue_name=None, group_key=None, timezone="UTC", skipped_times="fire",
                overlap="skip", catch_up_missed=False, max_catch_up_runs=100, jitter_s=0, enabled=True, version=3,
                created_by="ops", created_at=made, updated_at=made,
            )  # fmt: skip
        last = row.last_run_at or now
        history = [
            ScheduleRun(
                slot=(slot := last - number * timedelta(seconds=every)), last_slot=slot,
                fired_at=slot + timedelta(milliseconds=8 + 3 * number),
                task_id=None if number == 3 else row.last_task_id if number == 0 else f"{name}-{runs - number}",
                skipped="overlap" if number == 3 else None, is_request=False,
                status=None if number == 3 else row.last_status if number == 0 else "COMPLETED", error_code=None,
            )
            for number in range(min(runs, 12))
        ]  # fmt: skip
        return ScheduleDetail(row, stored, None, tuple(history))

    def tables(self) -> tuple[TableFacts, ...]:
        tasks = len(self.tasks)
        nodes = sum(len(detail.nodes) for detail in self.flows.runs())
        attempts = sum(task.retries + 1 for task in self.tasks.values() if task.ended is not None and task.started)
        return tuple(
            TableFacts(f"horsies_{name}", max(16_384, rows * width), max(16_384, rows * width // 3), rows, dead,
                       timedelta(minutes=11), timedelta(minutes=3))
            for name, rows, width, dead in (
                ("tasks", tasks, 900, DEAD_ROWS), ("worker_states", 21_600, 400, 240),
                ("task_attempts", attempts, 180, 0),
                ("heartbeats", 6_120, 90, 310), ("workflow_tasks", nodes, 400, 12),
                ("workflows", len(self.flows.runs()), 400, 9),
                ("queue_state", 4, 60, 0), ("schedule_state", len(_PLAN), 120, 4), ("worker_instances", 5, 120, 2),
            )
        )  # fmt: skip

    def findings(self, now: datetime) -> tuple[Finding, ...]:
        dead = next(one for one in self.worker_statuses(now) if one.worker_id == self.dead)
        held = dead.holds_claimed + dead.holds_running
        stale = () if not held else (
            Finding("dead-workers", Severity.PROBLEM,
                    f"{held} tasks in the hands of worker {self.dead}, last seen 1 m 53 s ago",
                    "they wait until a live worker's reaper takes them back (about 20 s after a crash, at most the "
                    "stale thresholds)",
                    "start a worker, or by hand: `horsies stale list`, then `horsies stale requeue` and `horsies "
                    "stale fail`"),
        )  # fmt: skip
        return (
            *stale,
            Finding("paused", Severity.WARN, "queue media has been paused for 20 m, with 31 tasks ready in it",
                    "none of them runs; the oldest has been ready for 19 m", "`horsies queues resume media`"),
            Finding("vacuum", Severity.WARN, f"horsies_tasks has {DEAD_ROWS:,} dead rows",
                    "every claim walks past them", "look for an old transaction, or vacuum it: VACUUM horsies_tasks"),
            Finding("server", Severity.OK, "PostgreSQL 18.1, UTF8"),
            Finding("schema", Severity.OK, "at revision 0032"),
            Finding("notify", Severity.OK, "a notification takes 1.2 ms"),
            Finding("connections", Severity.OK, "41 of 300 in use"),
            Finding("workers", Severity.OK,
                    f"{len(self.workers)} live workers, {PROCESSES * len(self.workers)} process slots"),
            Finding("retention", Severity.OK, "the oldest ended task is kept since 1 h; the workers prune after 30 d"),
            Finding("schedules", Severity.OK, f"{len(_PLAN) - len(self.paused_schedules)} schedules, none overdue"),
        )  # fmt: skip


DEAD_ROWS: Final = 12_480


PAYLOAD_ERROR: Final = json.dumps(
    {"err": {"error_code": "SMTP_DOWN", "message": "connection refused by mx1", "data": {"traceback": TRACEBACK}}}
)
