# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""The Django application `horsies.contrib.django`."""

from typing import Any

from django.apps import AppConfig
from django.core import checks
from django.db.models.signals import post_migrate


class HorsiesConfig(AppConfig):
    """Finds tasks, checks the settings and keeps the tables up to date."""

    name = "horsies.contrib.django"
    label = "horsies"
    verbose_name = "Horsies"
    default_auto_field: Any = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from horsies.contrib.django.migrating import after_migrate
        from horsies.contrib.django.project import discover
        from horsies.contrib.django.routing import install
        from horsies.contrib.django.system_checks import check_settings, check_tasks

        checks.register(check_settings, "horsies")
        checks.register(check_tasks, "horsies")
        install()
        post_migrate.connect(after_migrate, sender=self, dispatch_uid="horsies")
        discover()
