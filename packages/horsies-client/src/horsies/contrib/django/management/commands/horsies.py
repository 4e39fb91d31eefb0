# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""`manage.py horsies`: every other command of horsies, such as `manage.py horsies tasks list`."""

from collections.abc import Sequence

from horsies.contrib.django.management.commands._passing import PassingCommand
from horsies.contrib.django.project import LOCATOR

_WITH_LOCATOR = ("check", "worker", "scheduler", "dev")
_WITHOUT_APP = ("version", "health", "migrate", "tui")


class Command(PassingCommand):
    help = "Runs a command of horsies with the app of this project, such as: tasks list, queues list, schedules list."

    def usage(self, name: str) -> str:
        return f"manage.py {name} <command> [...] runs `horsies <command> [...]` with the app of this project:\n"

    def arguments(self, given: Sequence[str]) -> list[str]:
        words = list(given)
        if not words or words[0].startswith("-") or words[0] in _WITHOUT_APP:
            return words or ["--help"]
        if any(one in ("-h", "--help", "--app") or one.startswith(("--app=", "--database-url")) for one in words):
            return words
        if words[0] in _WITH_LOCATOR:
            return [words[0], LOCATOR, *words[1:]]
        return [*words, "--app", LOCATOR]
