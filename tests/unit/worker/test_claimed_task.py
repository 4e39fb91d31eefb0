"""From a claimed row to what the yard needs: whose options count, and what a hostile row can do."""

import logging
from typing import Any

import pytest

from horsies import AppConfig, Horsies, PostgresConfig, RetryPolicy, TaskError, TaskResult
from horsies.options import TaskOptions
from horsies.registry import TaskDefinition
from horsies_worker.claim.claimed_task import ClaimedTask, OwnedTasks, claimed_task, options_of

POLICY = RetryPolicy.fixed(1, max_retries=4, auto_retry_for=["SMTP_DOWN"])


def definition(**options: Any) -> TaskDefinition:
    app = Horsies(AppConfig(PostgresConfig("postgresql://u@localhost/d")))

    @app.task("mail", **options)
    def mail(to: str) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    found = app.registry.get("mail")
    assert found is not None
    return found


def row(**columns: Any) -> dict[str, Any]:
    return {
        "id": "t", "claim_generation": 3, "task_name": "mail", "args": None, "kwargs": '{"to":"x"}',
        "queue_name": "default", "retry_count": 1, "max_retries": 2, "task_options": None,
        "is_workflow_task": False, "metadata": None, "ready_at": 0.0, "snoozes": 0, **columns,
    }  # fmt: skip


def test_a_row_without_options_runs_under_the_registration() -> None:
    found = claimed_task(row(), definition(retry_policy=POLICY, timeout_ms=500), run_ahead=True)
    assert (found.job.task_id, found.job.generation, found.job.attempt) == ("t", 3, 2)
    assert (found.job.args, found.job.kwargs) == (None, '{"to":"x"}')
    assert (found.job.timeout_ms, found.job.run_ahead, found.job.is_async) == (500, True, False)
    assert found.options.retry_policy == POLICY
    assert found.max_retries == 4


def test_a_row_with_options_is_run_as_its_sender_wrote() -> None:
    options = TaskOptions(timeout_ms=9_000, run_ahead=False)
    found = claimed_task(row(task_options=options.to_json()), definition(retry_policy=POLICY), run_ahead=True)
    assert (found.job.timeout_ms, found.job.run_ahead) == (9_000, False)
    assert found.options.retry_policy is None
    assert found.max_retries == 2


def test_the_workers_own_switch_turns_run_ahead_off() -> None:
    assert claimed_task(row(), definition(), run_ahead=False).job.run_ahead is False


@pytest.mark.parametrize(
    "text",
    ["", "null", "[]", '"x"', "{", '{"timeout_ms":-1}', '{"timeout_ms":"soon"}', '{"retry_policy":{}}',
     '{"retry_policy":{"strategy":"fixed","max_retries":1e9}}', '{"run_ahead":3}', "9" * 5_000, "[" * 5_000],
)  # fmt: skip
def test_options_that_cannot_be_read_do_not_stop_the_task(text: str, caplog: pytest.LogCaptureFixture) -> None:
    registered = TaskOptions(timeout_ms=500)
    with caplog.at_level(logging.WARNING, "horsies.worker"):
        assert options_of("mail", text, registered)[0] is registered
    assert "'mail'" in caplog.text


def test_unreadable_options_leave_the_budget_of_the_row() -> None:
    """The registration's policy is used, but the sender's limit stands."""
    assert claimed_task(row(task_options="{"), definition(retry_policy=POLICY), run_ahead=True).max_retries == 2


def held_task(task_id: str, generation: int) -> ClaimedTask:
    return claimed_task(row(id=task_id, claim_generation=generation), definition(), run_ahead=True)


def test_what_is_held_is_one_claim_of_a_task() -> None:
    held, first, second = OwnedTasks(), held_task("t", 1), held_task("t", 2)
    held.add([first, held_task("u", 1)])
    held.add([second])
    assert len(held) == 2
    assert held.find("t", 1) is None
    assert held.find("t", 2) is held.get("t") is second
    held.drop([first.job])
    assert held.get("t") is second
    held.drop([second.job, second.job])
    assert [task.job.task_id for task in held] == ["u"]
