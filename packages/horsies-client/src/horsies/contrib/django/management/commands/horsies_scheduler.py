# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""`manage.py horsies_scheduler`: enqueue scheduled tasks when they are due."""

from collections.abc import Sequence

from horsies.contrib.django.management.commands._passing import PassingCommand
from horsies.contrib.django.project import LOCATOR


class Command(PassingCommand):
    help = "Enqueues scheduled tasks when they are due: horsies scheduler."

    def arguments(self, given: Sequence[str]) -> list[str]:
        return ["scheduler", LOCATOR, *given]
