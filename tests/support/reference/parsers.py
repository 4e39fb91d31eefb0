"""The argument parsers of every installed command (`horsies.cli.parsers`), and what the reference says of them."""

import argparse
import contextlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from unittest import mock

from horsies import cli


def command_names() -> list[str]:
    """The commands in the order of `horsies --help`."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        cli.main(["--help"])
    listed = re.findall(r"^  ([a-z][\w-]*) ", shown.getvalue().split("commands:")[1].split("\n\n")[0], re.MULTILINE)
    return list(dict.fromkeys(listed))


def commands() -> dict[str, argparse.ArgumentParser]:
    """Each command by its full name, such as `horsies tasks`, in the order of `horsies --help`."""
    found = cli.parsers()
    return {f"horsies {name}": found[f"horsies {name}"] for name in command_names()}


def scripts() -> dict[str, argparse.ArgumentParser]:
    """The console scripts of the packages, other than `horsies` itself."""
    return {name: parser for name, parser in cli.parsers().items() if name.startswith("horsies-")}


@dataclass(frozen=True, slots=True)
class Verb:
    """A parser that does something, with the name to call it by."""

    name: str
    parser: argparse.ArgumentParser
    help: str


def verbs(name: str, parser: argparse.ArgumentParser) -> Iterator[Verb]:
    """The parser itself when it has no verbs, else each of them."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    if not groups:
        yield Verb(name, parser, parser.description or "")
        return
    for group in groups:
        told = {choice.dest: choice.help or "" for choice in group._choices_actions}
        for word, sub in group.choices.items():
            for verb in verbs(f"{name} {word}", sub):
                yield Verb(verb.name, verb.parser, verb.help or told.get(word, ""))


def arguments(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """What a user can write behind the name of the command, without `--help` and what is hidden."""
    return [
        action
        for action in parser._actions
        if action.help != argparse.SUPPRESS
        and not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
    ]


def groups_of(parser: argparse.ArgumentParser) -> Sequence[tuple[str | None, str | None, list[argparse.Action]]]:
    """The arguments by the groups that `--help` shows: title, description, arguments."""
    wanted = arguments(parser)
    return [
        (group.title, group.description, [one for one in wanted if one in group._group_actions])
        for group in parser._action_groups
    ]


def exclusive(parser: argparse.ArgumentParser) -> list[tuple[list[argparse.Action], bool]]:
    """The arguments of which only one may be given, and whether one has to be."""
    wanted = arguments(parser)
    return [
        ([one for one in group._group_actions if one in wanted], group.required)
        for group in parser._mutually_exclusive_groups
    ]


def is_repeatable(action: argparse.Action) -> bool:
    return isinstance(action, argparse._AppendAction)


@contextlib.contextmanager
def same_everywhere() -> Iterator[None]:
    """Defaults of options must not follow the environment of the machine that writes the page."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HORSIES_")}
    with mock.patch.dict(os.environ, kept, clear=True):
        yield
