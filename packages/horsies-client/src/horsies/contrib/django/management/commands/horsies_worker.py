# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""`manage.py horsies_worker`: run tasks."""

from collections.abc import Sequence

from horsies.contrib.django.management.commands._passing import PassingCommand
from horsies.contrib.django.project import LOCATOR


class Command(PassingCommand):
    help = "Runs tasks in child processes until a signal stops it: horsies worker."

    def arguments(self, given: Sequence[str]) -> list[str]:
        return ["worker", LOCATOR, *given]
