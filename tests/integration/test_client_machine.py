"""Hypothesis sends, cancels, signals and lets time pass through the client; a pure model says what becomes of it."""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from horsies import (
    CancelResult,
    Horsies,
    RetryPolicy,
    TaskError,
    TaskResult,
    current_task,
    snooze,
    testing,
    wait_for_signal,
)
from tests.support import invariants, postgres
from tests.support.apps import make_app
from tests.support.models.sends import RETRY_S, SNOOZE_S, Key, Producers
from tests.support.postgres import Database

EXAMPLES = int(os.environ.get("HORSIES_TEST_FUZZ", "0"))
HOUR = timedelta(hours=1)
KINDS = st.sampled_from(["ok", "fail", "flaky", "snooze"])
Number = TaskResult[int, TaskError]


def build(db: Database, ran: dict[str, list[int]]) -> tuple[Horsies, Any]:
    app = make_app(db)

    @app.task("work", retry_policy=RetryPolicy.fixed(RETRY_S, 1, auto_retry_for=["AGAIN"]))
    def work(kind: str, value: int) -> Number:
        task = current_task()
        ran.setdefault(task.task_id, []).append(value)
        if kind == "fail":
            return TaskResult(err=TaskError("NO", "as it was asked"))
        if kind == "flaky" and task.attempt == 1:
            return TaskResult(err=TaskError("AGAIN", "as it was asked"))
        if kind == "snooze" and task.snoozes == 0:
            return snooze(timedelta(seconds=SNOOZE_S))
        return TaskResult(ok=value)

    return app, work


class Ground:
    def __init__(self, db: Database) -> None:
        self.db = db
        self.ran: dict[str, list[int]] = {}
        self.app, self.work = build(db, self.ran)
        self.block = testing.real(self.app, in_place=True)
        self.database = self.block.__enter__()

    def close(self) -> None:
        self.block.__exit__()
        self.app.close()


ground: Ground


class ClientMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        postgres.empty(ground.db)
        ground.ran.clear()
        self.model = Producers()
        self.handles: dict[str, Any] = {}
        self.runs: dict[str, Any] = {}
        self.count = 0

    def _keep(self, handle: Any, kind: str, delay: float) -> None:
        self.handles[handle.task_id] = handle
        self.model.sent(handle.task_id, kind, delay, self.count)

    @rule(kind=KINDS, delay=st.sampled_from([0, 1_800]))
    def send(self, kind: str, delay: int) -> None:
        self.count += 1
        task = ground.work.with_options(delay=timedelta(seconds=delay)) if delay else ground.work
        self._keep(task.send(kind, self.count), kind, delay)

    @rule(key=st.sampled_from(["a", "b"]))
    def send_unique(self, key: str) -> None:
        """The key is taken for two hours, whatever becomes of the task."""
        self.count += 1
        held = self.model.holder(f"u-{key}", "unique_for")
        handle = ground.work.with_options(unique_key=f"u-{key}", unique_for=2 * HOUR).send("ok", self.count)
        if held is None:
            assert handle.task_id not in self.model.tasks
            self._keep(handle, "ok", 0)
            self.model.keys[f"u-{key}"] = Key(handle.task_id, self.model.now + 7_200)
        else:
            assert handle.task_id == held

    @rule(key=st.sampled_from(["a", "b"]))
    def send_replacing(self, key: str) -> None:
        """A task that waits takes over the arguments; otherwise there is a new one."""
        self.count += 1
        held = self.model.holder(f"r-{key}", "replace")
        sender = ground.work.with_options(unique_key=f"r-{key}", on_conflict="replace", delay=HOUR)
        handle = sender.send("ok", self.count)
        if held is None:
            assert handle.task_id not in self.model.tasks
            self._keep(handle, "ok", 3_600)
            self.model.keys[f"r-{key}"] = Key(handle.task_id, self.model.now)
        else:
            assert handle.task_id == held
            task = self.model.tasks[held]
            task.value, task.due = self.count, self.model.now + 3_600

    @precondition(lambda self: self.handles)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        task_id = data.draw(st.sampled_from(sorted(self.handles)))
        result = self.handles[task_id].cancel()
        assert (result is CancelResult.CANCELLED) == self.model.cancel(task_id)

    @rule(minutes=st.sampled_from([2, 40, 150]))
    def advance(self, minutes: int) -> None:
        ground.database.advance(timedelta(minutes=minutes))
        self.model.now += minutes * 60

    @rule()
    def drain(self) -> None:
        ground.database.drain()
        self.model.drain()

    @rule()
    def start_a_run(self) -> None:
        run = ground.app.workflow("waits", [wait_for_signal("go", int, node_id="go")]).start()
        self.runs[run.workflow_id] = run
        self.model.runs[run.workflow_id] = "waits"

    @precondition(lambda self: self.runs)
    @rule(data=st.data())
    def signal(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.runs)))
        if self.model.runs[run_id] == "waits":
            ground.database.signal(self.runs[run_id], "go", 1)
            self.model.runs[run_id] = "signalled"

    @invariant()
    def rows_are_those_of_the_model(self) -> None:
        if not hasattr(self, "model"):
            return
        found = dict(ground.db.execute("SELECT id, status FROM horsies_tasks"))
        assert found == {task_id: task.status for task_id, task in self.model.tasks.items()}
        assert ground.ran == {one: task.ran_with for one, task in self.model.tasks.items() if task.ran_with}
        ended = {one for (one,) in ground.db.execute("SELECT id FROM horsies_workflows WHERE status = 'COMPLETED'")}
        assert ended == {one for one, state in self.model.runs.items() if state == "COMPLETED"}

    def teardown(self) -> None:
        assert invariants.check(ground.db, slack_s=1e6, settled=False) == []


@pytest.fixture
def on_ground(db: Database) -> Iterator[None]:
    global ground
    ground = Ground(db)
    yield
    ground.close()


@pytest.mark.breaks("T7", "T8")
@pytest.mark.usefixtures("on_ground")
@pytest.mark.timeout(36_000)
def test_verbs_do_what_the_model_says() -> None:
    run_state_machine_as_test(
        ClientMachine,
        settings=settings(
            max_examples=EXAMPLES or 6,
            stateful_step_count=40 if EXAMPLES else 15,
            derandomize=not EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        ),
    )
