"""Who this worker is, in every row that it writes."""

import os
import socket
import uuid
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Identity:
    """`worker_id` is minted per process start: a restarted worker is another one, and the fence tells them apart."""

    worker_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    hostname: str = field(default_factory=lambda: socket.gethostname()[:255])
    pid: int = field(default_factory=os.getpid)

    @property
    def process_name(self) -> str:
        return f"horsies-worker-{self.pid}"
