"""`Work`: what the next step of a workflow checks. `RunStatements`: the statements of one step."""

from dataclasses import dataclass, field
from typing import Any

from horsies.envelopes import PLAIN_ENVELOPES, Envelopes
from horsies_worker.database.queries import Queries


@dataclass
class Work:
    """What a step checks: ended tasks and ended workflows inside; with `ready`, nodes left to be enqueued; with
    `paused`, paused workflows inside; with `signals`, new signals; with `whole`, everything that is under way, and
    clocks that have come."""

    task_ids: list[str] = field(default_factory=list[str])
    child_ids: list[str] = field(default_factory=list[str])
    ready: bool = False
    paused: bool = False
    signals: bool = False
    whole: bool = False

    def add(self, more: "Work") -> None:
        self.task_ids += more.task_ids
        self.child_ids += more.child_ids
        self.ready |= more.ready
        self.paused |= more.paused
        self.signals |= more.signals
        self.whole |= more.whole


@dataclass(frozen=True, slots=True)
class RunStatements:
    """Runs statements about one run, in the transaction of its step."""

    queries: Queries
    connection: Any
    workflow_id: str
    envelopes: Envelopes = PLAIN_ENVELOPES

    async def fetch(self, name: str, *values: Any) -> list[Any]:
        return await self.queries.fetch(self.connection, name, self.workflow_id, *values)
