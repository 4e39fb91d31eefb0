"""`decide` for every way an attempt can end, under every policy and budget."""

from typing import Any

import pytest
from hypothesis import given, strategies as st

from horsies import OperationalErrorCode, RetryPolicy
from horsies.codec import decode_untyped_result
from horsies.options import TaskOptions
from horsies.status import TRANSITIONS, AttemptOutcome, Edge, TaskStatus
from horsies_worker.child.outcome import Outcome, OutcomeKind
from horsies_worker.database.transition import Transition
from horsies_worker.finish.decide import MAX_RETRY_MS, NO_RETRY, decide

BEGAN, ENDED = 1_704_067_200.0, 1_704_153_600.0

CODES = {
    OutcomeKind.OK: None,
    OutcomeKind.ERR: "SMTP_DOWN",
    OutcomeKind.TIMEOUT: "TASK_TIMEOUT",
    OutcomeKind.CANCELLED: "TASK_CANCELLED",
    OutcomeKind.CRASHED: "WORKER_CRASHED",
    OutcomeKind.INTERRUPTED: "WORKER_CRASHED",
    OutcomeKind.SNOOZED: "TASK_SNOOZED",
}

# without a retry: the state of the task, and the recorded outcome of its attempt
ENDS = {
    OutcomeKind.OK: (TaskStatus.COMPLETED, AttemptOutcome.COMPLETED),
    OutcomeKind.ERR: (TaskStatus.FAILED, AttemptOutcome.FAILED),
    OutcomeKind.TIMEOUT: (TaskStatus.FAILED, AttemptOutcome.FAILED),
    OutcomeKind.CANCELLED: (TaskStatus.CANCELLED, AttemptOutcome.FAILED),
    OutcomeKind.CRASHED: (TaskStatus.FAILED, AttemptOutcome.WORKER_FAILURE),
    OutcomeKind.INTERRUPTED: (TaskStatus.FAILED, AttemptOutcome.WORKER_FAILURE),
    OutcomeKind.SNOOZED: (TaskStatus.PENDING, None),
}

ALL_CODES = sorted({code for code in CODES.values() if code})
POLICIES = {
    "none": None,
    "lists it": RetryPolicy.fixed(7, max_retries=3, auto_retry_for=ALL_CODES),
    "lists others": RetryPolicy.fixed(7, max_retries=3, auto_retry_for=["DISK_FULL"]),
}


def outcome(kind: OutcomeKind, **fields: Any) -> Outcome:
    code = CODES[kind]
    values: dict[str, Any] = {
        "result": '{"ok":1}' if code is None else f'{{"err":"{code}"}}', "error_code": code,
        "error_message": code and "what went wrong", "failed_reason": code and "why", "retry_after_ms": None,
        "started_mono": 10.0, "finished_mono": 11.0, "pid": 4711, "process_name": "child-1",
    }  # fmt: skip
    return Outcome(kind=kind, **{**values, **fields})


def decided(
    ended: Outcome, policy: RetryPolicy | None, *, attempt: int = 1, budget: int = 3, store_result: bool = True
) -> Transition:
    options = TaskOptions(retry_policy=policy, store_result=store_result)
    return decide(
        task_id="t", generation=5, attempt=attempt, options=options, budget=budget,
        outcome=ended, started=None if ended.started_mono is None else BEGAN, finished=ENDED, random=lambda: 0.5,
    )  # fmt: skip


@pytest.mark.parametrize("kind", OutcomeKind)
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(("attempt", "budget"), [(1, 0), (1, 1), (2, 1), (1, 3), (3, 3), (4, 3)])
@pytest.mark.parametrize("retry_after", [None, 0, 90_000, 10**15])
def test_the_table(kind: OutcomeKind, policy: str, attempt: int, budget: int, retry_after: int | None) -> None:
    ended = outcome(kind, retry_after_ms=retry_after)
    found = decided(ended, POLICIES[policy], attempt=attempt, budget=budget)
    status, recorded = ENDS[kind]
    retried = status is TaskStatus.FAILED and policy == "lists it" and attempt <= budget
    assert found.status is (TaskStatus.PENDING if retried else status)
    assert found.recorded is recorded
    expected = 7_000 if retry_after is None else min(retry_after, MAX_RETRY_MS)
    if kind is OutcomeKind.SNOOZED:
        retried, expected = True, min(retry_after or 1, MAX_RETRY_MS)
    assert found.retry_delay_ms == (expected if retried else NO_RETRY)


