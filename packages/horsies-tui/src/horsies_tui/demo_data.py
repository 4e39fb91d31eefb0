"""A made-up shop's queue: the same seed makes the same rows, at any moment that is called now."""

import json
import random
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final

from horsies.doctor import Finding, Severity
from horsies.info import WorkerLiveness, WorkerStatus
from horsies.status import NodeStatus, TaskStatus, WorkflowStatus
from horsies_tui.data.models import ScheduleRow, TableFacts, WorkflowDetail, WorkflowNode, WorkflowRow

NAMES: Final = {
    "send_receipt": "mail", "send_newsletter": "mail", "charge_card": "payments", "refund": "payments",
    "resize_image": "media", "transcode_video": "media", "rebuild_index": "default", "sync_inventory": "default",
}  # fmt: skip
ERRORS: Final = ("SMTP_DOWN", "CARD_DECLINED", "TASK_TIMEOUT", "UNHANDLED_EXCEPTION", "WORKER_CRASHED")
TRACEBACK: Final = (
    'Traceback (most recent call last):\n  File "shop/mail.py", line 41, in send_receipt\n'
    '    smtp.send(message)\n  File "shop/smtp.py", line 12, in send\n'
    '    raise SmtpDown("connection refused by mx1")\nshop.smtp.SmtpDown: connection refused by mx1\n'
)
_RECOVERY: Final = {"claimed_stale_threshold_ms": 120_000, "running_stale_threshold_ms": 300_000}


@dataclass(slots=True)
class DemoTask:
    """One task of the demo; ages are seconds before now."""

    id: str
    name: str
    status: TaskStatus
    enqueued: float
    started: float | None = None
    ended: float | None = None
    worker: str | None = None
    error: str | None = None
    retries: int = 0
    max_retries: int = 0
    silence: float = 4.0
    workflow: str | None = None
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def queue(self) -> str:
        return NAMES.get(self.name, "default")


