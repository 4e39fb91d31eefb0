"""The settings of an app and its queues: defaults, ranges, cross-checks; problems come together and name themselves."""

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from horsies._checks import QUEUE_NAME_PATTERN, queue_name_problem
from horsies.config import (
    AppConfig,
    CustomQueueConfig,
    PostgresConfig,
    QueueMode,
    RecoveryConfig,
    ResilienceConfig,
)
from horsies.errors import BUILT_IN_CODES, ConfigurationError, error_code_for
from tests.support.configs import QUICK, URL, app, wheres

# -- queues --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["default", "a", "A-b_c.9", "x" * 52, ".", "-"])
def test_good_queue_names(name: str) -> None:
    assert queue_name_problem(name, "here") is None
    assert len(f"task_queue_{name}".encode()) <= 63
    assert CustomQueueConfig(name).name == name


@pytest.mark.parametrize(
    "name",
    ["", "x" * 53, "a b", 'x"; DROP TABLE horsies_tasks; --', "a\n", "\n", "a\0", "größe", "🐎", "a/b", None, 7, b"a"],
)
def test_bad_queue_names(name: Any) -> None:
    problem = queue_name_problem(name, "task 'x'")
    assert problem is not None
    assert problem.where == "task 'x'"
    assert "63 bytes" in problem.fix
    assert wheres(CustomQueueConfig, name) == ["CustomQueueConfig.name"]


def test_queue_name_pattern_refuses_a_trailing_newline_however_it_is_applied() -> None:
    assert not QUEUE_NAME_PATTERN.match("a\n")
    assert not QUEUE_NAME_PATTERN.search("a\n")
    assert QUEUE_NAME_PATTERN.match("a")


def test_custom_queue_defaults_and_ranges() -> None:
    queue = CustomQueueConfig("mail")
    assert (queue.priority, queue.max_concurrency) == (100, None)
    assert CustomQueueConfig(name="mail", priority=1, max_concurrency=1).max_concurrency == 1
    for priority in (0, 101, True, "1", None):
        assert wheres(CustomQueueConfig, "mail", priority=priority) == ["CustomQueueConfig('mail').priority"]
    for limit in (0, -1, True, 1.0):
        assert wheres(CustomQueueConfig, "mail", max_concurrency=limit) == ["CustomQueueConfig('mail').max_concurrency"]
    assert len(wheres(CustomQueueConfig, "a b", priority=0, max_concurrency=0)) == 3


# -- AppConfig -----------------------------------------------------------------------------------


def test_app_defaults() -> None:
    config = app()
    assert config.queue_mode is QueueMode.DEFAULT
    assert config.custom_queues == ()
    assert config.cluster_wide_cap is None
    assert config.prefetch_buffer == 0
    assert config.claim_lease_ms is None
    assert config.effective_claim_lease_ms == 120_000
    assert config.max_claim_batch == 500
    assert config.max_claim_per_worker is None
    assert config.recovery == RecoveryConfig()
    assert config.resilience == ResilienceConfig()
    assert config.exception_mapper == {}
    assert config.default_unhandled_error_code == "UNHANDLED_EXCEPTION"
    assert config.payload_warn_bytes == 1_048_576
    assert config.payload_max_bytes == 8_388_608
    assert config.auto_migrate is True
    assert config.unknown_task_grace_ms == 300_000
    assert config.release is None


@pytest.mark.parametrize(
    ("field", "low", "high", "others"),
    [
        ("cluster_wide_cap", 1, None, {}),
        ("prefetch_buffer", 0, 10_000, {"claim_lease_ms": 60_000}),
        ("max_claim_batch", 1, 5_000, {}),
        ("max_claim_per_worker", 1, None, {}),
        ("claim_lease_ms", 2_000, 3_600_000, {"recovery": RecoveryConfig(**QUICK)}),
        ("payload_max_bytes", 1, 268_435_456, {"payload_warn_bytes": 1}),
        ("payload_warn_bytes", 1, 268_435_456, {"payload_max_bytes": 268_435_456}),
        ("unknown_task_grace_ms", 0, 86_400_000, {}),
    ],
)
def test_app_ranges(field: str, low: int, high: int | None, others: dict[str, Any]) -> None:
    assert getattr(app(**others, **{field: low}), field) == low
    if high is not None:
        assert getattr(app(**others, **{field: high}), field) == high
    for value in (low - 1, True, "5", 2.0, *([high + 1] if high is not None else [])):
        assert wheres(app, **others, **{field: value}) == [f"AppConfig.{field}"]


