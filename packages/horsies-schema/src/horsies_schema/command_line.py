"""The parser of `horsies-migrate`, and its progress line. The client has the same for its own commands; this package
does without the client."""

import argparse
import os
import re
import sys
import textwrap
from collections.abc import Sequence
from difflib import get_close_matches
from types import TracebackType
from typing import Any, Final, NoReturn, Self, cast

_QUOTED: Final = re.compile(r"'([^']*)'")
CLEAR: Final = "\r\x1b[K"


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps paragraphs at the width of the terminal, and leaves indented lines, such as examples, as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        blocks: list[str] = []
        for block in text.split("\n\n"):
            plain = " ".join(line for line in block.splitlines() if not line.startswith(" "))
            raw = [line for line in block.splitlines() if line.startswith(" ")]
            blocks.append("\n".join([*textwrap.wrap(plain, width), *raw]))
        return "\n\n".join(blocks)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser with examples in its help, whose errors suggest the word that was meant."""

    def __init__(self, *args: Any, examples: Sequence[str] = (), epilog: str | None = None, **options: Any) -> None:
        self.examples = tuple(examples)
        shown = "\n".join(["examples:", *(f"  {one}" for one in self.examples)]) if self.examples else None
        options.setdefault("formatter_class", _HelpFormatter)
        super().__init__(*args, epilog="\n\n".join(filter(None, (shown, epilog))) or None, **options)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse; an unknown option is refused by the verb that it was given to, with the option that was meant."""
        found, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = self._verbs().get(getattr(found, "verb", None) or "", self)
            first = next((word for word in unknown if word.startswith("-")), "").partition("=")[0]
            names = [name for action in parser._actions for name in action.option_strings]
            parser.error(f"unrecognized arguments: {' '.join(unknown)}{_did_you_mean(first, names)}")
        return found

    def error(self, message: str) -> NoReturn:
        if "invalid choice" in message and (word := _QUOTED.search(message)) is not None:
            message += _did_you_mean(word[1], list(self._verbs()))
        super().error(message)

    def _verbs(self) -> dict[str, argparse.ArgumentParser]:
        for one in self._actions:
            if isinstance(cast("object", one.choices), dict):
                return cast("dict[str, argparse.ArgumentParser]", one.choices)
        return {}


def _did_you_mean(word: str, known: Sequence[str]) -> str:
    found = get_close_matches(word, known, 1)
    return f"; did you mean {found[0]!r}?" if found else ""


class Progress:
    """One line on stderr that is written over, and erased at the end. Nothing when stderr is not a terminal that can
    do that."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb"

    def show(self, text: str) -> None:
        if self._is_shown:
            sys.stderr.write(CLEAR + text)
            sys.stderr.flush()

    def clear(self) -> None:
        self.show("")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clear()
