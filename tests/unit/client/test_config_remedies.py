"""Settings that exclude each other: following the remedy that an error names is accepted."""

import re
from typing import Any

import pytest
from hypothesis import given, strategies as st

from horsies.config import AppConfig, PostgresConfig, RecoveryConfig, ResilienceConfig
from horsies.errors import ConfigurationError
from tests.support.configs import URL, app


def remedied(fields: dict[str, int], error: ConfigurationError, choice: int) -> dict[str, int]:
    """The fields after each problem's first (0) or last (1) remedy; of several for one field, the strictest."""
    changed: dict[str, int] = {}
    for problem in error.problems:
        own = problem.where.rpartition(".")[2]
        offers = [
            (verb, own if field == "it" else field.rpartition(".")[2], int(number))
            for verb, field, number in re.findall(r"(raise|lower) ([\w.]+) to ([\d_]+)", problem.fix)
        ] or [("raise", own, int(number)) for number in re.findall(r"(?<![=\d_])\d[\d_]*", problem.fix)]
        verb, field, number = offers[-choice]
        changed[field] = (min if verb == "lower" else max)(number, changed.get(field, number))
    return {**fields, **changed}


RECOVERY = st.fixed_dictionaries(
    {},
    optional={
        "runner_heartbeat_interval_ms": st.integers(1_000, 120_000),
        "claimer_heartbeat_interval_ms": st.integers(1_000, 120_000),
        "claimed_stale_threshold_ms": st.integers(0, 4_000_000) | st.integers(990, 5_000),
        "running_stale_threshold_ms": st.integers(0, 8_000_000) | st.integers(990, 5_000),
        "finalizing_stale_threshold_ms": st.integers(0, 8_000_000) | st.integers(990, 5_000),
    },
)
LEASES = st.fixed_dictionaries(
    {"claimer_heartbeat_interval_ms": st.integers(1_000, 120_000)},
    optional={
        "claim_lease_ms": st.integers(0, 4_000_000) | st.integers(990, 5_000),
        "prefetch_buffer": st.integers(0, 2),
        "payload_warn_bytes": st.integers(1, 268_435_456),
        "payload_max_bytes": st.integers(1, 268_435_456),
    },
)
RECONNECTS = st.fixed_dictionaries(
    {"reconnect_initial_ms": st.integers(10, 60_000), "reconnect_max_ms": st.integers(100, 600_000)}
)
POOLS = st.fixed_dictionaries({"pool_min_size": st.integers(0, 1_000), "pool_max_size": st.integers(1, 1_000)})


def with_lease(claimer_heartbeat_interval_ms: int, **fields: Any) -> AppConfig:
    beat = claimer_heartbeat_interval_ms
    return app(
        recovery=RecoveryConfig(claimer_heartbeat_interval_ms=beat, claimed_stale_threshold_ms=3_600_000), **fields
    )


@pytest.mark.parametrize("choice", [0, 1])
@given(
    case=st.one_of(
        st.tuples(st.just(RecoveryConfig), RECOVERY),
        st.tuples(st.just(with_lease), LEASES),
        st.tuples(st.just(ResilienceConfig), RECONNECTS),
        st.tuples(st.just(lambda **fields: PostgresConfig(URL, **fields)), POOLS),
    )
)
def test_following_a_remedy_is_accepted(choice: int, case: tuple[Any, dict[str, int]]) -> None:
    build, fields = case
    try:
        build(**fields)
    except ConfigurationError as error:
        build(**remedied(fields, error, choice))


def test_without_tls_the_remedy_for_the_systems_authorities_is_accepted() -> None:
    with pytest.raises(ConfigurationError, match=r"remove the certificates, or choose verify-full$"):
        PostgresConfig(URL, sslmode="disable", sslrootcert="system")
    PostgresConfig(URL, sslmode="verify-full", sslrootcert="system")