class World:
    """Everything that the demo shows."""

    def __init__(self, seed: int = 7) -> None:
        self.random = random.Random(seed)
        self.tasks: dict[str, DemoTask] = {}
        self.paused = {"media"}
        self.workers = [self.new_id() for _ in range(3)]
        self.dead = self.new_id()
        self.moved_workflows: dict[str, WorkflowStatus] = {}
        self.paused_schedules = {"weekly_digest"}
        self.asked: set[str] = set()
        self._fill()

    def _hex(self, digits: int) -> str:
        return f"{self.random.getrandbits(digits * 4):0{digits}x}"

    def new_id(self) -> str:
        return f"0193{self._hex(4)}-{self._hex(4)}-7{self._hex(3)}-8{self._hex(3)}-{self._hex(12)}"

    def _add(self, status: TaskStatus, name: str | None = None, **columns: Any) -> DemoTask:
        name = name or self.random.choice(list(NAMES))
        task = DemoTask(self.new_id(), name, status, **columns)
        task.kwargs = {"order": {"id": self.random.randrange(10_000), "total": f"{self.random.randrange(9_999) / 100}"}}
        self.tasks[task.id] = task
        return task

    def _fill(self) -> None:
        draw = self.random
        for worker in self.workers:
            for _ in range(draw.randrange(2, 5)):
                start = draw.uniform(0.2, 40)
                self._add(TaskStatus.RUNNING, enqueued=start + 1, started=start, worker=worker)
        self._add(TaskStatus.CLAIMED, enqueued=6, worker=self.workers[0])
        for silence, status in ((410, TaskStatus.RUNNING), (405, TaskStatus.RUNNING), (395, TaskStatus.CLAIMED)):
            started = silence + 20 if status is TaskStatus.RUNNING else None
            self._add(
                status, "transcode_video", enqueued=silence + 30, started=started, worker=self.dead, silence=silence
            )
        for _ in range(60):
            self._add(TaskStatus.PENDING, enqueued=draw.uniform(0.5, 90))
        for _ in range(6):
            self._add(TaskStatus.PENDING, "send_newsletter", enqueued=-draw.uniform(300, 9_000), max_retries=3)
        for _ in range(320):
            ended = draw.expovariate(1 / 500)
            took = draw.uniform(0.02, 4)
            started = ended + took
            fate = draw.random()
            status, error = TaskStatus.COMPLETED, None
            if fate > 0.9:
                status, error = TaskStatus.FAILED, draw.choice(ERRORS)
            elif fate > 0.88:
                status, error = TaskStatus.CANCELLED, "TASK_CANCELLED"
            elif fate > 0.87:
                status, error = TaskStatus.EXPIRED, "TASK_EXPIRED"
            retries = draw.choice((0, 0, 0, 1, 2)) if status is TaskStatus.FAILED else 0
            self._add(
                status, enqueued=started + draw.uniform(0.01, 3), ended=ended, error=error, retries=retries,
                started=None if status is TaskStatus.EXPIRED else started, worker=draw.choice(self.workers),
                max_retries=max(retries, draw.choice((0, 3))),
            )  # fmt: skip

    # -- what is not tasks -----------------------------------------------------------------------

    def worker_statuses(self, now: datetime) -> list[WorkerStatus]:
        found: list[WorkerStatus] = []
        for place, worker in enumerate([*self.workers, self.dead]):
            dead = worker == self.dead
            age = timedelta(seconds=412 if dead else 1.4 + place)
            held = [task for task in self.tasks.values() if task.worker == worker]
            running = sum(task.status is TaskStatus.RUNNING for task in held)
            claimed = sum(task.status is TaskStatus.CLAIMED for task in held)
            found.append(
                WorkerStatus(
                    worker_id=worker, snapshot_at=now - age, age=age, hostname=f"web-{place + 1}", pid=4711 + place,
                    processes=6, queues=["default", "mail", "payments"] + (["media"] if place == 3 else []),
                    tasks_running=running, tasks_claimed=claimed, memory_usage_mb=61.0 + place,
                    children_memory_mb=340.0 + 25 * place, cpu_percent=38.0 + 11 * place, memory_percent=21.0,
                    max_claim_batch=100, max_claim_per_worker=None, cluster_wide_cap=None, queue_max_concurrency={},
                    recovery_config=_RECOVERY, worker_started_at=now - timedelta(hours=30 + place),
                    up_for=timedelta(hours=30 + place), stopped_at=None,
                    judged_dead_at=now - timedelta(seconds=396) if dead else None,
                    judged_by=self.workers[0] if dead else None,
                    liveness=WorkerLiveness.DEAD if dead else WorkerLiveness.ALIVE, holds_claimed=claimed,
                    holds_running=running,
                )
            )  # fmt: skip
        return found

    def runs(self) -> list[WorkflowDetail]:
        draw = random.Random(3)
        graph: tuple[tuple[str, tuple[int, ...]], ...] = (
            ("fetch_orders", ()), ("validate", (0,)), ("reserve_stock", (1,)), ("charge_cards", (1,)),
            ("print_labels", (2, 3)), ("send_receipts", (3,)), ("report", (4, 5)),
        )  # fmt: skip
        found: list[WorkflowDetail] = []
        for number in range(14):
            status = (WorkflowStatus.RUNNING, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED, WorkflowStatus.COMPLETED,
                      WorkflowStatus.FAILED)[min(number, 3 if number % 4 else 4)]  # fmt: skip
            run_id = f"0193f0a0-{number:04x}-7000-8000-{number:012x}"
            status = self.moved_workflows.get(run_id, status)
            ended = {
                WorkflowStatus.COMPLETED: 7,
                WorkflowStatus.FAILED: 7,
                WorkflowStatus.PAUSED: 2,
                WorkflowStatus.CANCELLED: 3,
            }.get(status, 3)
            nodes = tuple(
                WorkflowNode(
                    index, name, name, "default", list(waits), "all", index == 2 and number == 0,
                    None, None, _node_status(status, index, ended), "CARD_DECLINED"
                    if status is WorkflowStatus.FAILED and index == 3 else None,
                    timedelta(seconds=draw.uniform(0.1, 9)) if index < ended else None,
                )
                for index, (name, waits) in enumerate(graph)
            )  # fmt: skip
            age = timedelta(seconds=20 + number * 310)
            over = status in (WorkflowStatus.COMPLETED, WorkflowStatus.FAILED)
            run = WorkflowRow(
                run_id, "fulfil_orders" if number % 3 else "nightly_report", status, "fail", None, None, age,
                timedelta(seconds=31 + number) if over else None, 7, ended, int(status is WorkflowStatus.FAILED),
            )  # fmt: skip
            found.append(WorkflowDetail(run, nodes))
        return found

    def schedules(self, now: datetime) -> tuple[ScheduleRow, ...]:
        plan = (("hourly_sync", 3600, 1180, 412), ("nightly_report", 86_400, 40_000, 61),
                ("poll_carrier", 30, 12, 8_812), ("weekly_digest", 604_800, 210_000, 9))  # fmt: skip
        rows: list[ScheduleRow] = []
        for place, (name, every, since, runs) in enumerate(plan):
            due = timedelta(seconds=every - since)
            paused = now - timedelta(hours=2) if name in self.paused_schedules else None
            last = now - timedelta(seconds=since)
            asked = now if name in self.asked else None
            rows.append(
                ScheduleRow(
                    name, now + due, last, self.new_id_for(place), runs, paused, asked, due, now - last, None,
                    "COMPLETED" if place != 2 else "FAILED", "rebuild_index", False,
                    timedelta(milliseconds=7 + 3 * place),
                )
            )  # fmt: skip
        return tuple(rows)

    def new_id_for(self, place: int) -> str:
        return list(self.tasks)[100 + place]


