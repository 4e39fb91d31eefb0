"""One schedule's tasks, what its actors saw, and the verdict: one owner, one end, no lost task."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from horsies import Horsies, RetryPolicy
from horsies.ids import new_id
from horsies.registry import Registry
from horsies.status import TaskStatus
from horsies_worker.database.queries import Queries
from horsies_worker.database.transition import Transition
from horsies_worker.identity import Identity
from horsies_worker.liveness.recovery import Recovery
from tests.support.apps import UNREACHABLE, add_task, make_app
from tests.support.hands import Hands, end_of
from tests.support.postgres import Database

OWNER = "w1"
OLD = "statement_timestamp() - interval '1 hour'"
_NOW = "statement_timestamp()"
_LONG_AGO = f"{_NOW} - interval '3 days'"
_HELD = {
    "enqueued_at": "statement_timestamp() - interval '2 hours'", "claim_generation": "1",
    "claimed_by_worker_id": "'{owner}'",
}  # fmt: skip
_STAGED = '\'{"ok":"{token}"}\''
STATES: Mapping[str, Mapping[str, str]] = {
    "PENDING": {},
    "OVERDUE": {"good_until": "statement_timestamp() - interval '1 second'"},
    "CLAIMED": {
        **_HELD, "status": "'CLAIMED'", "claimed": "true", "claimed_at": "statement_timestamp() - interval '1 second'",
        "claim_expires_at": "statement_timestamp() + interval '2 minutes'",
    },
    "CLAIMED_STALE": {
        **_HELD, "status": "'CLAIMED'", "claimed": "true", "claimed_at": OLD,
        "claim_expires_at": "statement_timestamp() + interval '2 minutes'",
    },
    "RUNNING": {**_HELD, "status": "'RUNNING'", "claimed_at": OLD, "started_at": f"{_NOW} - interval '1 second'"},
    "RUNNING_STALE": {**_HELD, "status": "'RUNNING'", "claimed_at": OLD, "started_at": OLD},
    "STAGED_STALE": {
        **_HELD, "status": "'RUNNING'", "claimed_at": OLD, "started_at": OLD, "finalizing_at": OLD,
        "finalizing_by_worker_id": "'{owner}'", "result": _STAGED,
    },
    "FAILED": {
        **_HELD, "status": "'FAILED'", "enqueued_at": f"{_NOW} - interval '4 days'", "claimed_at": _LONG_AGO,
        "started_at": _LONG_AGO, "failed_at": _LONG_AGO, "terminal_at": _LONG_AGO, "error_code": "'SMTP_DOWN'",
        "result": "'{\"err\":{\"error_code\":\"SMTP_DOWN\",\"message\":\"down\",\"data\":null}}'",
    },
}  # fmt: skip
"""The columns of a task in each state, as SQL."""

_numbers = count(1)
_tokens = count(1)


class Wrong(AssertionError):
    """A program saw what must not be."""


def app(where: Database | str = UNREACHABLE) -> Horsies:
    """Its task `add` is retried after errors and crashes."""
    made = make_app(where)
    policy = RetryPolicy.fixed(0, 3, auto_retry_for=["SMTP_DOWN", "WORKER_CRASHED"])
    add_task(made, retry_policy=policy)
    return made


@dataclass
class Play:
    """The tasks of one schedule, in a queue of their own."""

    state: str
    registry: Registry
    tasks: int = 1
    mutants: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    """Statement -> the parts of its text that are replaced, each with what takes its place."""

    def __post_init__(self) -> None:
        self.number = next(_numbers)
        self.queue = f"q{self.number}"
        self.ids = sorted(new_id() for _ in range(self.tasks))
        self.rows: list[dict[str, Any]] = []
        self.ends: dict[str, Transition] = {}
        """The end of the run that the first owner made, by task."""
        self.runs: list[tuple[str, str]] = []
        """(task, token) of each run of user code."""
        self.owners: dict[str, set[str]] = {}
        self.accepted: list[tuple[str, int, str, str]] = []
        """(task, attempt, token, status) of each end that the database took."""
        self.staged: list[tuple[str, str]] = []
        self.given_up: set[str] = set()
        self.cancelled: set[str] = set()
        """Tasks that were cancelled before they started."""
        self.sees_deletion = False
        self.paused_at: int | None = None
        """The number of the choice after which the queue was paused."""
        self.notes: list[str] = []

    def worker(self, name: str) -> str:
        return f"{name}-{self.number}"

    def identity(self, name: str) -> Identity:
        return Identity(self.worker(name), "host-1", 4711, f"key-{name}")

    def hands(self, connection: Any, name: str = OWNER) -> Hands:
        hands = Hands(connection, self.identity(name))
        mutate(hands.queries, self.mutants)
        return hands

    def recovery(self, queries: Queries) -> Recovery:
        return Recovery(queries, self.registry)

    async def set_up(self, connection: Any) -> None:
        for task_id in self.ids:
            token = self.new_token()
            columns = {
                name: text.replace("{owner}", self.worker(OWNER)).replace("{token}", token)
                for name, text in STATES[self.state].items()
            }
            columns.setdefault("enqueued_at", "statement_timestamp() - interval '1 second'")
            columns |= {"created_at": columns["enqueued_at"], "max_retries": "3"}
            await connection.execute(
                f"INSERT INTO horsies_tasks (id, task_name, queue_name, kwargs, {', '.join(columns)})"
                f" VALUES ('{task_id}', 'add', '{self.queue}', '{{\"a\":1}}', {', '.join(columns.values())})"
            )
            row = {"id": task_id, "claim_generation": 1, "retry_count": 0, "max_retries": 3}
            self.rows.append(row)
            if self.state == "FAILED":
                await connection.execute(
                    "INSERT INTO horsies_task_attempts (task_id, attempt, outcome, error_code, started_at, finished_at)"
                    " SELECT id, 1, 'FAILED', error_code, started_at, failed_at FROM horsies_tasks"
                    f" WHERE id = '{task_id}'"
                )
            elif self.state.startswith(("RUNNING", "STAGED")):
                self.ends[task_id] = self.end(row, token)
                self.began(task_id, OWNER, token)
                if self.state.startswith("STAGED"):
                    self.staged.append((task_id, token))
        await connection.execute(
            "INSERT INTO horsies_worker_instances (worker_id, period_ms, completion_key, beats)"
            f" VALUES ('{self.worker(OWNER)}', 1000, 'key-{OWNER}', 1)"
        )

    def new_token(self) -> str:
        return f"t{next(_tokens)}"

    def end(self, row: Mapping[str, Any], token: str, status: TaskStatus = TaskStatus.COMPLETED, **fields: Any) -> Any:
        if status is TaskStatus.COMPLETED:
            fields["result"] = json.dumps({"ok": token}, separators=(",", ":"))
        return end_of(row, status, process_name=token, **fields)

    # -- what programs tell --------------------------------------------------------------------------

    def began(self, task_id: str, worker: str, token: str) -> None:
        """User code runs."""
        others = self.owners.setdefault(task_id, set())
        if others and task_id not in self.given_up:
            raise Wrong(f"{worker} runs {task_id}, which {others} runs")
        if task_id in self.cancelled:
            raise Wrong(f"{worker} runs {task_id}, which was cancelled before it started")
        others.add(worker)
        self.runs.append((task_id, token))

    def over(self, task_id: str, worker: str) -> None:
        self.owners.get(task_id, set()).discard(worker)

    def cancel(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.cancelled |= {row["id"] for row in rows if row["outcome"] == "CANCELLED"}

    def give_up(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """The owner of these is thought to be dead, so that another worker may run them."""
        self.given_up |= {row["id"] for row in rows}

    def accept(self, task_id: str, attempt: int, token: str, status: str) -> None:
        """The database took this end of the attempt with this number."""
        self.accepted.append((task_id, attempt, token, status))

    # -- the verdict ---------------------------------------------------------------------------------

    async def settle(self, connection: Any) -> None:
        """What the fleet does in the end: give up what is still held, and run what waits."""
        hands = Hands(connection, self.identity("last"))
        await connection.execute("DELETE FROM horsies_queue_state WHERE queue_name = $1", self.queue)
        for _ in range(6):
            await connection.execute(
                "UPDATE horsies_tasks SET status = 'PENDING', claimed = false, claimed_at = NULL, "
                "claim_expires_at = NULL, claimed_by_worker_id = NULL WHERE queue_name = $1 AND status = 'CLAIMED'",
                self.queue,
            )  # fmt: skip
            await connection.execute(
                "UPDATE horsies_tasks SET enqueued_at = statement_timestamp(), next_retry_at = NULL"
                " WHERE queue_name = $1 AND status = 'PENDING' AND enqueued_at > statement_timestamp()", self.queue,
            )  # fmt: skip
            async with connection.transaction():
                zero = "0 seconds"
                stale = await connection.fetch(
                    hands.queries.sql("stale_running").replace("$1::interval", f"interval '{zero}'")
                    .replace("$2::interval", f"interval '{zero}'").replace("$3", "100")
                )  # fmt: skip
                await self.recovery(hands.queries).end(connection, stale, "the schedule is over")
            rows = await hands.claim(discover=[self.queue])
            for row in rows:
                if row["status"] == "RUNNING":
                    token = self.new_token()
                    self.runs.append((row["id"], token))
                    written = await hands.finalize([self.end(row, token)])
                    if row["id"] in written:
                        self.accept(row["id"], row["retry_count"] + 1, token, written[row["id"]])
            left = await connection.fetchval(
                "SELECT count(*) FROM horsies_tasks WHERE queue_name = $1 AND terminal_at IS NULL", self.queue
            )
            if not left:
                return

    async def judge(self, connection: Any) -> list[str]:
        """What is wrong, beside the invariants."""
        problems = list(self.notes)
        found = await connection.fetch("SELECT * FROM horsies_tasks WHERE queue_name = $1", self.queue)
        tasks = {row["id"]: row for row in found}
        attempts = await connection.fetch(
            "SELECT * FROM horsies_task_attempts WHERE task_id = ANY ($1::text[])", self.ids
        )
        for task_id in self.ids:
            row = tasks.get(task_id)
            own = [one for one in attempts if one["task_id"] == task_id]
            if row is None:
                problems += [] if self.sees_deletion else [f"{task_id} is lost"]
                continue
            problems += self._judge(task_id, row, own)
        return problems

    def _judge(self, task_id: str, row: Mapping[str, Any], attempts: Sequence[Mapping[str, Any]]) -> list[str]:
        problems: list[str] = []
        if row["terminal_at"] is None:
            problems.append(f"{task_id} is left {row['status']}")
        accepted = [end[1:] for end in self.accepted if end[0] == task_id]
        tokens = {token for task, token in self.runs if task == task_id}
        done = [token for _, token, status in accepted if status == "COMPLETED"]
        if len(done) > 1:
            problems.append(f"{task_id} was completed {len(done)} times")
        if done and row["status"] != "COMPLETED":
            problems.append(f"{task_id} was completed, and is {row['status']}")
        if row["status"] == "COMPLETED":
            token = json.loads(row["result"])["ok"]
            staged = {one for task, one in self.staged if task == task_id}
            if token not in tokens or (done and token != done[0]) or (not done and token not in staged):
                problems.append(f"{task_id} has the result {token!r}; runs {tokens}, completed {done}, staged {staged}")
        recorded = [
            (one["worker_process_name"], one["attempt"])
            for one in attempts
            if one["outcome"] in ("COMPLETED", "FAILED")
        ]
        for attempt, token, status in accepted:
            found = [number for name, number in recorded if name == token]
            if status != "SNOOZED" and found != [attempt]:
                problems.append(f"{task_id}: the end {token} ({status}) of attempt {attempt} is that of {found}")
        before = int(self.state == "FAILED")
        snoozed = sum(status == "SNOOZED" for *_, status in accepted)
        if len(tokens) > len(attempts) - before + snoozed:
            problems.append(f"{task_id} ran {len(tokens)} times, and has {len(attempts) - before} attempts")
        return problems


def mutate(queries: Queries, mutants: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    """Take a fence out of a statement, to see that the judgement finds what follows."""
    for name in mutants.keys() & queries.statements.keys():
        for old, new in mutants[name]:
            statement = queries.statements[name]
            assert old in statement.sql, f"{name} has no {old!r}"
            queries.statements[name] = replace(statement, sql=statement.sql.replace(old, new))
