"""The settings of recovery and resilience: defaults, the ends of every range, cross-checks."""

import dataclasses
from typing import Any

import pytest

from horsies.config import (
    RecoveryConfig,
    ResilienceConfig,
)
from horsies.errors import ConfigurationError
from tests.support.configs import QUICK, app, wheres

# -- RecoveryConfig ------------------------------------------------------------------------------


def test_recovery_defaults_are_those_of_the_contract() -> None:
    assert dataclasses.asdict(RecoveryConfig()) == {
        "auto_requeue_stale_claimed": True,
        "claimed_stale_threshold_ms": 120_000,
        "auto_fail_stale_running": True,
        "running_stale_threshold_ms": 300_000,
        "finalizing_stale_threshold_ms": 300_000,
        "crashed_worker_recovery_grace_ms": 10_000,
        "retired_task_grace_ms": 86_400_000,
        "check_interval_ms": 30_000,
        "runner_heartbeat_interval_ms": 30_000,
        "claimer_heartbeat_interval_ms": 30_000,
        "worker_state_interval_ms": 5_000,
        "heartbeat_retention_hours": 24,
        "worker_state_retention_hours": 168,
        "terminal_record_retention_hours": 720,
    }


LONG = {"claimed_stale_threshold_ms": 3_600_000, "running_stale_threshold_ms": 7_200_000}


@pytest.mark.parametrize(
    ("field", "low", "high", "others"),
    [
        ("claimed_stale_threshold_ms", 2_000, 3_600_000, QUICK),
        ("running_stale_threshold_ms", 2_000, 7_200_000, QUICK),
        ("finalizing_stale_threshold_ms", 2_000, 7_200_000, QUICK),
        ("check_interval_ms", 1_000, 600_000, {}),
        ("worker_state_interval_ms", 1_000, 60_000, {}),
        ("retired_task_grace_ms", 0, 2_592_000_000, {}),
        ("runner_heartbeat_interval_ms", 1_000, 120_000, LONG),
        ("claimer_heartbeat_interval_ms", 1_000, 120_000, LONG),
    ],
)
def test_recovery_ranges(field: str, low: int, high: int, others: dict[str, Any]) -> None:
    assert getattr(RecoveryConfig(**others, **{field: low}), field) == low
    assert getattr(RecoveryConfig(**others, **{field: high}), field) == high
    assert wheres(RecoveryConfig, **others, **{field: low - 1}) == [f"RecoveryConfig.{field}"]
    assert wheres(RecoveryConfig, **others, **{field: high + 1}) == [f"RecoveryConfig.{field}"]


@pytest.mark.parametrize(
    "field", ["claimed_stale_threshold_ms", "running_stale_threshold_ms", "finalizing_stale_threshold_ms"]
)
def test_a_threshold_below_two_seconds_is_out_of_range_and_not_compared(field: str) -> None:
    with pytest.raises(ConfigurationError, match="out of range") as caught:
        RecoveryConfig(**QUICK, **{field: 1_999})
    assert len(caught.value.problems) == 1


def test_grace_may_be_zero_but_not_negative() -> None:
    assert RecoveryConfig(crashed_worker_recovery_grace_ms=0).crashed_worker_recovery_grace_ms == 0
    assert wheres(RecoveryConfig, crashed_worker_recovery_grace_ms=-1) == [
        "RecoveryConfig.crashed_worker_recovery_grace_ms"
    ]


@pytest.mark.parametrize(
    "field", ["heartbeat_retention_hours", "worker_state_retention_hours", "terminal_record_retention_hours"]
)
def test_retention_is_none_or_at_least_an_hour(field: str) -> None:
    assert getattr(RecoveryConfig(**{field: None}), field) is None
    assert getattr(RecoveryConfig(**{field: 1}), field) == 1
    assert wheres(RecoveryConfig, **{field: 0}) == [f"RecoveryConfig.{field}"]


