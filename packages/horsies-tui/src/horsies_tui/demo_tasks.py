"""One task of the demo, and the names, tenants and errors of its shop."""

from dataclasses import dataclass, field
from typing import Any, Final

from horsies.status import TaskStatus

NAMES: Final = {
    "send_receipt": "mail", "send_newsletter": "mail", "charge_card": "payments", "refund": "payments",
    "resize_image": "media", "transcode_video": "media", "rebuild_index": "default", "sync_inventory": "default",
}  # fmt: skip
ERRORS: Final = {
    "mail": ("SMTP_DOWN", "connection refused by mx1"),
    "payments": ("CARD_DECLINED", "the bank declined the card"),
    "media": ("TASK_TIMEOUT", "it ran for longer than 30,000 ms"),
    "default": ("UNHANDLED_EXCEPTION", "KeyError: 'warehouse'"),
}
MESSAGES: Final = {
    **dict(ERRORS.values()), "WORKER_CRASHED": "its worker was judged dead", "TASK_EXPIRED": "not started in time",
    "TASK_CANCELLED": "cancelled",
}  # fmt: skip
TENANTS: Final = ("acme", "globex", "initech")
GROUPED: Final = ("mail", "payments")
"""The queues whose tasks have the tenant as their group."""
RETRY_S: Final = 12.0
"""The seconds from one attempt to the next."""


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
    metadata: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def queue(self) -> str:
        return NAMES.get(self.name, "default")

    @property
    def group(self) -> str | None:
        """Its tenant, in the queues that have groups."""
        return self.metadata.get("tenant") if self.queue in GROUPED else None

    @property
    def claimed(self) -> float | None:
        """When it was claimed, a moment before its start."""
        if self.started is not None:
            return self.started + 0.01
        return self.enqueued - 1 if self.status is TaskStatus.CLAIMED else None

    @property
    def sent(self) -> float:
        """When it was sent, before its first attempt."""
        return self.enqueued + self.retries * RETRY_S

    @property
    def message(self) -> str | None:
        return MESSAGES.get(self.error or "")
