"""The parser of every `horsies` command: help with examples, errors that suggest the word that was meant."""

import argparse
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, Final, NoReturn, cast

from horsies._redaction import redact_word
from horsies._text import printable, short

_LONG_WORD: Final = re.compile(r"\S{81,}")
_QUOTED: Final = re.compile(r"'([^']*)'")
_NEGATIVE: Final = re.compile(r"-\.?\d")
_LIKENESS: Final = 0.6
_USAGE_LINES: Final = 3


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean ...?` with the closest of the known words; nothing when none is close."""
    plain = {one.lstrip("-").lower(): one for one in sorted(known)}  # two dashes would make short options alike
    asked = word.lstrip("-").lower()
    longer = [name for name in plain if len(asked) > 2 and name.startswith(asked)]  # an abbreviation
    found = longer or get_close_matches(asked, plain, 1, _LIKENESS)
    return f"; did you mean {plain[found[0]]!r}?" if found else ""


def actions_of(parser: argparse.ArgumentParser) -> Sequence[argparse.Action]:
    """The options and arguments of any parser; argparse has no public way to list them."""
    return parser._actions


def _verbs_action(parser: argparse.ArgumentParser) -> argparse.Action | None:
    """The argument of a command that is one of its verbs."""
    return next((one for one in actions_of(parser) if isinstance(cast("object", one.choices), dict)), None)


def verbs_of(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parsers of a command's verbs by name; empty when it has none."""
    action = _verbs_action(parser)
    return {} if action is None else cast("Mapping[str, argparse.ArgumentParser]", action.choices)


def verb_help_of(parser: argparse.ArgumentParser) -> Mapping[str, str]:
    """What the help of a command says about each of its verbs."""
    action = _verbs_action(parser)
    listed = () if action is None else getattr(action, "_get_subactions")()  # noqa: B009
    return {one.dest: one.help or "" for one in cast("list[argparse.Action]", listed)}


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs at the width of the terminal, and leaves indented lines, such as examples, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks: list[str] = []
        for block in text.split("\n\n"):
            plain = " ".join(line for line in block.splitlines() if not line.startswith(" "))
            raw = [indent + line for line in block.splitlines() if line.startswith(" ")]
            blocks.append("\n".join([*textwrap.wrap(plain, width, initial_indent=indent), *raw]))
        return "\n\n".join(blocks)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with examples in its help. Its errors suggest the word that was meant, cut long words, and
    redact passwords of URLs, because they repeat what was given."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), epilog: str | None = None, **options: Any) -> None:
        self.examples = tuple(examples)
        self.default_verb: str | None = None
        """The verb of the command alone."""
        shown = "\n".join(["examples:", *(f"  {one}" for one in self.examples)]) if self.examples else None
        options.setdefault("formatter_class", _HelpFormatter)
        # An abbreviation in a script would change its meaning, or fail, as soon as a release adds an option.
        options.setdefault("allow_abbrev", False)
        super().__init__(*args, epilog="\n\n".join(filter(None, (shown, epilog))) or None, **options)
        # `-5s` is a value, as `-5` is: the type of its option says what is wrong with it.
        self._negative_number_matcher = _NEGATIVE

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse; an unknown option is refused by the verb that it was given to, with the option that was meant."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self._chosen(found)
            options = [name for action in actions_of(parser) for name in action.option_strings if name[:2] == "--"]
            first = next((word for word in unknown if word.startswith("-")), "").partition("=")[0]
            meant = f"; write {first} behind the verb" if first in options else did_you_mean(first, options)
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{meant}")
        return found

    def format_usage(self) -> str:
        """What stands above an error: a long list of options would hide it, and is left to the help."""
        usage = super().format_usage()
        if usage.count("\n") <= _USAGE_LINES:
            return usage
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, [one for one in actions_of(self) if not one.option_strings], [])
        return f"{formatter.format_help().rstrip()} [options]\n`{self.prog} --help` lists the options.\n"

    def error(self, message: str) -> NoReturn:
        if "did you mean" not in message and (word := _QUOTED.search(message)) is not None:
            message += did_you_mean(word[1], self._choices(message))
        super().error(printable(_LONG_WORD.sub(lambda found: short(found[0]), redact_word(message))))

    def _chosen(self, found: argparse.Namespace) -> argparse.ArgumentParser:
        """The parser of the verb that was given."""
        action = _verbs_action(self)
        verb = None if action is None else getattr(found, action.dest, None)
        return verbs_of(self).get(verb or "", self)

    def _choices(self, message: str) -> list[str]:
        """The words that the argument of an error can have."""
        named = message.removeprefix("argument ").partition(":")[0]
        return [
            str(choice)
            for action in actions_of(self)
            if action.choices is not None and named in ("/".join(action.option_strings), action.metavar, action.dest)
            for choice in action.choices
        ]
