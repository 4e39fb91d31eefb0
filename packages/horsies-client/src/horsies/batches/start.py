"""Starts a batch: one statement writes a node for each member, and one for `then`."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeVar

from horsies._checks import Checks
from horsies.batches.handle import THEN, BatchHandle
from horsies.batches.members import Members, Then, check_then, node_row
from horsies.ids import new_id
from horsies.options import check_name
from horsies.workflow.batch_reading import BATCH
from horsies.workflow.run_start import RunStart

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime
    from horsies.workflow.run_options import RunOptions

R = TypeVar("R")
_LEFT_OUT: Final[dict[str, Any]] = {
    "args": None, "kwargs": None, "args_from": None, "ctx_from": None, "min_success": None, "task_options": None,
    "good_until": None, "ttl": None, "sub_name": None, "metadata": None, "dependents": [],
}  # fmt: skip
"""The columns that the rows of a batch leave out."""


class BatchStart(RunStart[BatchHandle[R]]):
    """The start of one batch."""

    kind = "batch"
    content = "list of calls"

    def __init__(
        self,
        app: AppRuntime,
        verb: str,
        calls: Iterable[Any],
        then: Any,
        name: str,
        batch_id: str | None,
        connection: Any,
        options: RunOptions,
    ) -> None:
        super().__init__(app, verb, name, batch_id, connection, options)
        checks = Checks("batch")
        check_name(checks, "name", name)
        self._then = None if then is None else check_then(app, then, checks)
        self._check_options(checks)
        self._members = Members(app, self.label)
        # `then` is node 0: a run's error names its first failed node, and only a failure of `then` fails the batch
        self._members.add_all(calls, "[]" if self._then is None else "[0]")

    def handle(self, written: str | None) -> BatchHandle[R]:
        codec = None if self._then is None else self._then.definition.codec
        return BatchHandle(self.app, written or self.workflow_id, codec=codec)

    def older_fingerprints(self) -> tuple[str | None, ...]:
        return ()

    def values(self) -> tuple[tuple[Any, ...], str]:
        then = self._then
        asked = [self.name, then and then.definition.name, self._members.sha, self._options.identity()]
        sha = self._stored_sha(hashlib.sha256(_dumped(asked).encode()).hexdigest())
        run: dict[str, Any] = {
            "id": self.workflow_id, "name": self.name, "on_error": "fail", "definition_key": BATCH,
            # members that fail do not fail the batch: no case, or that `then` completed
            "output": None if then is None else 0, "success_policy": {"cases": [[] if then is None else [0]]},
            "enqueue_sha": sha, "sent_at": datetime.now(UTC).isoformat(),
            "metadata": None if self._metadata is None else json.loads(self._metadata), "group_key": self._group,
            **self._options.columns(), "release": self.app.config.release,
        }  # fmt: skip
        nodes = ",".join((*(() if then is None else (self._then_row(then),)), *self._members.texts()))
        return (f'{_dumped(run)[:-1]},"nodes":[{nodes}]}}',), sha

    def _then_row(self, then: Then) -> str:
        """It waits for as many nodes as name it as their dependent. It does not name them: a list of 100,000 nodes
        would be read at the end of each."""
        waits: dict[str, Any] = {
            "id": new_id(), "node_id": THEN, "dependents": [], "deps_left": len(self._members), "allow_failed": True,
            "args_from": {then.parameter: {"batch": True}},
        }  # fmt: skip
        return f"{{{node_row(then.plan, [])},{_dumped(waits)[1:]}"

    def statement(self) -> tuple[str, tuple[Any, ...]]:
        """For `horsies.testing`: with every column, and with the dependencies of `then`."""
        sql, (text,) = super().statement()
        run: dict[str, Any] = json.loads(text)
        run["nodes"] = [{**_LEFT_OUT, **node} for node in run["nodes"]]
        if self._then is not None:
            run["nodes"][0]["dependencies"] = list(range(1, len(self._members) + 1))
        return sql, (_dumped(run),)


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
