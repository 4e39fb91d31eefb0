"""What all starts of runs share: the options, the id, and the statement that writes the run once."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from horsies._checks import Checks
from horsies._pg.statements import load
from horsies.errors import ConfigurationError, SendErrorCode, TaskSendError
from horsies.groups import plain
from horsies.ids import ID_FIX, id_problem, new_id
from horsies.metadata import NOTHING
from horsies.new_tasks import fingerprint
from horsies.payload_codec import PayloadError
from horsies.send import Send, outgoing

if TYPE_CHECKING:
    from horsies._pg.enqueue import ExecuteAsync
    from horsies._runtime import AppRuntime
    from horsies.workflow.run_options import RunOptions

H = TypeVar("H")
MAX_BYTES: Final = 64 * 1024 * 1024
"""The limit for the arguments and nested graphs of a run, which one statement carries."""
_RACES: Final = 5


class RunStart(Send[H]):
    """The start of a run: of a workflow, or of a batch."""

    kind = "workflow"
    content = "graph"

    def __init__(
        self, app: AppRuntime, verb: str, name: str, workflow_id: str | None, connection: Any, options: RunOptions
    ) -> None:
        if workflow_id is not None and (why := id_problem(workflow_id)):
            raise TaskSendError(SendErrorCode.VALIDATION_FAILED, f"{self.kind}_id: {why}: {ID_FIX}")
        self.name = name
        self.workflow_id = workflow_id or new_id()
        super().__init__(app, verb, connection, [self.workflow_id])
        self._options = options
        self._given_metadata = options.metadata or NOTHING
        self._metadata: str | None = None
        self._plain_sha: str | None = None
        """With a payload codec: the fingerprint that an app without one gives this start."""

    @abstractmethod
    def values(self) -> tuple[tuple[Any, ...], str]:
        """The values of the statement, and the fingerprint of the start."""

    @abstractmethod
    def older_fingerprints(self) -> tuple[str | None, ...]:
        """The fingerprints that older clients gave the same start."""

    def _check_options(self, checks: Checks) -> None:
        self._options.check(checks)
        if checks.problems:
            problem = ConfigurationError(checks.problems, subject=checks.subject)
            raise TaskSendError(SendErrorCode.VALIDATION_FAILED, str(problem))
        self._group = plain(self._options.group)

    def announced(self, schedule: str | None = None) -> Self:
        """Call the middleware's `on_send`, before the first try."""
        self._metadata, self.outgoing = outgoing(
            self.app, self.name, self.ids, NOTHING, self._given_metadata, queue_name=None, is_workflow=True,
            schedule=schedule, groups=[self._group],
        )  # fmt: skip
        return self

    @property
    def label(self) -> str:
        return f"{self.kind} {self.name!r}"

    def _refuse_above(self, size: int) -> None:
        if size > MAX_BYTES:
            raise TaskSendError(
                SendErrorCode.VALIDATION_FAILED,
                f"{self.label} is {size:,} bytes of {self.content} and arguments, the limit is {MAX_BYTES:,}: "
                "store large data elsewhere and send its address",
            )

    def _stored_sha(self, sha: str) -> str:
        """What the row keeps of the fingerprint of this start."""
        codec = self.app.config.payload_codec
        if codec is None:
            return sha
        self._plain_sha = sha
        try:
            return fingerprint(codec, sha)
        except PayloadError as error:
            raise TaskSendError(SendErrorCode.VALIDATION_FAILED, f"{self.label}: {error}") from error

    def statement(self) -> tuple[str, tuple[Any, ...]]:
        """SQL and values that write the run. The statement returns no row when the id exists already."""
        return self._sql("start_workflow"), self.values()[0]

    def _sql(self, name: str) -> str:
        return load("horsies._pg", "workflows.sql", self.app.schema)[name].sql

    async def write(self, execute: ExecuteAsync) -> str | None:
        """Write the run. Returns the id of the live run that holds its unique key, if there is one."""
        values, sha = self.values()
        for _ in range(_RACES):
            if await execute(self._sql("start_workflow"), *values):
                return None
            found = await execute(self._sql("find_workflow"), self.workflow_id)
            if found:
                if found[0][1] not in (sha, self._plain_sha) and found[0][1] not in self.older_fingerprints():
                    raise TaskSendError(
                        SendErrorCode.PAYLOAD_MISMATCH,
                        f"{self.kind} id {self.workflow_id} is taken by another {self.content} or other arguments; it "
                        "was left untouched",
                        task_ids=[self.workflow_id],
                    )
                return None
            if (key := self._options.unique_key) is not None:
                holder = await execute(self._sql("find_unique_workflow"), self.name, key)
                if holder:
                    return holder[0][0]
        raise TaskSendError(
            SendErrorCode.ENQUEUE_FAILED,
            f"{self.label}: another transaction that cannot be seen from here holds its id",
            task_ids=[self.workflow_id],
        )
