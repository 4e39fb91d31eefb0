"""Tasks of a name that this worker does not know: handed back with a delay, since a rolling deploy may be under way;
failed when that has gone on for the grace. Nothing is ever imported by a name in a row.
"""

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final

from horsies_worker.child.logs import about
from horsies_worker.finalizer import Finalizer

_log = logging.getLogger("horsies.worker")

HAND_BACK_MS: Final = 5_000
_MAX_KNOWN: Final = 10_000


class UnknownNames:
    def __init__(self, grace_ms: int, finalizer: Finalizer, *, fail: Callable[[Mapping[str, Any]], None]) -> None:
        self._grace_s = grace_ms / 1000
        self._hand_back_ms = min(HAND_BACK_MS, max(grace_ms, 100))  # a short grace is meant to be short
        self._finalizer = finalizer
        self._fail = fail
        # by task: a task that meets this worker for the first time has its whole grace before it
        self._first_met: OrderedDict[str, float] = OrderedDict()
        self._told: set[str] = set()

    def met(self, row: Mapping[str, Any]) -> None:
        """A claimed row (CLAIMED, never run) of a name that is not registered here."""
        task_id, name = row["id"], row["task_name"]
        now = time.monotonic()
        since = self._first_met.setdefault(task_id, now)
        if len(self._first_met) > _MAX_KNOWN:
            self._first_met.popitem(last=False)
        if now - since >= self._grace_s:
            del self._first_met[task_id]
            self._fail(row)
            return
        if name not in self._told:
            self._told.add(name)
            _log.warning(
                "task %s: no task named %r is registered here; it is handed back for %.0f s, then fails "
                "WORKER_RESOLUTION_ERROR. Does this worker run the right release?", task_id, name, self._grace_s,
                extra=about(task_id, name),
            )  # fmt: skip
        self._finalizer.give_back([(task_id, row["claim_generation"])], delay_ms=self._hand_back_ms)
