# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""`manage.py horsies_doctor`: report problems, with fixes."""

from collections.abc import Sequence

from horsies.contrib.django.management.commands._passing import PassingCommand
from horsies.contrib.django.project import LOCATOR


class Command(PassingCommand):
    help = "Reports problems of the database and its workers, with fixes: horsies doctor."

    def arguments(self, given: Sequence[str]) -> list[str]:
        return ["doctor", "--app", LOCATOR, *given]
