"""An app whose import installs a handler for the signal by which a child writes its stacks."""

import os
import signal

from horsies_worker.child.stacks import WRITE_STACKS
from tests.support import pool_apps

app = pool_apps.App()
app.task(pool_apps.async_blocks)
app.task(pool_apps.noop)

if WRITE_STACKS is not None:
    signal.signal(WRITE_STACKS, lambda *_: os._exit(9))
