"""The id, host and process id that a worker writes into its rows."""

import os
import secrets
import socket
import uuid
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Identity:
    """`worker_id` is new at each start: the fences of the statements tell a restarted worker from the former one."""

    worker_id: str = field(default_factory=lambda: str(uuid.uuid4()))
    hostname: str = field(default_factory=lambda: socket.gethostname()[:255])
    pid: int = field(default_factory=os.getpid)
    completion_key: str = field(default_factory=lambda: secrets.token_hex(32), repr=False)
    """With it the worker's children prove that they run an attempt which they complete (`horsies/completing.py`)."""
