"""A producer as a process: sends `chaos_retried` tasks at a steady rate until a file appears; notes those accepted.

python -m tests.support.producer FIRST_KEY PER_SECOND NOTES STOP_FILE
"""

import json
import os
import sys
import time
from pathlib import Path

from horsies.errors import HorsiesError
from tests.support import worker_app


def main(first: str, per_second: str, notes: str, stop: str) -> None:
    with worker_app.build(json.loads(os.environ[worker_app.VARIABLE])) as app:
        task, key = worker_app.register(app).chaos_retried, int(first)
        while not Path(stop).exists():
            began = time.monotonic()
            try:
                handle = task.send(key, 0.02)
            except HorsiesError as error:
                worker_app.note(f"{notes}.failed", f"{time.time()!r} {type(error).__name__}")
                key += 1  # it may have arrived: the next one gets a key of its own
                continue
            worker_app.note(notes, f"{handle.task_id} {key} {time.time()!r}")
            key += 1
            time.sleep(max(0.0, 1 / float(per_second) - (time.monotonic() - began)))


if __name__ == "__main__":
    main(*sys.argv[1:])
