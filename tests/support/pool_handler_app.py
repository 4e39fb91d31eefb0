"""An app whose import installs a handler for the signal by which a child writes its stacks."""

import os
import signal

from horsies_worker.child.stacks import WRITE_STACKS
from tests.support.pool_async_tasks import async_blocks
from tests.support.pool_kit import App
from tests.support.pool_tasks import noop

app = App()
app.task(async_blocks)
app.task(noop)

if WRITE_STACKS is not None:
    signal.signal(WRITE_STACKS, lambda *_: os._exit(9))