def _node_status(run: WorkflowStatus, index: int, ended: int) -> NodeStatus:
    if run is WorkflowStatus.FAILED:
        return NodeStatus.FAILED if index == 3 else NodeStatus.SKIPPED if index > 3 else NodeStatus.COMPLETED
    if index < ended:
        return NodeStatus.COMPLETED
    if run is WorkflowStatus.RUNNING and index == ended:
        return NodeStatus.RUNNING
    return NodeStatus.PENDING


FINDINGS: Final = (
    Finding("dead-workers", Severity.PROBLEM, "1 dead worker still holds 3 tasks",
            "they stay where they are until somebody takes them back",
            "live workers do it by themselves; `horsies stale` does it by hand"),
    Finding("vacuum", Severity.WARN, "horsies_tasks has 48,211 dead rows",
            "every claim walks past them", "look for an old transaction, or vacuum it: VACUUM horsies_tasks"),
    Finding("server", Severity.OK, "PostgreSQL 18.1, UTF8"),
    Finding("schema", Severity.OK, "at revision 0011"),
    Finding("notify", Severity.OK, "a notification takes 1.2 ms"),
    Finding("connections", Severity.OK, "41 of 300 in use"),
    Finding("retention", Severity.OK, "nothing is older than the workers keep it"),
)  # fmt: skip

TABLES: Final = tuple(
    TableFacts(f"horsies_{name}", size, size // 3, rows, rows // 90, timedelta(minutes=11), timedelta(minutes=3))
    for name, size, rows in (
        ("tasks", 734_003_200, 1_204_331), ("task_attempts", 209_715_200, 1_250_110),
        ("heartbeats", 50_331_648, 412_901),
        ("worker_states", 18_874_368, 88_020), ("workflow_tasks", 1_048_576, 4_410),
        ("workflows", 262_144, 630),
        ("queue_state", 16_384, 4), ("schedule_state", 16_384, 4),
    )
)  # fmt: skip

PAYLOAD_ERROR: Final = json.dumps(
    {"err": {"error_code": "SMTP_DOWN", "message": "connection refused by mx1", "data": {"traceback": TRACEBACK}}}
)
