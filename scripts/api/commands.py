"""Arguments and options of every command, as its parser has them."""

import argparse
from collections.abc import Iterator
from pathlib import Path

import horsies.cli


def lines() -> Iterator[str]:
    for name, parser in sorted(horsies.cli.parsers().items()):
        if name.startswith("horsies "):
            yield from _of_parser(name, parser)
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
