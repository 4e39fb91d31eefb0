"""How long a transaction that all claims wait for may be idle."""

import pytest

from horsies_worker.database.settings import idle_limit_ms


@pytest.mark.parametrize(
    ("round_trip_s", "limit_ms"), [(0.0, 1_000), (0.001, 1_000), (0.2, 2_000), (0.5, 5_000), (3.0, 5_000)]
)
def test_ten_round_trips_within_bounds(round_trip_s: float, limit_ms: int) -> None:
    assert idle_limit_ms(round_trip_s) == limit_ms
