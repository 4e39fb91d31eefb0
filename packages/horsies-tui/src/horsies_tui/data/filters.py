"""The filter of a list, as people type it: `queue:mail status:failed,expired name:receipt error:smtp id:0192`.

A bare word is a part of the name, `worker:` is the worker that holds or held a task, `group:` is its group,
`meta:tenant=acme` is a value of its metadata, and a value with spaces stands in quotes. Every condition must hold. A
word that cannot be understood is reported and ignored.
"""

import re
from dataclasses import dataclass, replace
from typing import Final, Self

from horsies.operate.filters import TaskFilter
from horsies.status import TaskStatus, WorkflowStatus

IN_FLIGHT: Final = frozenset({TaskStatus.CLAIMED, TaskStatus.RUNNING})
_ID_CHARS: Final = 36
_MAX_CHARS: Final = 200

_KEYS: Final = {
    "queue": "queue", "q": "queue", "group": "group", "name": "name", "task": "name", "error": "error", "code": "error",
    "id": "id", "worker": "worker", "status": "status", "s": "status", "is": "status", "meta": "meta",
}  # fmt: skip
_TEXTS: Final = ("queue", "group", "name", "error", "id", "worker")
_WORD: Final = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_SHORT: Final = {"waiting": "PENDING", "queued": "PENDING", "done": "COMPLETED", "canceled": "CANCELLED"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """A typed filter; without a condition it selects everything."""

    statuses: frozenset[str] = frozenset()
    queue: str = ""
    group: str = ""
    name: str = ""
    error: str = ""
    id: str = ""
    worker: str = ""
    meta: tuple[tuple[str, str], ...] = ()
    """Keys and values of the metadata, by key."""

    @classmethod
    def parse(cls, text: str) -> tuple[Self, list[str]]:
        """The filter, and the problems of the words that were not understood."""
        found: dict[str, str] = {}
        statuses: set[str] = set()
        meta: dict[str, str] = {}
        problems: list[str] = []
        for word in _WORD.findall(text[:_MAX_CHARS].replace("\0", "")):
            key, colon, value = word.partition(":")
            if not colon:
                key, value = "name", word
            value = value.replace('"', "")
            field = _KEYS.get(key.lower())
            if field is None:
                problems.append(f"{key}: is not one of queue, group, status, name, error, id, worker, meta")
            elif field == "status":
                problems += cls._add_statuses(value, statuses)
            elif field == "meta":
                problems += cls._add_metadata(value, meta)
            elif value:
                found[field] = value if field in ("queue", "group", "worker") else value.lower()
        return cls(statuses=frozenset(statuses), meta=tuple(sorted(meta.items())), **found), problems

    @staticmethod
    def _add_statuses(value: str, to: set[str]) -> list[str]:
        problems: list[str] = []
        for word in filter(None, value.split(",")):
            wanted = _SHORT.get(word.lower(), word.upper())
            hits = {str(status) for status in (*TaskStatus, *WorkflowStatus) if status.startswith(wanted)}
            if not hits:
                problems.append(f"{word} is not a status")
            to |= hits
        return problems

    @staticmethod
    def _add_metadata(pair: str, to: dict[str, str]) -> list[str]:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            return ["metadata has a key and a value: write meta:tenant=acme"]
        if to.setdefault(key, value) != value:
            return [f"meta:{key} has two values, and no task has both"]
        return []

    def __str__(self) -> str:
        parts = [f"status:{','.join(sorted(status.lower() for status in self.statuses))}"] if self.statuses else []
        parts += [f"{name}:{_quoted(getattr(self, name))}" for name in _TEXTS if getattr(self, name)]
        parts += [f"meta:{_quoted(f'{key}={value}')}" for key, value in self.meta]
        return " ".join(parts)

    @property
    def is_empty(self) -> bool:
        return self == Query()

    def toggled(self, status: str) -> "Query":
        """The filter with this status added, or removed if it was there."""
        return replace(self, statuses=self.statuses ^ {status})

    def narrowed(self, field: str, value: str) -> "Query":
        """The filter with this queue, name, error or worker; without it, if it was there already."""
        wanted = (value.lower() if field in ("name", "error") else value).replace('"', "")[:_MAX_CHARS]
        return replace(self, **{field: "" if getattr(self, field) == wanted else wanted})

    # -- as the client's filter ------------------------------------------------------------------

    @property
    def has_text(self) -> bool:
        """Whether it has a condition besides the states."""
        return bool(self.meta) or any(getattr(self, name) for name in _TEXTS)

    @property
    def whole_id(self) -> str | None:
        """A complete id, which is looked up instead of searched."""
        return self.id if len(self.id) == _ID_CHARS else None

    @property
    def filter(self) -> TaskFilter:
        """The same conditions on tasks."""
        return TaskFilter(
            ids=self.whole_id,
            id_start=None if self.whole_id else self.id or None,
            statuses=[status for status in TaskStatus if status in self.statuses] if self.statuses else None,
            queues=self.queue or None,
            group=self.group or None,
            name_part=self.name or None,
            code_part=self.error or None,
            worker_part=self.worker or None,
            metadata=dict(self.meta),
        )

    @property
    def tasks(self) -> frozenset[TaskStatus]:
        """The states in which a task can match."""
        return self.filter.live | self.filter.ended

    @property
    def workflows(self) -> frozenset[WorkflowStatus]:
        """The states in which a run can match."""
        return frozenset(status for status in WorkflowStatus if not self.statuses or status in self.statuses)


def _quoted(value: str) -> str:
    return f'"{value}"' if re.search(r"\s", value) else value
