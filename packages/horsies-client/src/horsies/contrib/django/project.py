# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""The app of a Django project: made on first use, with the tasks of all installed apps."""

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import django
from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import autodiscover_modules

from horsies.app import Horsies
from horsies.config import AppConfig
from horsies.contrib.django.conf import Conf, app_config, broker_config, read_conf
from horsies.contrib.django.connections import DjangoConnections, close_all
from horsies.contrib.django.database import databases
from horsies.contrib.django.joining import DjangoTransactions
from horsies.middleware import Middleware

if TYPE_CHECKING:
    from horsies._pg.pool import Database
    from horsies.operate.broker import PostgresBroker

NAME = "horsies.contrib.django"
LOCATOR = f"{NAME}:app"

_lock = threading.RLock()
_made: "DjangoApp | None" = None


class DjangoApp(Horsies):
    """An app whose database is that of `settings.DATABASES`, also after a test run has put its own in that place."""

    def __init__(self, conf: Conf) -> None:
        own = DjangoConnections(lambda: self.stand_in is not None)
        self.conf = conf
        self._place = _place(conf)
        super().__init__(app_config(conf, [own, *_signals_of_django_tasks()]))
        self.ambient = DjangoTransactions(conf)

    @property
    def config(self) -> AppConfig:  # pyright: ignore[reportIncompatibleVariableOverride]
        self._follow_settings()
        return vars(self)["config"]

    @config.setter
    def config(self, value: AppConfig) -> None:
        vars(self)["config"] = value

    @property
    def database(self) -> "Database":
        self._follow_settings()
        return super().database

    def get_broker(self) -> "PostgresBroker":
        self._follow_settings()
        return super().get_broker()

    def _follow_settings(self) -> None:
        """`manage.py test` and pytest-django change the NAME after the app was made."""
        now = _place(self.conf)
        if now != self._place:
            with _lock:
                if now != self._place:
                    self.redirect(replace(vars(self)["config"], broker=broker_config(self.conf)))
                    self._place = now


def _signals_of_django_tasks() -> list[Middleware]:
    """What sends `task_finished` of `django.tasks`, in a project whose TASKS use horsies."""
    used: Any = getattr(settings, "TASKS", None) or {}
    if not any(str(one.get("BACKEND", "")).startswith(NAME) for one in used.values() if isinstance(one, dict)):
        return []
    from horsies.contrib.django.task_signals import SIGNALS

    return [SIGNALS]


def _place(conf: Conf) -> tuple[Any, ...]:
    found = databases()[conf.database]
    return tuple(found.get(key) for key in ("NAME", "HOST", "PORT", "USER", "PASSWORD"))


def project_app() -> DjangoApp:
    """The app of the project. Sets Django up if the program has not done so, as the plain command line does not."""
    if not apps.ready and not apps.loading:
        django.setup()
        # what the import of the project has opened must not be shared by processes that are forked from this one
        close_all()
    if apps.ready and not apps.is_installed(NAME):
        raise ImproperlyConfigured(f"{NAME!r} is not in INSTALLED_APPS: add it, so that tasks are found")
    global _made
    with _lock:
        if _made is None:
            _made = DjangoApp(read_conf())
        return _made


def discover() -> None:
    """Import the modules of installed apps that define tasks."""
    autodiscover_modules(*read_conf().task_modules)
