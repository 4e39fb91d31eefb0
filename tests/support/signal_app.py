"""The app of `worker_app`, behind an import that changes what signals do, as recipes on the web tell."""

import os
import signal

from tests.support.worker_app import app

match os.environ.get("HORSIES_TEST_SIGNALS"):
    case "pipe":  # against the traceback of `program | head`
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    case "child":  # against zombies
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    case "blocked":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})

__all__ = ["app"]
