"""Words of other task queues, and settings of horsies 0.x, are errors that say what to write."""

import inspect
import pkgutil
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

import horsies
from horsies import (
    AppConfig,
    ConfigurationError,
    Horsies,
    PostgresConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    TaskSendError,
    UsageError,
)
from horsies._gone_names import FOREIGN
from horsies._setting_names import SETTINGS
from tests.support.apps import UNREACHABLE, make_app

BROKER = PostgresConfig("postgresql://localhost/shop")


@pytest.mark.parametrize("name", FOREIGN)
def test_an_import_of_a_foreign_name_says_what_to_use(name: str) -> None:
    with pytest.raises(ImportError, match=f"horsies has no '{name}'; use instead: ..."):
        exec(f"from horsies import {name}")
    assert not hasattr(horsies, name)


def test_foreign_names_hide_nothing_that_exists() -> None:
    modules = {module.name for module in pkgutil.iter_modules(horsies.__path__)}
    assert not FOREIGN.keys() & ({*horsies.__all__} | modules)


@pytest.mark.parametrize("name", SETTINGS)
def test_foreign_settings_say_what_to_write(name: str) -> None:
    cls: Any = getattr(horsies, name)
    own = inspect.signature(cls).parameters
    for setting, hint in SETTINGS[name].items():
        assert setting not in own
        with pytest.raises(ConfigurationError) as refused:
            cls(**{setting: 1})
        assert f"{name}.{setting}: there is no such option" in str(refused.value)
        assert hint in str(refused.value)


def test_all_foreign_settings_are_told_at_once_and_a_mistyped_one_is_a_type_error() -> None:
    config: Any = AppConfig
    with pytest.raises(ConfigurationError, match="AppConfig: 2 problems"):
        config(BROKER, task_routes={}, CELERY_TIMEZONE="UTC")
    with pytest.raises(TypeError, match="'brokr'"):
        config(brokr=BROKER)


def test_an_app_like_one_of_celery() -> None:
    app: Any = Horsies
    with pytest.raises(ConfigurationError, match=r"Horsies\.broker.*\n.*AppConfig\(PostgresConfig"):
        app("shop", broker="redis://localhost")
    with pytest.raises(UsageError, match=r"not a str: write Horsies\(AppConfig"):
        app("shop")


def test_options_and_arguments_in_the_wrong_place() -> None:
    app = make_app(UNREACHABLE)

    @app.task("add")
    def add(x: int, y: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=x + y)

    loose: Any = add
    for options in ({"countdown": 3}, {"queue": "mail"}, {"eta": None}):
        with pytest.raises(TaskSendError, match=r"options of a send stand before it: with_options\(\.\.\.\)\.send"):
            loose.send(1, 2, **options)
    with pytest.raises(TaskSendError, match="not given as args= and kwargs="):
        loose.send(args=(1, 2))
    with pytest.raises(UsageError, match=r"send\(\.\.\.\) takes the arguments of the task"):
        loose.with_options((1, 2))
    with pytest.raises(UsageError, match=r"instead of args use send\(\.\.\.\)"):
        loose.with_options(args=(1, 2))
    with pytest.raises(UsageError, match="retry_policy is an option of @app"):
        loose.with_options(retry_policy={})
    with pytest.raises(AttributeError, match=r"write add\.with_options\(connection=connection\)\.send"):
        loose.delay_on_commit(1, 2)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("30 2 * * *", r'write Cron\("30 2'),
        (SimpleNamespace(minute={30}, day_of_week={1}), r'write Cron\("30 2'),
        (30.0, r"write Interval\(seconds"),
        (timedelta(seconds=30), r"write Interval\(seconds"),
        (None, "fix: give one of"),
    ],
)
def test_a_schedule_of_another_kind(given: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        TaskSchedule("nightly", "close_day", given)
