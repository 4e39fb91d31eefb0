"""For tests of apps that use horsies: record what is sent, run one task, run everything that is sent at once, or work
off what is in a real database.

    with testing.recorded(app) as sends:
        sign_up("ada@example.org")
    sends.assert_sent(send_welcome, "ada@example.org")

`recorded` needs the client alone; `run`, `inline` and `real` need `pip install horsies-client[testing]`.
docs/guides/testing.md explains all of it.
"""

from horsies.crash_points import crash_point
from horsies.testing.crashing import Crash, crash_at
from horsies.testing.inlining import inline
from horsies.testing.one_task import OneTask, run, run_as, run_async
from horsies.testing.real import TestDatabase, real
from horsies.testing.recording import recorded
from horsies.testing.records import Attempt, DrainReport, SentSignal, SentTask, StartedWorkflow
from horsies.testing.sends import Sends

__all__ = [
    "Attempt",
    "Crash",
    "DrainReport",
    "OneTask",
    "Sends",
    "SentSignal",
    "SentTask",
    "StartedWorkflow",
    "TestDatabase",
    "crash_at",
    "crash_point",
    "inline",
    "real",
    "recorded",
    "run",
    "run_as",
    "run_async",
]