def test_a_release_is_a_short_name() -> None:
    for release in ("1.2.3", "4f1c2ab", "x" * 255):
        assert app(release=release).release == release
    for wrong in ("", " ", "x" * 256, "a\nb", "a\0b", "\ud800", 5, b"1"):
        assert wheres(app, release=wrong) == ["AppConfig.release"]


def test_prefetch_needs_a_lease_and_excludes_the_cluster_cap() -> None:
    assert app(prefetch_buffer=4, claim_lease_ms=60_000).prefetch_buffer == 4
    assert app(cluster_wide_cap=4, claim_lease_ms=60_000).cluster_wide_cap == 4
    assert wheres(app, prefetch_buffer=4) == ["AppConfig.claim_lease_ms"]
    assert wheres(app, prefetch_buffer=4, claim_lease_ms=60_000, cluster_wide_cap=9) == ["AppConfig.prefetch_buffer"]
    assert wheres(app, prefetch_buffer=4, cluster_wide_cap=9) == [
        "AppConfig.claim_lease_ms",
        "AppConfig.prefetch_buffer",
    ]


def test_a_lease_outlives_one_late_heartbeat() -> None:
    assert app(claim_lease_ms=60_000).effective_claim_lease_ms == 60_000
    with pytest.raises(ConfigurationError, match="claimer_heartbeat_interval_ms"):
        app(claim_lease_ms=59_999)


def test_queues_and_modes() -> None:
    mail, bulk = CustomQueueConfig("mail", priority=5), CustomQueueConfig("bulk")
    custom = app(queue_mode=QueueMode.CUSTOM, custom_queues=[mail, bulk])
    assert custom.custom_queues == (mail, bulk)
    assert custom.queue_names == ("mail", "bulk")
    assert [custom.queue_priority(name) for name in custom.queue_names] == [5, 100]
    assert custom.has_queue("mail")
    assert not custom.has_queue("default")
    with pytest.raises(KeyError):
        custom.queue_priority("default")

    default = app()
    assert default.queue_names == ("default",)
    assert default.queue_priority("default") == 100
    assert default.has_queue("default")
    assert not default.has_queue("mail")
    with pytest.raises(KeyError):
        default.queue_priority("mail")


def test_queue_cross_checks() -> None:
    mail = CustomQueueConfig("mail")
    assert wheres(app, queue_mode=QueueMode.CUSTOM) == ["AppConfig.custom_queues"]
    assert wheres(app, custom_queues=[mail]) == ["AppConfig.custom_queues"]
    assert wheres(app, queue_mode=QueueMode.CUSTOM, custom_queues=[mail, CustomQueueConfig("mail", priority=1)]) == [
        "AppConfig.custom_queues[1]"
    ]
    assert wheres(app, queue_mode=QueueMode.CUSTOM, custom_queues=[mail, "bulk"]) == ["AppConfig.custom_queues[1]"]
    for wrong in ("mail", {"mail": mail}, 5, mail):
        assert wheres(app, queue_mode=QueueMode.CUSTOM, custom_queues=wrong) == ["AppConfig.custom_queues"]
    for wrong_mode in ("CUSTOMS", None, 1):
        assert wheres(app, queue_mode=wrong_mode) == ["AppConfig.queue_mode"]
    assert app(queue_mode="custom", custom_queues=[mail]).queue_mode is QueueMode.CUSTOM


def test_nested_configs_are_checked_by_type_and_not_shown() -> None:
    with pytest.raises(ConfigurationError) as caught:
        AppConfig(URL, recovery={"check_interval_ms": 1}, resilience=None, claim_lease_ms=60_000)  # type: ignore[arg-type]
    assert [problem.where for problem in caught.value.problems] == [
        "AppConfig.broker",
        "AppConfig.recovery",
        "AppConfig.resilience",
    ]
    assert "s3cr3t-word" not in str(caught.value)


@pytest.mark.parametrize("code", BUILT_IN_CODES)
def test_user_code_cannot_produce_built_in_codes(code: str) -> None:
    assert wheres(app, exception_mapper={ValueError: code}) == ["AppConfig.exception_mapper[ValueError]"]
    if code != "UNHANDLED_EXCEPTION":
        assert wheres(app, default_unhandled_error_code=code) == ["AppConfig.default_unhandled_error_code"]


