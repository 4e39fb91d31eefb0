"""Arguments and options of every command, as its parser has them."""

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

import horsies.cli

Main = Callable[[Sequence[str]], int | None]


class _Parsed(Exception):
    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self.parser = parser


@contextmanager
def _captured() -> Iterator[None]:
    """Inside, a command ends where it would read its arguments."""

    def give(self: argparse.ArgumentParser, *_: Any, **__: Any) -> NoReturn:
        raise _Parsed(self)

    patches = [mock.patch.object(argparse.ArgumentParser, name, give) for name in ("parse_args", "parse_known_args")]
    with patches[0], patches[1]:
        yield


def parser_of(main: Main, arguments: Sequence[str] = ()) -> argparse.ArgumentParser:
    with _captured():
        try:
            main(list(arguments))
        except _Parsed as found:
            return found.parser
    raise AssertionError(f"{main} read no arguments")


def lines() -> Iterator[str]:
    added = {entry.name for entry in entry_points(group="horsies.commands")}
    for name in sorted({*horsies.cli.BUILT_IN, *added}):
        yield from _of_parser(f"horsies {name}", parser_of(horsies.cli.main, [name]))
    yield "horsies-migrate, horsies-tui: as horsies migrate, horsies tui"


def _of_parser(words: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    yield words
    # argparse has no public way to ask a parser for its arguments
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, inner in sorted(action.choices.items()):
                yield from _of_parser(f"{words} {name}", inner)
        elif action.dest != "help":
            yield f"{words} {_argument(action)}"


def _argument(action: argparse.Action) -> str:
    told = "/".join(action.option_strings) or action.dest
    if action.nargs != 0 and action.option_strings:
        told += f" {action.metavar or action.dest.upper()}"
    parts: list[str] = []
    if action.nargs not in (None, 0):
        parts.append(f"nargs={action.nargs}")
    if action.choices is not None:
        parts.append("one of " + ", ".join(str(choice) for choice in action.choices))
    if action.required and action.option_strings:
        parts.append("required")
    if isinstance(action.default, Path):
        parts.append("default: a path of the machine")
    elif action.default not in (None, False, argparse.SUPPRESS, []):
        parts.append(f"default {action.default!r}")
    if isinstance(action, argparse._AppendAction):
        parts.append("repeatable")
    return told + (f"  ({'; '.join(parts)})" if parts else "")
