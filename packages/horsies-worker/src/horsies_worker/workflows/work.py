"""`Work`: what the next step of a workflow checks."""

from dataclasses import dataclass, field


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