def test_everything_else_is_carried_over() -> None:
    ended = outcome(OutcomeKind.ERR)
    found = decided(ended, None)
    assert found == Transition(
        task_id="t", generation=5, attempt=1, status=TaskStatus.FAILED, outcome=ended, recorded=AttemptOutcome.FAILED,
        retry_delay_ms=0, budget=3, started=BEGAN, finished=ENDED,
    )  # fmt: skip
    assert found.outcome is ended
    assert found.size == len(ended.result) + len("what went wrong") + len("why") + 300


@pytest.mark.parametrize("kind", OutcomeKind)
@pytest.mark.parametrize("text", ['{"ok":7}', '{"ok":null}', '{"ok":{"continue":1}}', '{"continue":{"nodes":[]}}'])
def test_a_value_is_dropped_on_request_and_nothing_else(kind: OutcomeKind, text: str) -> None:
    ended = outcome(kind)
    if kind is OutcomeKind.OK:
        ended.result = text
    kept = decided(ended, None)
    assert kept.result == ended.result
    dropped = decided(ended, None, store_result=False)
    is_value = kind is OutcomeKind.OK and text not in ('{"ok":null}', '{"continue":{"nodes":[]}}')
    assert dropped.result == (None if is_value else ended.result)
    assert dropped.outcome.result == ended.result  # which is what a staged row keeps


def test_a_cancel_before_the_start_leaves_no_attempt() -> None:
    found = decided(outcome(OutcomeKind.CANCELLED, started_mono=None), POLICIES["lists it"])
    assert (found.status, found.recorded) == (TaskStatus.CANCELLED, None)


@pytest.mark.parametrize("attempt", [1, 2, 3])
def test_the_delay_is_that_of_the_retry_that_follows(attempt: int) -> None:
    policy = RetryPolicy.intervals([1, 5, 30], auto_retry_for=["SMTP_DOWN"])
    found = decided(outcome(OutcomeKind.ERR), policy, attempt=attempt)
    assert found.retry_delay_ms == [1_000, 5_000, 30_000][attempt - 1]


def test_the_caller_supplies_the_randomness_of_the_jitter() -> None:
    policy = RetryPolicy.fixed(10, max_retries=3, auto_retry_for=["SMTP_DOWN"], jitter="full")
    assert decided(outcome(OutcomeKind.ERR), policy).retry_delay_ms == 5_000


@pytest.mark.parametrize("kind", [OutcomeKind.CRASHED, OutcomeKind.INTERRUPTED])
def test_a_crash_must_have_the_code_worker_crashed(kind: OutcomeKind) -> None:
    with pytest.raises(AssertionError, match="SMTP_DOWN"):
        decided(outcome(kind, error_code="SMTP_DOWN"), None)


# -- max_crashes ---------------------------------------------------------------------------------

LIMITED = RetryPolicy.crashes(3, base_seconds=7, jitter="none")


def test_a_crash_is_retried_outside_of_the_budget_of_errors() -> None:
    found = decided(outcome(OutcomeKind.CRASHED, apart_ms=40), LIMITED, attempt=1, budget=0)
    assert (found.status, found.recorded) == (TaskStatus.PENDING, AttemptOutcome.WORKER_FAILURE)
    assert found.retry_delay_ms == 7_040
    assert found.crash is not None
    assert found.crash.limit == 3
    error = decode_untyped_result(found.crash.limit_result).err_value
    assert error.error_code is OperationalErrorCode.CRASH_LIMIT
    assert (
        error.message == "the process of the task has died 3 times, as often as its policy allows; the last time: why"
    )
    assert error.data == {"crashes": 3, "last": "why"}


