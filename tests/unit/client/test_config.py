"""Every default, the ends of every range, every cross-check; problems come together and name themselves."""

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from horsies.config import (
    QUEUE_NAME_PATTERN,
    AppConfig,
    CustomQueueConfig,
    PostgresConfig,
    QueueMode,
    RecoveryConfig,
    ResilienceConfig,
    queue_name_problem,
)
from horsies.errors import BUILT_IN_CODES, ConfigurationError
from horsies.exceptions import error_code_for

URL = "postgresql://app:s3cr3t-word@db.example/work"


@pytest.fixture(autouse=True)
def no_url_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HORSIES_DATABASE_URL", raising=False)


def wheres(build: Any, *args: Any, **fields: Any) -> list[str]:
    """The `where` of every problem that a construction reports."""
    with pytest.raises(ConfigurationError) as caught:
        build(*args, **fields)
    assert all(problem.why and problem.fix for problem in caught.value.problems)
    return [problem.where for problem in caught.value.problems]


def app(**fields: Any) -> AppConfig:
    return AppConfig(PostgresConfig(URL), **fields)


# -- RecoveryConfig -------------------------------------------------------------------------------


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


QUICK = {"runner_heartbeat_interval_ms": 1_000, "claimer_heartbeat_interval_ms": 1_000}
LONG = {"claimed_stale_threshold_ms": 3_600_000, "running_stale_threshold_ms": 7_200_000}


