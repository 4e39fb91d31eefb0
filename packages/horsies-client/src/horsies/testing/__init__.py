"""For tests of apps that use horsies: record what is sent, run one task, or run everything that is sent at once.

    with testing.recorded(app) as sends:
        sign_up("ada@example.org")
    sends.assert_sent(send_welcome, "ada@example.org")

`recorded` needs the client alone; `run` and `inline` need `pip install horsies-client[testing]`. docs/guides/testing.md
explains all of it.
"""

from horsies.testing.inlining import inline
from horsies.testing.one_task import OneTask, run, run_as, run_async
from horsies.testing.recording import recorded
from horsies.testing.records import Attempt, SentSignal, SentTask, StartedWorkflow
from horsies.testing.sends import Sends

__all__ = [
    "Attempt",
    "OneTask",
    "Sends",
    "SentSignal",
    "SentTask",
    "StartedWorkflow",
    "inline",
    "recorded",
    "run",
    "run_as",
    "run_async",
]