@pytest.mark.parametrize(
    ("threshold", "heartbeat"),
    [
        ("claimed_stale_threshold_ms", "claimer_heartbeat_interval_ms"),
        ("running_stale_threshold_ms", "runner_heartbeat_interval_ms"),
        ("finalizing_stale_threshold_ms", "runner_heartbeat_interval_ms"),
    ],
)
def test_a_threshold_is_at_least_twice_its_own_heartbeat(threshold: str, heartbeat: str) -> None:
    # The other heartbeat is as short as can be: the right one must be compared.
    beats = {**QUICK, heartbeat: 30_000}
    assert getattr(RecoveryConfig(**beats, **{threshold: 60_000}), threshold) == 60_000
    with pytest.raises(ConfigurationError) as caught:
        RecoveryConfig(**beats, **{threshold: 59_999})
    (problem,) = caught.value.problems
    assert problem.where == f"RecoveryConfig.{threshold}"
    assert heartbeat in problem.why
    assert "60_000" in problem.fix


def test_violations_are_raised_together_and_as_value_error() -> None:
    with pytest.raises(ValueError) as caught:
        RecoveryConfig(running_stale_threshold_ms=30_000, check_interval_ms=5, heartbeat_retention_hours=0)
    text = str(caught.value)
    assert "RecoveryConfig: 3 problems" in text
    for field in ("running_stale_threshold_ms", "check_interval_ms", "heartbeat_retention_hours"):
        assert f"RecoveryConfig.{field}: " in text
    assert text.count("fix: ") == 3


@pytest.mark.parametrize("value", ["30000", 30_000.0, True, None, [1]])
def test_a_wrong_type_is_a_problem_and_not_a_crash(value: Any) -> None:
    # Both thresholds that are compared with it stay silent: there is one slip, so there is one complaint.
    assert wheres(RecoveryConfig, runner_heartbeat_interval_ms=value) == ["RecoveryConfig.runner_heartbeat_interval_ms"]
    assert wheres(RecoveryConfig, running_stale_threshold_ms=value) == ["RecoveryConfig.running_stale_threshold_ms"]


@pytest.mark.parametrize("value", ["false", 0, 1, None])
def test_switches_take_only_bools(value: Any) -> None:
    assert wheres(RecoveryConfig, auto_fail_stale_running=value, auto_requeue_stale_claimed=value) == [
        "RecoveryConfig.auto_requeue_stale_claimed",
        "RecoveryConfig.auto_fail_stale_running",
    ]


def test_fast_settings_of_the_fault_catalogue_are_inside_the_bounds() -> None:
    recovery = RecoveryConfig(
        **QUICK,
        running_stale_threshold_ms=3_000,
        claimed_stale_threshold_ms=3_000,
        finalizing_stale_threshold_ms=3_000,
        check_interval_ms=1_000,
        crashed_worker_recovery_grace_ms=1_000,
    )
    config = app(recovery=recovery, claim_lease_ms=3_000, resilience=ResilienceConfig(notify_poll_interval_ms=1_000))
    assert config.effective_claim_lease_ms == 3_000


# -- ResilienceConfig ----------------------------------------------------------------------------


def test_resilience_defaults() -> None:
    assert dataclasses.asdict(ResilienceConfig()) == {
        "notify_poll_interval_ms": 5_000,
        "reconnect_initial_ms": 100,
        "reconnect_max_ms": 30_000,
        "reconnect_jitter": True,
        "send_attempts": 4,
        "send_retry_budget_ms": 5_000,
    }


@pytest.mark.parametrize(
    ("field", "low", "high", "others"),
    [
        ("notify_poll_interval_ms", 100, 300_000, {}),
        ("reconnect_initial_ms", 10, 60_000, {"reconnect_max_ms": 600_000}),
        ("reconnect_max_ms", 100, 600_000, {}),
        ("send_attempts", 1, 20, {}),
        ("send_retry_budget_ms", 0, 300_000, {}),
    ],
)
def test_resilience_ranges(field: str, low: int, high: int, others: dict[str, Any]) -> None:
    for value in (low, high):
        assert getattr(ResilienceConfig(**others, **{field: value}), field) == value
    for value in (low - 1, high + 1, True, "5"):
        assert wheres(ResilienceConfig, **others, **{field: value}) == [f"ResilienceConfig.{field}"]


def test_reconnect_bounds_are_in_order() -> None:
    assert ResilienceConfig(reconnect_initial_ms=500, reconnect_max_ms=500).reconnect_max_ms == 500
    assert wheres(ResilienceConfig, reconnect_initial_ms=501, reconnect_max_ms=500) == [
        "ResilienceConfig.reconnect_max_ms"
    ]
    assert wheres(ResilienceConfig, reconnect_jitter="yes") == ["ResilienceConfig.reconnect_jitter"]
