"""The capacity model: its arithmetic, its coefficients, and the command."""

import json
import math

import pytest
from hypothesis import given, strategies as st

from horsies import cli
from horsies.errors import ConfigurationError
from horsies.operate import capacity as model
from horsies.operate.capacity import COEFFICIENTS, SERVER_CPU, WORKER_CPU, Load, capacity, cpu_per_task, task_bytes

LOAD = Load(tasks_per_second=500, task_seconds=0.2, retention_days=7)
rates = st.floats(0.01, 100_000)


def test_processes_and_connections() -> None:
    """500 tasks/s, twice that at the peak, of 0.2 s each, keep 200 processes busy; at 70 % that is 286 of them."""
    found = capacity(LOAD)
    assert (found.slots, found.workers) == (286, 36)
    # as in docs/operations/connections.md: 5 W + 1, P (pool + 1), 2 S, 10
    assert found.connections == 5 * 36 + 1 + 4 * 11 + 2 + 10
    assert found.direct_connections == 36 + 4 + 1
    more = capacity(Load(tasks_per_second=500, task_seconds=0.2, retention_days=7, workflows=True))
    assert more.connections == found.connections + 36


def test_disk_and_wal() -> None:
    found = capacity(LOAD)
    assert found.rows == 500 * 86_400 * 7
    # 312 + 150 bytes take 468 in a page that is filled to 80 %: 13 rows; 43 attempts in a full one; and the indexes
    assert found.bytes_per_task == pytest.approx(8_192 / 13 + 8_192 / 43 + 213)
    assert found.disk_bytes == pytest.approx(found.rows * found.bytes_per_task * 1.15)
    each = 2_040 + 1.2 * 150 + 1_100
    assert found.wal_bytes_per_day == pytest.approx(86_400 * (500 * each + 36 * 260 + 80_000 / 300))


def test_vacuum() -> None:
    found = capacity(LOAD)
    assert found.dead_rows_per_second == 1_500
    assert found.vacuum_every_s == pytest.approx((1_000 + 0.01 * found.rows) / 1_500)
    assert capacity(Load(tasks_per_second=1, task_seconds=1, retention_days=0)).vacuum_every_s == 500


def test_cpu_lies_between_the_measured_points() -> None:
    for points in (SERVER_CPU, WORKER_CPU):
        for rate, cost in points:
            assert cpu_per_task(points, rate) == pytest.approx(cost)
        assert cpu_per_task(points, 0.1) == points[0][1]
        assert cpu_per_task(points, 1e6) == points[-1][1]
        low, high = points[1], points[2]
        middle = math.sqrt(low[0] * high[0])
        assert cpu_per_task(points, middle) == pytest.approx(math.sqrt(low[1] * high[1]))


@given(rates, rates)
def test_more_tasks_need_more_of_everything_and_less_for_each(one: float, other: float) -> None:
    low, high = sorted((one, other))
    less, more = (capacity(Load(tasks_per_second=rate, task_seconds=0.1, retention_days=1)) for rate in (low, high))
    for name in ("slots", "workers", "connections", "wal_bytes_per_day", "rows", "disk_bytes", "server_cores"):
        assert getattr(less, name) <= getattr(more, name) * (1 + 1e-9), name
    assert cpu_per_task(SERVER_CPU, low) >= cpu_per_task(SERVER_CPU, high)


@given(st.integers(0, 100_000), st.integers(0, 100_000))
def test_a_larger_row_takes_no_less_room(arguments: int, result: int) -> None:
    assert task_bytes(arguments, result) >= arguments + result
    assert task_bytes(arguments, result) <= task_bytes(arguments + 8, result)


def test_every_coefficient_names_its_source() -> None:
    assert len(COEFFICIENTS) >= 15
    for one in COEFFICIENTS.values():
        assert one.value > 0
        assert one.means
        assert one.source.startswith(("just bench", "docs/", "PostgreSQL's default"))


def test_what_was_not_measured_is_said() -> None:
    found = capacity(Load(tasks_per_second=20_000, task_seconds=0.01, retention_days=30))
    assert [note.split()[0] for note in found.notes] == ["40,000", "the", "51,840,000,000"]
    assert capacity(Load(tasks_per_second=100, task_seconds=1, retention_days=1)).notes == ()


def test_a_load_that_cannot_be() -> None:
    with pytest.raises(ConfigurationError) as error:
        Load(tasks_per_second=math.nan, task_seconds=-1, retention_days=1, peak=0.5, processes=0)
    assert {problem.where.split(".")[1] for problem in error.value.problems} == {
        "tasks_per_second", "task_seconds", "peak", "processes",
    }  # fmt: skip


# -- the command ---------------------------------------------------------------------------------

GIVEN = ["capacity", "--tasks-per-second", "500", "--task-seconds", "0.2", "--retention-days", "7"]


def test_the_command_prints_the_needs(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(GIVEN) == 0
    out = capsys.readouterr().out
    assert "286 of 36 worker(s)" in out
    assert "max_connections 237" in out
    assert "docs/decisions/0020" in out
    assert cli.main([*GIVEN, "--json", "--workflows"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["load"]["workflows"] is True
    assert found["needs"]["connections"] == 237 + 36


def test_the_command_lists_its_coefficients(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["capacity", "--coefficients"]) == 0
    assert model.WAL_TASK.means in capsys.readouterr().out
    assert cli.main(["capacity", "--coefficients", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["coefficients"]["wal_task"]["value"] == model.WAL_TASK.value


def test_wrong_numbers_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*GIVEN, "--peak", "0"]) == 2
    assert "peak" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        cli.main(["capacity"])
