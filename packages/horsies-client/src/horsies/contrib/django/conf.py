# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""Reads `settings.HORSIES` and the database that it names into an `AppConfig`.

Every field of `AppConfig` is a key in upper case; `BROKER` has fields of `PostgresConfig`. All problems are reported
together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from typing import Any, Final, cast

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.utils.module_loading import import_string

from horsies._checks import shown
from horsies.config import AppConfig, PostgresConfig
from horsies.contrib.django.database import database_url, databases
from horsies.errors import ConfigurationError
from horsies.middleware import Middleware

_OURS: Final = ("DATABASE", "BROKER", "TASK_MODULES", "MIGRATE", "OTHER_TRANSACTIONS")
_OF_APP: Final = {field.name.upper(): field.name for field in fields(AppConfig) if field.name != "broker"}
_OF_BROKER: Final = tuple(field.name for field in fields(PostgresConfig) if field.name != "database_url")


@dataclass(frozen=True, slots=True)
class Conf:
    """`settings.HORSIES`, checked, without what belongs to the database."""

    database: str = "default"
    """The alias in `settings.DATABASES`."""
    task_modules: tuple[str, ...] = ("tasks",)
    """The modules of installed apps that define tasks."""
    migrate: bool = True
    """Whether `manage.py migrate` upgrades the tables of horsies, too."""
    other_transactions: str = "refuse"
    """What a send does inside a transaction of another database only: `refuse`, or `send` at once."""
    broker: Mapping[str, Any] | None = None
    app: Mapping[str, Any] | None = None


def read_conf() -> Conf:
    """Read and check `settings.HORSIES`. Raises ImproperlyConfigured with all problems."""
    given: object = getattr(settings, "HORSIES", {})
    if not isinstance(given, Mapping):
        raise ImproperlyConfigured(f"HORSIES must be a dict, not {shown(given)}")
    found = dict(cast("Mapping[str, Any]", given))
    problems = [_unknown("HORSIES", key, (*_OURS, *_OF_APP)) for key in found if key not in (*_OURS, *_OF_APP)]
    database = found.get("DATABASE", "default")
    if database not in databases():
        known = ", ".join(sorted(databases()))
        problems.append(f"HORSIES['DATABASE'] names {shown(database)}, which is not in DATABASES ({known})")
    modules = found.get("TASK_MODULES", ["tasks"])
    if not _is_list_of_text(modules):
        problems.append("HORSIES['TASK_MODULES'] must be a list of names of modules, such as ['tasks', 'jobs']")
        modules = ()
    if not isinstance(found.get("MIGRATE", True), bool):
        problems.append(f"HORSIES['MIGRATE'] must be True or False, not {shown(found['MIGRATE'])}")
    other = found.get("OTHER_TRANSACTIONS", "refuse")
    if other not in ("refuse", "send"):
        problems.append(f"HORSIES['OTHER_TRANSACTIONS'] must be 'refuse' or 'send', not {shown(other)}")
    broker = found.get("BROKER", {})
    if not isinstance(broker, Mapping):
        problems.append(f"HORSIES['BROKER'] must be a dict with fields of PostgresConfig, not {shown(broker)}")
        broker = {}
    for key in cast("Mapping[str, Any]", broker):
        if key == "database_url":
            problems.append("HORSIES['BROKER'] has a database_url, which comes from DATABASES: give 'DATABASE': alias")
        elif key not in _OF_BROKER:
            problems.append(_unknown("HORSIES['BROKER']", key, _OF_BROKER))
    if problems:
        raise ImproperlyConfigured("; ".join(problems))
    of_app = {_OF_APP[key]: value for key, value in found.items() if key in _OF_APP}
    return Conf(database, tuple(modules), found.get("MIGRATE", True), other, dict(broker), of_app)


def app_config(conf: Conf, own: Sequence[Middleware]) -> AppConfig:
    """The configuration of the project's app; `own` is the middleware of this package, inside that of the project."""
    values = dict(conf.app or {})
    try:
        values["middleware"] = [*map(_made, values.get("middleware", ())), *own]
        if isinstance(values.get("payload_codec"), str):
            values["payload_codec"] = _made(values["payload_codec"])
        return AppConfig(broker_config(conf), **values)
    except ConfigurationError as error:
        raise ImproperlyConfigured(f"HORSIES in the settings of this project\n{error}") from error


def broker_config(conf: Conf) -> PostgresConfig:
    """The configuration of the database, as `settings.DATABASES` has it now: a test run changes it."""
    return PostgresConfig(database_url(conf.database, databases()[conf.database]), **(conf.broker or {}))


def _made(given: Any) -> Any:
    """What a dotted path names, called when it is a class or a function; other values as they are."""
    if not isinstance(given, str):
        return given
    try:
        found = import_string(given)
    except ImportError as error:
        raise ImproperlyConfigured(f"HORSIES names {given!r}, which cannot be imported: {error}") from error
    return found() if callable(found) else found


def _unknown(where: str, key: object, known: Sequence[str]) -> str:
    close = get_close_matches(str(key).upper() if where == "HORSIES" else str(key), known, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"its keys are {', '.join(sorted(known))}"
    return f"{where} has an unknown key {shown(key)}: {hint}"


def _is_list_of_text(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(one, str) for one in cast("Sequence[object]", value))
