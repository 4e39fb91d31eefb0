"""Delays never leave their bounds, whatever the policy; a policy read from a row is trusted in nothing."""

import json
import random
from typing import Any

import pytest
from hypothesis import given, strategies as st

from horsies.errors import BUILT_IN_CODES, ConfigurationError, OperationalErrorCode, OutcomeCode
from horsies.options import TaskOptions
from horsies.retry import MAX_DELAY_MS, Jitter, RetryPolicy, RetryStrategy

CODES = ["SMTP_DOWN", "WORKER_CRASHED"]
HIGHEST = 1 - 2**-53  # the largest number that random() gives


HUGE = pytest.param(10**400, id="beyond any float")
UNPRINTABLE = pytest.param(10**5000, id="more digits than str() allows")


def never() -> float:
    raise AssertionError("a policy without jitter must not ask for chance")


def wheres(build: Any, *args: Any, **fields: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        build(*args, **fields)
    assert all(problem.why and problem.fix for problem in caught.value.problems)
    return [problem.where.removeprefix("RetryPolicy.") for problem in caught.value.problems]


def delays(policy: RetryPolicy, count: int) -> list[int]:
    return [policy.delay_ms(number, never) for number in range(1, count + 1)]


# -- the three ways to write one ------------------------------------------------------------------


def test_fixed() -> None:
    policy = RetryPolicy.fixed(1.5, 3, auto_retry_for=CODES)
    assert (policy.strategy, policy.max_retries, policy.jitter) == (RetryStrategy.FIXED, 3, Jitter.NONE)
    assert delays(policy, 4) == [1_500] * 4
    assert delays(RetryPolicy.fixed(0, 1, auto_retry_for=CODES), 1) == [0]


def test_exponential() -> None:
    policy = RetryPolicy.exponential(base_seconds=2, max_retries=5, auto_retry_for=CODES, jitter="none")
    assert delays(policy, 5) == [2_000, 4_000, 8_000, 16_000, 32_000]
    policy = RetryPolicy.exponential(0.1, 9, factor=3, cap_seconds=2, auto_retry_for=CODES, jitter=Jitter.NONE)
    assert delays(policy, 5) == [100, 300, 900, 2_000, 2_000]
    assert RetryPolicy.exponential(1, 1, auto_retry_for=CODES).jitter is Jitter.EQUAL
    assert RetryPolicy.exponential(1, 1, auto_retry_for=CODES).cap_ms == 3_600_000


def test_exponential_with_a_factor_of_one_is_constant_and_a_base_above_the_cap_is_the_cap() -> None:
    assert delays(RetryPolicy.exponential(2, 5, factor=1, auto_retry_for=CODES, jitter="none"), 3) == [2_000] * 3
    assert delays(RetryPolicy.exponential(9, 5, cap_seconds=4, auto_retry_for=CODES, jitter="none"), 2) == [4_000] * 2


def test_intervals() -> None:
    policy = RetryPolicy.intervals([0, 1, 5.25], auto_retry_for=CODES)
    assert policy.max_retries == 3
    assert delays(policy, 3) == [0, 1_000, 5_250]
    longer = RetryPolicy.intervals([1, 5], max_retries=4, auto_retry_for=CODES)
    assert (longer.max_retries, delays(longer, 4)) == (4, [1_000, 5_000, 5_000, 5_000])
    # A task may be retried by hand beyond its policy; the last interval still answers.
    assert policy.delay_ms(99, never) == 5_250


def test_which_errors_are_retried() -> None:
    policy = RetryPolicy.fixed(1, 1, auto_retry_for=["SMTP_DOWN", OperationalErrorCode.WORKER_CRASHED])
    assert policy.auto_retry_for == ("SMTP_DOWN", "WORKER_CRASHED")
    assert [type(code) for code in policy.auto_retry_for] == [str, str]
    assert policy.allows("SMTP_DOWN")
    assert policy.allows(OperationalErrorCode.WORKER_CRASHED)
    assert policy.allows("WORKER_CRASHED")
    assert not policy.allows(OutcomeCode.TASK_TIMEOUT)
    assert not policy.allows("SMTP")


def test_equal_policies_are_equal_and_hashable() -> None:
    one = RetryPolicy.fixed(1, 1, auto_retry_for=["A"])
    assert one == RetryPolicy.fixed(1.0, 1, auto_retry_for=("A",))
    assert hash(one) == hash(RetryPolicy.fixed(1.0, 1, auto_retry_for=("A",)))
    assert one != RetryPolicy.fixed(1, 2, auto_retry_for=["A"])


# -- jitter ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("jitter", "low", "high"), [("full", 0, 999), ("equal", 500, 999)])
def test_jitter_ends(jitter: str, low: int, high: int) -> None:
    policy = RetryPolicy.fixed(1, 1, auto_retry_for=CODES, jitter=jitter)
    assert policy.delay_ms(1, lambda: 0.0) == low
    assert policy.delay_ms(1, lambda: HIGHEST) == high


policies = st.builds(
    RetryPolicy.exponential,
    base_seconds=st.floats(0.001, 2_592_000),
    max_retries=st.integers(0, 1_000),
    factor=st.one_of(st.floats(1, 100), st.integers(1, 100)),
    cap_seconds=st.floats(0.001, 2_592_000),
    auto_retry_for=st.lists(st.sampled_from(["A", "B", *BUILT_IN_CODES.values()]), min_size=1, max_size=4),
    jitter=st.sampled_from([*Jitter, "none", "full", "equal"]),
)


def plain(policy: RetryPolicy) -> RetryPolicy:
    return RetryPolicy.from_json({**policy.to_json(), "jitter": "none"})


@given(policies)
def test_delays_grow_up_to_the_cap_and_stay_there(policy: RetryPolicy) -> None:
    policy = plain(policy)
    found = delays(policy, 60)
    assert found == sorted(found)
    assert all(1 <= delay <= policy.cap_ms for delay in found)
    assert found[0] == min(policy.delays_ms[0], policy.cap_ms)
    if policy.factor >= 2:
        # 2**32 ms are more than 30 days: everything has reached its cap by then.
        assert found[32] == policy.cap_ms


@given(policies, st.integers(1, 10**400), st.floats(0, HIGHEST))
def test_jitter_stays_within_its_bounds_for_any_retry(policy: RetryPolicy, number: int, chance: float) -> None:
    full = plain(policy).delay_ms(number, never)
    delay = policy.delay_ms(number, lambda: chance if policy.jitter is not Jitter.NONE else never())
    low = {Jitter.NONE: full, Jitter.FULL: 0, Jitter.EQUAL: full - full // 2}[policy.jitter]
    assert low <= delay <= full <= policy.cap_ms <= MAX_DELAY_MS
    assert type(delay) is int


def test_jitter_spreads() -> None:
    source = random.Random(7)
    policy = RetryPolicy.fixed(10, 1, auto_retry_for=CODES, jitter="full")
    found = [policy.delay_ms(1, source.random) for _ in range(1_000)]
    assert min(found) < 500
    assert max(found) > 9_500
    assert 4_500 < sum(found) / 1_000 < 5_500


@pytest.mark.parametrize("number", [0, -1])
def test_retries_are_counted_from_one(number: int) -> None:
    with pytest.raises(ValueError, match="counted from 1"):
        RetryPolicy.fixed(1, 1, auto_retry_for=CODES).delay_ms(number, never)


# -- what is refused ------------------------------------------------------------------------------


def test_ends_of_the_ranges() -> None:
    assert RetryPolicy.fixed(2_592_000, 1_000, auto_retry_for=CODES).delays_ms == (MAX_DELAY_MS,)
    assert RetryPolicy.exponential(0.001, 0, factor=100, cap_seconds=0.001).cap_ms == 1
    assert len(RetryPolicy.intervals([1] * 1_000, auto_retry_for=CODES).delays_ms) == 1_000


@pytest.mark.parametrize(
    "seconds", [-0.001, 2_592_000.1, float("nan"), float("inf"), True, "1", None, HUGE, UNPRINTABLE]
)
def test_bad_seconds(seconds: Any) -> None:
    assert wheres(RetryPolicy.fixed, seconds, 1, auto_retry_for=CODES) == ["seconds"]
    assert wheres(RetryPolicy.exponential, seconds, 1, auto_retry_for=CODES) == ["base_seconds"]
    assert wheres(RetryPolicy.exponential, 1, 1, cap_seconds=seconds, auto_retry_for=CODES) == ["cap_seconds"]
    assert wheres(RetryPolicy.intervals, [1, seconds], auto_retry_for=CODES) == ["intervals[1]"]


@pytest.mark.parametrize("factor", [0.99, 100.1, float("nan"), float("inf"), True, "2", None, HUGE])
def test_bad_factors(factor: Any) -> None:
    assert wheres(RetryPolicy.exponential, 1, 1, factor=factor, auto_retry_for=CODES) == ["factor"]


@pytest.mark.parametrize("retries", [-1, 1_001, True, 1.0, "3", None, UNPRINTABLE])
def test_bad_max_retries(retries: Any) -> None:
    assert wheres(RetryPolicy.fixed, 1, retries, auto_retry_for=CODES) == ["max_retries"]


def test_an_exponential_policy_needs_a_first_wait() -> None:
    assert wheres(RetryPolicy.exponential, 0, 3, auto_retry_for=CODES) == ["base_seconds"]
    assert wheres(RetryPolicy.exponential, 1, 3, cap_seconds=0, auto_retry_for=CODES) == ["cap_seconds"]


@pytest.mark.parametrize("jitter", ["some", True, None, 1])
def test_bad_jitter(jitter: Any) -> None:
    assert wheres(RetryPolicy.fixed, 1, 1, auto_retry_for=CODES, jitter=jitter) == ["jitter"]


def test_retries_without_a_code_would_never_happen() -> None:
    with pytest.raises(ConfigurationError, match="none of the 3 retries could ever happen"):
        RetryPolicy.fixed(1, 3)
    assert RetryPolicy.fixed(1, 0).auto_retry_for == ()


@pytest.mark.parametrize("codes", ["SMTP_DOWN", {"SMTP_DOWN": 1}, None, 5, b"X"])
def test_codes_are_a_list(codes: Any) -> None:
    assert wheres(RetryPolicy.fixed, 1, 1, auto_retry_for=codes) == ["auto_retry_for"]


def test_codes_are_non_empty_strings_or_classes_of_exceptions() -> None:
    assert wheres(RetryPolicy.fixed, 1, 1, auto_retry_for=["", 5, "A\0"]) == [
        "auto_retry_for[0]",
        "auto_retry_for[1]",
        "auto_retry_for[2]",
    ]
    assert RetryPolicy.fixed(1, 1, auto_retry_for=["A", TimeoutError]).auto_retry_for == ("A", TimeoutError)
    odd: list[Any] = [KeyboardInterrupt, int]
    with pytest.raises(ConfigurationError, match="KeyboardInterrupt is not a subclass of Exception"):
        RetryPolicy.fixed(1, 1, auto_retry_for=odd)


@pytest.mark.parametrize("seconds", ["1,5", None, 5, {1: 2}])
def test_intervals_are_a_list(seconds: Any) -> None:
    assert wheres(RetryPolicy.intervals, seconds, auto_retry_for=CODES) == ["intervals"]


def test_intervals_need_one_and_at_most_a_thousand() -> None:
    assert wheres(RetryPolicy.intervals, [], auto_retry_for=CODES) == ["intervals"]
    assert wheres(RetryPolicy.intervals, [1] * 1_001, max_retries=3, auto_retry_for=CODES) == ["intervals"]


def test_problems_come_together() -> None:
    found = wheres(RetryPolicy.exponential, "1", -1, factor=0, cap_seconds=-1, auto_retry_for=[""], jitter="x")
    assert sorted(found) == ["auto_retry_for[0]", "base_seconds", "cap_seconds", "factor", "jitter", "max_retries"]


# -- in a row -------------------------------------------------------------------------------------


def test_the_stored_form_is_compact_and_stable() -> None:
    policy = RetryPolicy.exponential(2, 5, auto_retry_for=CODES)
    assert json.dumps(policy.to_json()) == (
        '{"strategy": "exponential", "max_retries": 5, "auto_retry_for": ["SMTP_DOWN", "WORKER_CRASHED"], '
        '"delays_ms": [2000], "jitter": "equal", "factor": 2.0, "cap_ms": 3600000}'
    )
    assert list(RetryPolicy.fixed(1, 1, auto_retry_for=CODES).to_json()) == [
        "strategy",
        "max_retries",
        "auto_retry_for",
        "delays_ms",
        "jitter",
    ]


def test_an_int_and_a_float_factor_are_stored_alike() -> None:
    # Otherwise a send and its retry from another place would differ in `enqueue_sha`.
    stored = [json.dumps(RetryPolicy.exponential(1, 1, factor=f, auto_retry_for=["A"]).to_json()) for f in (3, 3.0)]
    assert stored[0] == stored[1]


@given(policies)
def test_a_policy_survives_its_row(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


@pytest.mark.parametrize(
    "policy",
    [RetryPolicy.fixed(1, 2, auto_retry_for=["A"]), RetryPolicy.intervals([0, 9], auto_retry_for=["A"], jitter="full")],
)
def test_the_other_kinds_survive_too(policy: RetryPolicy) -> None:
    assert RetryPolicy.from_json(json.loads(json.dumps(policy.to_json()))) == policy


GOOD = RetryPolicy.exponential(2, 5, auto_retry_for=CODES).to_json()


@pytest.mark.parametrize(
    "data",
    [
        None,
        [],
        "exponential",
        5,
        {},
        {**GOOD, "extra": 1},
        {**GOOD, 5: 1},
        {key: value for key, value in GOOD.items() if key != "cap_ms"},
        {key: value for key, value in GOOD.items() if key != "strategy"},
        {**GOOD, "strategy": "fixed"},
        {**GOOD, "strategy": "unknown"},
        {**GOOD, "strategy": ["fixed"]},
        {**GOOD, "max_retries": 10**9},
        {**GOOD, "max_retries": True},
        {**GOOD, "auto_retry_for": "A"},
        {**GOOD, "auto_retry_for": [1]},
        {**GOOD, "auto_retry_for": []},
        {**GOOD, "delays_ms": [1, 2]},
        {**GOOD, "delays_ms": []},
        {**GOOD, "delays_ms": [0]},
        {**GOOD, "delays_ms": [-1]},
        {**GOOD, "delays_ms": [1.5]},
        {**GOOD, "delays_ms": "12"},
        {**GOOD, "delays_ms": None},
        {**GOOD, "factor": float("inf")},
        {**GOOD, "factor": "2"},
        {**GOOD, "cap_ms": 10**30},
        {**GOOD, "jitter": {}},
    ],
)
def test_rows_are_hostile_input(data: Any) -> None:
    with pytest.raises(ValueError):
        RetryPolicy.from_json(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(sorted(GOOD)), json_values)
def test_any_json_in_any_field_is_a_policy_or_a_value_error(field: str, value: Any) -> None:
    try:
        policy = RetryPolicy.from_json({**GOOD, field: value})
    except ValueError:
        return
    assert 0 <= policy.delay_ms(1, lambda: 0.5) <= MAX_DELAY_MS


# -- max_crashes -----------------------------------------------------------------------------------


def test_a_budget_of_crashes_alone() -> None:
    policy = RetryPolicy.crashes(3)
    assert (policy.max_crashes, policy.max_retries, policy.auto_retry_for) == (3, 0, ())
    assert (policy.strategy, policy.jitter) == (RetryStrategy.EXPONENTIAL, Jitter.EQUAL)
    listed = RetryPolicy.intervals([1, 5], max_crashes=2)
    assert (listed.max_retries, delays(listed, 3)) == (0, [1_000, 5_000, 5_000])
    assert RetryPolicy.intervals([1, 5], auto_retry_for=CODES, max_crashes=2).max_retries == 2
    assert RetryPolicy.fixed(1, 0, max_crashes=1).max_crashes == 1


@pytest.mark.parametrize("bad", [0, -1, 1_001, 1.5, "3", True])
def test_a_bad_number_of_crashes(bad: Any) -> None:
    assert wheres(RetryPolicy.crashes, bad) == ["max_crashes"]
    assert wheres(RetryPolicy.fixed, 1, 1, auto_retry_for=CODES, max_crashes=bad) == ["max_crashes"]


def test_the_number_of_crashes_is_stored_beside_the_policy() -> None:
    """So that a worker of an older release reads the policy, and runs the task without that limit."""
    policy = RetryPolicy.fixed(1, 2, auto_retry_for=CODES, max_crashes=4)
    text = TaskOptions(retry_policy=policy).to_json()
    stored = json.loads(text)
    assert stored["max_crashes"] == 4
    assert RetryPolicy.from_json(stored["retry_policy"]).max_crashes is None
    assert TaskOptions.from_json(text).retry_policy == policy
    assert "max_crashes" not in TaskOptions(retry_policy=RetryPolicy.fixed(1, 2, auto_retry_for=CODES)).to_json()
    for bad in ('"x"', "0", "1e9", "[]"):
        with pytest.raises(ValueError, match="max_crashes"):
            TaskOptions.from_json(text.replace('"max_crashes":4', f'"max_crashes":{bad}'))


@pytest.mark.parametrize(
    ("policy", "attempt", "rerun"),
    [
        (RetryPolicy.crashes(2), 9, True),
        (RetryPolicy.fixed(1, 3, auto_retry_for=CODES), 3, True),
        (RetryPolicy.fixed(1, 3, auto_retry_for=CODES), 4, False),
        (RetryPolicy.fixed(1, 3, auto_retry_for=["DOWN"]), 1, False),
    ],
)
def test_whether_a_crashed_task_may_run_elsewhere(policy: RetryPolicy, attempt: int, rerun: bool) -> None:
    assert policy.may_rerun_crashed(attempt, 3) is rerun
