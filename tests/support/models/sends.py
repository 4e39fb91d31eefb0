"""A pure model of what producers see: sends with and without keys, time, drains, cancels, signals."""

from dataclasses import dataclass, field
from typing import Final

RETRY_S: Final = 60
SNOOZE_S: Final = 3_600


@dataclass
class Sent:
    kind: str
    due: float
    value: int = 0
    status: str = "PENDING"
    runs: int = 0
    ran_with: list[int] = field(default_factory=list)


@dataclass
class Key:
    holder: str
    until: float


@dataclass
class Producers:
    now: float = 0.0
    tasks: dict[str, Sent] = field(default_factory=dict)
    keys: dict[str, Key] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    """State of each workflow: waits, signalled, COMPLETED."""

    def holder(self, key: str, mode: str) -> str | None:
        """The task that a send with this key is given instead of a new one."""
        held = self.keys.get(key)
        if held is None:
            return None
        status = self.tasks[held.holder].status
        if mode == "unique_for":
            return held.holder if status == "PENDING" or held.until > self.now else None
        return held.holder if status == "PENDING" else None

    def sent(self, task_id: str, kind: str, delay: float, value: int) -> None:
        self.tasks[task_id] = Sent(kind, self.now + delay, value)

    def drain(self) -> None:
        """Everything that is ready runs, and what follows from it at once."""
        for task in self.tasks.values():
            if task.status != "PENDING" or task.due > self.now:
                continue
            task.runs += 1
            task.ran_with.append(task.value)
            if task.kind == "flaky" and task.runs == 1:
                task.due = self.now + RETRY_S
            elif task.kind == "snooze" and task.runs == 1:
                task.due = self.now + SNOOZE_S
            else:
                task.status = "FAILED" if task.kind == "fail" else "COMPLETED"
        for run, state in self.runs.items():
            if state == "signalled":
                self.runs[run] = "COMPLETED"

    def cancel(self, task_id: str) -> bool:
        task = self.tasks[task_id]
        if task.status != "PENDING":
            return False
        task.status = "CANCELLED"
        return True
