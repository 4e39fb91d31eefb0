# pyright: basic, reportUnnecessaryTypeIgnoreComment=false

"""Passes the arguments of a `manage.py` command to the command of horsies, with the project's app in them.

Options, help and exit codes are those of `horsies`; `--settings` and `--pythonpath` are Django's.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from horsies.contrib.django.connections import close_all

_OF_DJANGO = ("--settings", "--pythonpath")


class PassingCommand(BaseCommand):
    """A subclass says what is run."""

    requires_system_checks = ()

    def arguments(self, given: Sequence[str]) -> list[str]:
        """The arguments of `horsies`, with the app in its place."""
        raise NotImplementedError

    def usage(self, name: str) -> str:
        """What the command does, above the help of `horsies`."""
        shown = " ".join(self.arguments(["[options]"]))
        return f"manage.py {name} [options] runs `horsies {shown}` with the settings of this project:\n"

    def run_from_argv(self, argv: list[str]) -> None:
        """Run with what stands behind the name of the command, and end the process with the exit code."""
        given = _without_options_of_django(argv[2:])
        if any(one in ("-h", "--help") for one in given):
            self.stdout.write(self.usage(argv[1]))
            self.stdout.flush()
        sys.exit(self._run(given))

    def print_help(self, prog_name: str, subcommand: str) -> None:
        self.run_from_argv([prog_name, subcommand, "--help"])

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_args: Any, **options: Any) -> None:
        """For `call_command("horsies_doctor", "--json")`."""
        code = self._run([str(one) for one in options["arguments"]])
        if code != 0:
            raise CommandError(f"it ended with exit code {code}", returncode=code)

    def _run(self, given: Sequence[str]) -> int:
        from horsies.cli import main

        close_all()  # a worker forks, and nothing may be shared
        return main(self.arguments(given))


def _without_options_of_django(given: Sequence[str]) -> list[str]:
    kept: list[str] = []
    skip = False
    for one in given:
        if skip:
            skip = False
        elif one in _OF_DJANGO:
            skip = True
        elif not one.startswith(tuple(f"{name}=" for name in _OF_DJANGO)):
            kept.append(one)
    return kept