@pytest.mark.parametrize(
    ("field", "low", "high", "others"),
    [
        # A threshold's own floor of 1 s is unreachable under the rule of two heartbeats of at least 1 s.
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
def test_a_threshold_below_one_second_is_out_of_range_and_not_compared(field: str) -> None:
    with pytest.raises(ConfigurationError, match="out of range") as caught:
        RecoveryConfig(**QUICK, **{field: 999})
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


# -- ResilienceConfig -----------------------------------------------------------------------------


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


# -- queues ---------------------------------------------------------------------------------------


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


# -- PostgresConfig -------------------------------------------------------------------------------


def test_postgres_defaults() -> None:
    config = PostgresConfig(URL)
    assert dataclasses.asdict(config) == {
        "database_url": URL,
        "direct_url": None,
        "schema": None,
        "pooler": False,
        "sslmode": None,
        "sslrootcert": None,
        "sslcert": None,
        "sslkey": None,
        "sslpassword": None,
        "pool_min_size": 0,
        "pool_max_size": 10,
        "connect_timeout_ms": 10_000,
        "command_timeout_ms": 60_000,
        "application_name": "horsies",
    }
    assert config.url == config.listen_url == URL


def test_the_url_comes_from_the_environment_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_DATABASE_URL", URL)
    config = PostgresConfig()
    monkeypatch.setenv("HORSIES_DATABASE_URL", "postgresql://elsewhere/db")
    assert config.url == config.database_url == URL
    assert dataclasses.replace(config, pool_max_size=3).url == URL
    assert PostgresConfig("postgresql://given/db").url == "postgresql://given/db"


@pytest.mark.parametrize("value", [None, ""])
def test_no_url_at_all(monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    if value is not None:
        monkeypatch.setenv("HORSIES_DATABASE_URL", value)
    with pytest.raises(ConfigurationError, match="HORSIES_DATABASE_URL is not set"):
        PostgresConfig()


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:p@h/db",
        "postgres://h",
        "postgresql+asyncpg://u:p@h/db",
        "postgresql+psycopg://u:p@h/db",
        "postgresql+psycopg2://u:p@h/db",
        "postgresql://u@h1:5432,h2:5433/db?target_session_attrs=read-write",
        "postgresql:///db?host=/tmp",
        "host=h password='a b' dbname=db",
        "embedded://",
        "embedded:///var/tmp/pg",
    ],
)
def test_accepted_url_forms(url: str) -> None:
    assert PostgresConfig(url).url == url


@pytest.mark.parametrize("url", ["", "mysql://u:hunter22@h/db", "just-hunter22", 7, b"postgresql://u:hunter22@h", "\0"])
def test_refused_url_forms_do_not_show_what_was_given(url: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        PostgresConfig(url)
    assert [problem.where for problem in caught.value.problems] == ["PostgresConfig.database_url"]
    assert "hunter22" not in str(caught.value)


def test_a_pooler_needs_another_direct_url_and_says_why() -> None:
    with pytest.raises(ConfigurationError, match="LISTEN through a transaction-mode pooler is silently lost"):
        PostgresConfig(URL, pooler=True)
    assert wheres(PostgresConfig, URL, pooler=True, direct_url=URL) == ["PostgresConfig.direct_url"]
    config = PostgresConfig(URL, pooler=True, direct_url="postgresql://direct/db")
    assert config.listen_url == "postgresql://direct/db"
    # A direct URL without a pooler is allowed: it is simply where LISTEN goes.
    assert PostgresConfig(URL, direct_url="postgresql://direct/db").listen_url == "postgresql://direct/db"


def test_a_schema_works_through_a_pooler() -> None:
    config = PostgresConfig(URL, pooler=True, direct_url="postgresql://d/db", schema="jobs")
    assert config.schema == "jobs"


@pytest.mark.parametrize("schema", ["jobs", "My Jobs", 'a"b', "ä" * 31, "x" * 63, "pgx"])
def test_good_schemas(schema: str) -> None:
    assert PostgresConfig(URL, schema=schema).schema == schema


@pytest.mark.parametrize("schema", ["", "x" * 64, "ä" * 32, "a\0b", "pg_jobs", "\ud800", 5])
def test_bad_schemas(schema: Any) -> None:
    assert wheres(PostgresConfig, URL, schema=schema) == ["PostgresConfig.schema"]


@pytest.mark.parametrize("mode", ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"])
def test_sslmode_words(mode: str) -> None:
    assert PostgresConfig(URL, sslmode=mode).sslmode == mode


@pytest.mark.parametrize("mode", ["", "on", "verify_full", "REQUIRE", True, 1, ["require"]])
def test_other_sslmodes_are_refused(mode: Any) -> None:
    assert wheres(PostgresConfig, URL, sslmode=mode) == ["PostgresConfig.sslmode"]


def test_tls_cross_checks() -> None:
    assert wheres(PostgresConfig, URL, sslmode="disable", sslrootcert="ca.pem") == ["PostgresConfig.sslmode"]
    assert wheres(PostgresConfig, URL + "?sslmode=disable", sslrootcert="ca.pem") == ["PostgresConfig.sslmode"]
    assert wheres(PostgresConfig, URL, sslkey="k.pem") == ["PostgresConfig.sslkey"]
    assert wheres(PostgresConfig, URL, sslpassword="pw") == ["PostgresConfig.sslpassword"]
    assert wheres(PostgresConfig, URL, sslrootcert="system", sslmode="require") == ["PostgresConfig.sslrootcert"]
    assert PostgresConfig(URL, sslcert="c.pem", sslkey="k.pem", sslpassword="pw").sslkey == "k.pem"
    assert PostgresConfig(URL + "?sslcert=c.pem", sslkey="k.pem").sslkey == "k.pem"
    assert PostgresConfig(URL, sslrootcert="system", sslmode="verify-full").sslrootcert == "system"
    assert PostgresConfig(URL, sslrootcert="system").sslmode is None


@pytest.mark.parametrize(
    ("field", "low", "high"),
    [
        ("pool_max_size", 1, 1_000),
        ("connect_timeout_ms", 100, 300_000),
        ("command_timeout_ms", 100, 86_400_000),
    ],
)
def test_postgres_ranges(field: str, low: int, high: int) -> None:
    for value in (low, high):
        assert getattr(PostgresConfig(URL, **{field: value}), field) == value
    for value in (low - 1, high + 1, True, "5", 1.5):
        assert wheres(PostgresConfig, URL, **{field: value}) == [f"PostgresConfig.{field}"]


def test_pool_bounds_and_optional_timeouts() -> None:
    assert PostgresConfig(URL, pool_min_size=1_000, pool_max_size=1_000).pool_min_size == 1_000
    assert wheres(PostgresConfig, URL, pool_min_size=-1) == ["PostgresConfig.pool_min_size"]
    assert wheres(PostgresConfig, URL, pool_min_size=1_001, pool_max_size=1_000) == ["PostgresConfig.pool_min_size"]
    assert wheres(PostgresConfig, URL, pool_min_size=3, pool_max_size=2) == ["PostgresConfig.pool_min_size"]
    assert PostgresConfig(URL, command_timeout_ms=None).command_timeout_ms is None
    assert wheres(PostgresConfig, URL, connect_timeout_ms=None) == ["PostgresConfig.connect_timeout_ms"]


@pytest.mark.parametrize("name", ["", "x" * 64, None, 3, "a\0"])
def test_bad_application_names(name: Any) -> None:
    assert wheres(PostgresConfig, URL, application_name=name) == ["PostgresConfig.application_name"]


def test_all_problems_of_a_connection_at_once() -> None:
    found = wheres(
        PostgresConfig,
        "postgresql://h:port/db?sslmode=maybe",
        direct_url="nonsense",
        pooler="yes",
        schema="pg_x",
        sslmode="on",
        sslkey=3,
        pool_max_size=0,
        application_name=None,
    )
    assert sorted(set(found)) == [
        f"PostgresConfig.{field}"
        for field in (
            "application_name", "database_url", "direct_url", "pool_max_size", "pooler", "schema", "sslkey", "sslmode",
        )
    ]  # fmt: skip
    assert found.count("PostgresConfig.database_url") == 2


def test_the_text_forms_show_the_host_but_no_secret() -> None:
    config = PostgresConfig(
        URL, direct_url=URL + "?password=0ther-word", sslcert="c", sslkey="k", sslpassword="k3y-word"
    )
    for text in (repr(config), str(config), f"{config}", repr(AppConfig(config)), f"{[config]!r}"):
        assert "db.example" in text
        for secret in ("s3cr3t-word", "0ther-word", "k3y-word"):
            assert secret not in text


def test_a_config_redacts_its_own_secrets_standing_alone() -> None:
    config = PostgresConfig(
        "postgresql://app:p%40ss%2Fword@h/db",
        sslcert="c",
        sslpassword="k3y-word",
        direct_url="host=h password='it\\'s me'",
    )
    text = config.redact("bad p@ss/word, p%40ss%2Fword, k3y-word, it's me and it\\'s me at h")
    assert text == "bad ***, ***, ***, *** and *** at h"


# -- AppConfig ------------------------------------------------------------------------------------


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


# -- bounds ---------------------------------------------------------------------------------------

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