@pytest.mark.parametrize(
    "ended",
    [outcome(OutcomeKind.INTERRUPTED), outcome(OutcomeKind.CRASHED, is_counted=False)],
    ids=["shutdown", "kill"],
)
def test_what_another_cause_ended_is_retried_and_not_counted(ended: Outcome) -> None:
    found = decided(ended, LIMITED, attempt=5, budget=0)
    assert (found.status, found.retry_delay_ms) == (TaskStatus.PENDING, 112_000)
    assert found.crash is not None
    assert found.crash.limit == 0


@pytest.mark.parametrize("kind", [OutcomeKind.OK, OutcomeKind.ERR, OutcomeKind.TIMEOUT, OutcomeKind.CANCELLED])
def test_max_crashes_changes_no_other_end(kind: OutcomeKind) -> None:
    found = decided(outcome(kind), LIMITED, attempt=1, budget=0)
    assert (found.status, found.crash) == (ENDS[kind][0], None)


def test_crashes_have_the_budget_of_their_own_also_where_errors_are_retried() -> None:
    policy = RetryPolicy.fixed(1, 2, auto_retry_for=["SMTP_DOWN", "WORKER_CRASHED"], max_crashes=2)
    assert decided(outcome(OutcomeKind.ERR), policy, attempt=3, budget=2).status is TaskStatus.FAILED
    found = decided(outcome(OutcomeKind.CRASHED), policy, attempt=3, budget=2)
    assert found.status is TaskStatus.PENDING
    assert found.crash is not None


codes = st.sampled_from(["SMTP_DOWN", "TASK_TIMEOUT", "TASK_CANCELLED", "WORKER_CRASHED", "DISK_FULL"])
policies = st.builds(
    RetryPolicy.exponential,
    base_seconds=st.floats(0.001, 1_000),
    max_retries=st.integers(0, 50),
    auto_retry_for=st.lists(codes, min_size=1, max_size=3),
    jitter=st.sampled_from(["none", "full", "equal"]),
)


@given(
    kind=st.sampled_from(OutcomeKind),
    policy=st.none() | policies,
    attempt=st.integers(1, 60),
    budget=st.integers(0, 60),
    retry_after=st.none() | st.integers(0, 10**18),
    started=st.none() | st.just(1.0),
)
def test_what_holds_for_every_end(
    kind: OutcomeKind, policy: RetryPolicy | None, attempt: int, budget: int, retry_after: int | None,
    started: float | None,
) -> None:  # fmt: skip
    ended = outcome(kind, retry_after_ms=retry_after, started_mono=started)
    found = decided(ended, policy, attempt=attempt, budget=budget)
    assert Edge(TaskStatus.RUNNING, found.status) in TRANSITIONS
    assert 0 <= found.retry_delay_ms <= MAX_RETRY_MS
    if kind is OutcomeKind.SNOOZED:
        assert (found.status, found.recorded) == (TaskStatus.PENDING, None)
        assert found.retry_delay_ms >= 1
        return
    if found.status is TaskStatus.PENDING:
        assert policy is not None
        assert policy.allows(ended.error_code or "")
        assert attempt <= budget
        assert found.recorded in (AttemptOutcome.FAILED, AttemptOutcome.WORKER_FAILURE)
    else:
        assert found.retry_delay_ms == NO_RETRY
    assert (found.recorded is AttemptOutcome.COMPLETED) == (found.status is TaskStatus.COMPLETED)
    assert (found.recorded is AttemptOutcome.WORKER_FAILURE) == (ended.error_code == "WORKER_CRASHED")
    assert (found.recorded is None) == (kind is OutcomeKind.CANCELLED and started is None)


def test_no_kind_is_missing_here() -> None:
    assert set(ENDS) == set(CODES) == set(OutcomeKind)
