"""The policies, groups and shared limits of the demo, computed from its tasks; tenants are the groups."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from horsies.config.limits import Rate
from horsies.operate.groups import GroupStatus, QueueGroups
from horsies.operate.policies import QueuePolicy, SharedLimit
from horsies.status import TaskStatus
from horsies_tui.data.filters import IN_FLIGHT
from horsies_tui.data.models import QueueDetail
from horsies_tui.data.policies import Subject, parse
from horsies_tui.demo_tasks import DemoTask

_RATE: Final = {"limit": 100, "per_seconds": 60.0, "burst": 10}
_DECLARED: Final[Mapping[str, Mapping[str, Any]]] = {
    "queue mail": {"max_concurrency": 3, "rate": _RATE, "fair": True, "limits": ["smtp"]},
    "queue payments": {"max_concurrency": 2, "fair": True, "limits": ["bank"]},
    "limit bank": {"max_concurrency": 8, "rate": {"limit": 300, "per_seconds": 60.0, "burst": 30}},
    "limit smtp": {"max_concurrency": 20},
}
_DEPLOYED: Final = timedelta(hours=5)
_TOKENS: Final = (0, 7, 3)
"""How many tokens the groups have left, one after the other."""


class DemoPolicies:
    """What the demo's operators have overridden."""

    def __init__(self, began: float) -> None:
        self._began = datetime.fromtimestamp(began, UTC)
        self._overrides: dict[str, dict[str, Any]] = {"limit smtp": {"max_concurrency": 10}}
        self._since = timedelta(minutes=40)

    def act(self, action: str, subject: str, change: str) -> None:
        if action == "unset_policy":
            self._overrides.pop(subject, None)
            return
        found, _ = parse(change, Subject.parse(subject).fields)
        plain = {
            name: value.as_json() if isinstance(value, Rate) else list(value) if name == "limits" else value
            for name, value in found.items()
        }
        self._overrides[subject] = {**self._overrides.get(subject, {}), **plain}

    def detail(self, name: str, tasks: Iterable[DemoTask], now: datetime) -> QueueDetail:
        rows = list(tasks)
        policy = QueuePolicy(**self._parts(f"queue {name}"), queue_name=name)
        limits = tuple(
            self._limit(subject.partition(" ")[2], rows) for subject in _DECLARED if subject.startswith("limit ")
        )
        shared = tuple(
            told for one in limits if one.name in policy.effective.limits and (told := one.throttle) is not None
        )
        mine = [task for task in rows if task.queue == name and task.group is not None]
        keys = sorted({str(task.group) for task in mine if task.status in (*IN_FLIGHT, TaskStatus.PENDING)})
        found = [self._group(key, number, mine, policy, shared, now) for number, key in enumerate(keys)]
        found.sort(key=lambda one: (-one.waiting, one.key))
        throttled = sum(bool(one.throttled_by) for one in found)
        groups = QueueGroups(name, tuple(found), len(found), is_complete=True, throttled=throttled)
        return QueueDetail(policy, groups, limits)

    def _parts(self, subject: str) -> dict[str, Any]:
        declared, override = _DECLARED.get(subject), self._overrides.get(subject)
        return {
            "declared": declared,
            "declared_at": self._began - _DEPLOYED if declared is not None else None,
            "declared_for": _DEPLOYED if declared is not None else None,
            "override": override,
            "override_at": self._began - self._since if override is not None else None,
            "override_for": self._since if override is not None else None,
            "policy": {**(declared or {}), **(override or {})},
        }

    def _limit(self, name: str, rows: Iterable[DemoTask]) -> SharedLimit:
        queues = tuple(
            queue
            for queue in ("mail", "payments")
            if name in {**_DECLARED[f"queue {queue}"], **self._overrides.get(f"queue {queue}", {})}["limits"]
        )
        running = sum(task.queue in queues and task.status in IN_FLIGHT for task in rows)
        parts = self._parts(f"limit {name}")
        rate = parts["policy"].get("rate")
        return SharedLimit(
            **parts, name=name, queues=queues, running=running, tokens=rate["burst"] - 4 if rate else None,
            burst=rate["burst"] if rate else None, wait_s=None,
        )  # fmt: skip

    def _group(
        self, key: str, number: int, rows: Iterable[DemoTask], policy: QueuePolicy, shared: tuple[str, ...],
        now: datetime,
    ) -> GroupStatus:  # fmt: skip
        mine = [task for task in rows if task.group == key]
        waiting = [task for task in mine if task.status is TaskStatus.PENDING]
        running = sum(task.status in IN_FLIGHT for task in mine)
        most, rate = policy.effective.max_concurrency, policy.effective.rate
        ages = [now - self._began + timedelta(seconds=task.enqueued) for task in waiting if task.enqueued >= 0]
        why: list[str] = []
        if most is not None and running >= most:
            why.append(f"concurrency is full ({running:,} of {most:,})")
        tokens = min(_TOKENS[number % len(_TOKENS)], rate.burst or 1) if rate is not None else None
        if tokens == 0:
            why.append("the rate has no token for 0.4 s")
        return GroupStatus(
            key=key, waiting=len(waiting), is_least=False, running=running, max_concurrency=most,
            oldest_ready=max(ages, default=None), tokens=tokens, burst=rate.burst if rate is not None else None,
            next_token_in=timedelta(seconds=0.4) if tokens == 0 else None, throttled_by=(*why, *shared) if ages else (),
        )  # fmt: skip
