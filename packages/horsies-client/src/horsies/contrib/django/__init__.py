"""Django: an app with the settings of the project, sends that join `transaction.atomic`, and workers that look after
their connections. `docs/guides/django.md` explains it.

    INSTALLED_APPS = [..., "horsies.contrib.django"]

    from horsies.contrib.django import app

    @app.task("send_welcome")
    def send_welcome(customer_id: int) -> TaskResult[None, TaskError]: ...

It needs `horsies-client[django]`. The app is made when it is first asked for, from `settings.DATABASES` and
`settings.HORSIES`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.contrib.django.joining import outside_transaction as outside_transaction

    app: Horsies

__all__ = ["app", "outside_transaction"]


def __getattr__(name: str) -> Any:
    if name == "app":
        from horsies.contrib.django.project import project_app

        return project_app()
    if name == "outside_transaction":
        from horsies.contrib.django.joining import outside_transaction

        return outside_transaction
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
