"""The filter of a list, as people type it: `queue:mail status:failed,expired name:receipt error:smtp id:0192`.

A bare word means the name; `worker:` asks for who held it; a value with spaces stands in quotes. Every condition must
hold. What cannot be understood is told, and nothing is filtered by it.
"""

import re
from dataclasses import dataclass, replace
from typing import Final, Self

from horsies.status import TASK_TERMINAL_STATES, TaskStatus, WorkflowStatus

LIVE: Final = frozenset(TaskStatus) - TASK_TERMINAL_STATES
IN_FLIGHT: Final = frozenset({TaskStatus.CLAIMED, TaskStatus.RUNNING})
_ALWAYS_WITH_CODE: Final = frozenset({TaskStatus.FAILED, TaskStatus.EXPIRED})
_ID_CHARS: Final = 36
_MAX_CHARS: Final = 200

_KEYS: Final = {
    "queue": "queue", "q": "queue", "name": "name", "task": "name", "error": "error", "code": "error", "id": "id",
    "worker": "worker", "status": "status", "s": "status", "is": "status",
}  # fmt: skip
_TEXTS: Final = ("queue", "name", "error", "id", "worker")
_WORD: Final = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_SHORT: Final = {"waiting": "PENDING", "queued": "PENDING", "done": "COMPLETED", "canceled": "CANCELLED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What a list is asked for; nothing given means everything."""

    statuses: frozenset[str] = frozenset()
    queue: str = ""
    name: str = ""
    error: str = ""
    id: str = ""
    worker: str = ""

    @classmethod
    def parse(cls, text: str) -> tuple[Self, list[str]]:
        """The filter, and what in it was not understood."""
        found: dict[str, str] = {}
        statuses: set[str] = set()
        problems: list[str] = []
        for word in _WORD.findall(text[:_MAX_CHARS].replace("\0", "")):
            key, colon, value = word.partition(":")
            if not colon:
                key, value = "name", word
            value = value.replace('"', "")
            field = _KEYS.get(key.lower())
            if field is None:
                problems.append(f"{key}: is not one of queue, status, name, error, id, worker")
            elif field == "status":
                problems += cls._add_statuses(value, statuses)
            elif value:
                found[field] = value if field in ("queue", "worker") else value.lower()
        return cls(statuses=frozenset(statuses), **found), problems

    @staticmethod
    def _add_statuses(value: str, to: set[str]) -> list[str]:
        known = {*TaskStatus, *WorkflowStatus}
        problems: list[str] = []
        for word in filter(None, value.split(",")):
            wanted = _SHORT.get(word.lower(), word.upper())
            hits = {str(status) for status in known if status.startswith(wanted)}
            if not hits:
                problems.append(f"{word} is not a status")
            to |= hits
        return problems

    def __str__(self) -> str:
        parts = [f"status:{','.join(sorted(status.lower() for status in self.statuses))}"] if self.statuses else []
        parts += [f"{name}:{_quoted(getattr(self, name))}" for name in _TEXTS if getattr(self, name)]
        return " ".join(parts)

    @property
    def is_empty(self) -> bool:
        return self == Query()

    def toggled(self, status: str) -> "Query":
        """With this status asked for as well, or not any more."""
        return replace(self, statuses=self.statuses ^ {status})

    def narrowed(self, field: str, value: str) -> "Query":
        """To this queue, name, error or worker; back again when it is narrowed to that already."""
        wanted = (value.lower() if field in ("name", "error") else value).replace('"', "")[:_MAX_CHARS]
        return replace(self, **{field: "" if getattr(self, field) == wanted else wanted})

    # -- what the sections of a list need of it --------------------------------------------------

    @property
    def has_text(self) -> bool:
        """Whether more than a state is asked for."""
        return any(getattr(self, name) for name in _TEXTS)

    @property
    def whole_id(self) -> str | None:
        """A complete id: looked up instead of searched."""
        return self.id if len(self.id) == _ID_CHARS else None

    @property
    def tasks(self) -> frozenset[TaskStatus]:
        """The states that are meant, as far as the other conditions leave any."""
        wanted = frozenset(status for status in TaskStatus if not self.statuses or status in self.statuses)
        if self.error:
            wanted &= TASK_TERMINAL_STATES
        if self.worker:
            wanted -= {TaskStatus.PENDING}
        return wanted

    @property
    def workflows(self) -> frozenset[WorkflowStatus]:
        return frozenset(status for status in WorkflowStatus if not self.statuses or status in self.statuses)

    @property
    def has_code(self) -> bool:
        """Whether all the ended states that are meant always have an error code."""
        return (self.tasks & TASK_TERMINAL_STATES) <= _ALWAYS_WITH_CODE or bool(self.error)


def _quoted(value: str) -> str:
    return f'"{value}"' if re.search(r"\s", value) else value
