"""What may follow at each place of a command line, read from argparse parsers."""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from horsies._command_line import Parser, actions_of, verb_help_of, verbs_of
from horsies._text import one_line, short

_FILES: Final = ("FILE",)
_DIRECTORIES: Final = ("DIRECTORY", "DIR")
_HELP: Final = 100


@dataclass(frozen=True, slots=True)
class Values:
    """What an option or an argument accepts: words, or files, or directories, or something that is not known."""

    words: tuple[str, ...] = ()
    kind: str = ""
    """`files`, `directories`, or nothing."""


@dataclass(slots=True)
class Place:
    """The words behind a path such as `horsies tasks list`."""

    verbs: dict[str, str] = field(default_factory=dict[str, str])
    """What may follow as the next word of the path, with what it does."""
    options: dict[str, str] = field(default_factory=dict[str, str])
    """The options with their help."""
    values: dict[str, Values] = field(default_factory=dict[str, Values])
    """The values of the options that take one."""
    argument: Values = Values()
    """The values of the first argument that has some."""


def places_of(parsers: Mapping[str, argparse.ArgumentParser], commands: Mapping[str, str]) -> dict[str, Place]:
    """Every place by its path, sorted."""
    found: dict[str, Place] = {}
    for path, parser in parsers.items():
        program, _, command = path.partition(" ")
        if command:
            top = found.setdefault(program, Place(options={"--help": "list the commands", "--version": "versions"}))
            top.verbs[command] = _about(commands.get(command))
        _add(found, path, parser)
    return dict(sorted(found.items()))


def _add(found: dict[str, Place], path: str, parser: argparse.ArgumentParser) -> None:
    place = found[path] = Place(verbs={name: _about(text) for name, text in verb_help_of(parser).items()})
    verbs = verbs_of(parser)
    default = parser.default_verb if isinstance(parser, Parser) else None
    for one in (parser, *([verbs[default]] if default is not None else [])):
        for action in actions_of(one):
            if action.option_strings:
                _add_option(place, action)
            elif not isinstance(cast("object", action.choices), dict) and place.argument == Values():
                place.argument = _values(action)
    for name, verb in verbs.items():
        _add(found, f"{path} {name}", verb)


def _add_option(place: Place, action: argparse.Action) -> None:
    long = [name for name in action.option_strings if name.startswith("--")] or action.option_strings
    for name in long:
        place.options[name] = _about(action.help)
        if action.nargs != 0:
            place.values[name] = _values(action)


def _values(action: argparse.Action) -> Values:
    if action.choices is not None:
        return Values(tuple(str(one) for one in action.choices))
    if action.metavar in _FILES:
        return Values(kind="files")
    return Values(kind="directories" if action.metavar in _DIRECTORIES else "")


def _about(text: str | None) -> str:
    """A help text on one short line; placeholders of argparse, such as `%(default)s`, are left out."""
    kept = (text or "").partition(" (default: %")[0] if text and "%(" in text else text or ""
    return short(one_line("" if "%(" in kept else kept), _HELP)