def test_exception_mapper_is_checked_and_copied() -> None:
    mapper: dict[Any, Any] = {ValueError: "BAD_VALUE"}
    config = app(exception_mapper=mapper)
    mapper[KeyError] = 5
    assert config.exception_mapper == {ValueError: "BAD_VALUE"}
    assert (
        wheres(app, exception_mapper={"ValueError": "X", int: "Y", ValueError("x"): "Z"})
        == ["AppConfig.exception_mapper"] * 3
    )
    assert wheres(app, exception_mapper={ValueError: "", KeyError: None}) == [
        "AppConfig.exception_mapper[ValueError]",
        "AppConfig.exception_mapper[KeyError]",
    ]
    assert wheres(app, exception_mapper=[(ValueError, "X")]) == ["AppConfig.exception_mapper"]
    assert wheres(app, default_unhandled_error_code="") == ["AppConfig.default_unhandled_error_code"]
    assert wheres(app, auto_migrate="no") == ["AppConfig.auto_migrate"]


def test_payload_limits_are_in_order() -> None:
    assert app(payload_warn_bytes=10, payload_max_bytes=10).payload_max_bytes == 10
    assert wheres(app, payload_warn_bytes=11, payload_max_bytes=10) == ["AppConfig.payload_warn_bytes"]


def test_a_config_can_be_hashed_copied_and_pickled_but_not_changed() -> None:
    config = app(exception_mapper={ValueError: "BAD"}, queue_mode="custom", custom_queues=[CustomQueueConfig("q")])
    assert hash(config) == hash(dataclasses.replace(config))
    assert pickle.loads(pickle.dumps(config)) == config
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.prefetch_buffer = 3  # type: ignore[misc]


def test_the_most_specific_mapped_exception_wins() -> None:
    mapper: dict[type[BaseException], str] = {OSError: "IO", ConnectionError: "NET", Exception: "ANY"}
    assert error_code_for(ConnectionResetError(), mapper, "NONE") == "NET"
    assert error_code_for(FileNotFoundError(), dict(reversed(mapper.items())), "NONE") == "IO"
    assert error_code_for(ValueError(), mapper, "NONE") == "ANY"
    assert error_code_for(KeyboardInterrupt(), mapper, "NONE") == "NONE"

    class Both(ConnectionError, ValueError):
        pass

    assert error_code_for(Both(), {ValueError: "VALUE", ConnectionError: "NET"}, "NONE") == "NET"


def test_configuration_loads_neither_pydantic_nor_the_driver() -> None:
    code = (
        "import sys, horsies.config, horsies.retry; "
        "print([m for m in ('pydantic', 'asyncpg', 'asyncio', 'ssl', 'urllib.parse') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


# -- bounds --------------------------------------------------------------------------------------


NUMBERS = [
    (kind, item.name)
    for kind in (AppConfig, CustomQueueConfig, PostgresConfig, RecoveryConfig, ResilienceConfig)
    for item in dataclasses.fields(kind)
    if "int" in str(item.type)
]


@pytest.mark.parametrize(("kind", "name"), NUMBERS, ids=[f"{kind.__name__}.{name}" for kind, name in NUMBERS])
def test_every_number_has_a_lower_and_an_upper_bound(kind: Any, name: str) -> None:
    """Also where no bound comes to mind: 10**15 ms, or 10**8 hours, overflow a date or an interval later on."""
    given: dict[Any, tuple[Any, ...]] = {AppConfig: (PostgresConfig(URL),), CustomQueueConfig: ("q",)}
    required = given.get(kind, (URL,) if kind is PostgresConfig else ())
    for value in (-1, 10**10, 10**15, 2**63, 10**400):
        with pytest.raises(ConfigurationError, match=rf"\.{name}: .* out of range"):
            kind(*required, **{name: value})


def test_the_reference_states_every_bound() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "configuration.md").read_text()
    for kind, name in NUMBERS:
        (row,) = [line for line in page.splitlines() if line.startswith(f"| `{name}`")][:1] or [""]
        span = row.split("|")[3] if row else ""
        assert " to " in span, f"{kind.__name__}.{name}: {row!r}"
