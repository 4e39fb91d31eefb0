# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""Django's system checks (`manage.py check`): the settings, the tasks, and what goes wrong quietly in a worker."""

from typing import Any

from django.core.checks import CheckMessage, Error, Warning as CheckWarning
from django.core.exceptions import ImproperlyConfigured

from horsies.contrib.django.conf import Conf, app_config, read_conf
from horsies.contrib.django.database import databases

_SETTINGS = "horsies.E001"
_TASKS = "horsies.E002"
_NOTE = "horsies.W001"
_POOL = "horsies.W002"
_REQUESTS = "horsies.W003"


def check_settings(**_others: Any) -> list[CheckMessage]:
    try:
        conf = read_conf()
        app_config(conf, [])
    except ImproperlyConfigured as error:
        return [Error(str(error), id=_SETTINGS)]
    return [*_check_pool(), *_check_atomic_requests(conf)]


def check_tasks(**_others: Any) -> list[CheckMessage]:
    """What `horsies check` finds."""
    from horsies.check import check_app
    from horsies.contrib.django.project import project_app

    try:
        app = project_app()
    except ImproperlyConfigured:
        return []  # reported above
    return [
        Error(found.text, id=_TASKS) if found.is_problem else CheckWarning(found.text, id=_NOTE)
        for found in check_app(app)
    ]


def _check_pool() -> list[CheckMessage]:
    return [
        CheckWarning(
            f"DATABASES[{alias!r}] has a pool and no CONN_HEALTH_CHECKS: after a restart of the database, tasks fail "
            "until the pool has replaced every connection.",
            hint="Set CONN_HEALTH_CHECKS = True there.",
            id=_POOL,
        )
        for alias, found in databases().items()
        if (found.get("OPTIONS") or {}).get("pool") and not found.get("CONN_HEALTH_CHECKS")
    ]


def _check_atomic_requests(conf: Conf) -> list[CheckMessage]:
    if conf.other_transactions != "refuse":
        return []
    return [
        CheckWarning(
            f"DATABASES[{alias!r}] has ATOMIC_REQUESTS, and horsies is in {conf.database!r}: every send of a view is "
            "refused, because the transaction of the request could not contain the task.",
            hint="Let horsies use the same database, send in transaction.on_commit, or set OTHER_TRANSACTIONS='send'.",
            id=_REQUESTS,
        )
        for alias, found in databases().items()
        if alias != conf.database
        and found.get("ATOMIC_REQUESTS")
        and not databases()[conf.database].get("ATOMIC_REQUESTS")
    ]
