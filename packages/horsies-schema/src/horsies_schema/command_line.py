"""The parser of `horsies-migrate`, its progress line, and its end in a pipe. The client has the same for its own
commands; this package does without the client."""

import argparse
import errno
import os
import re
import sys
import textwrap
from collections.abc import Callable, Sequence
from contextlib import suppress
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
        # An abbreviation in a script would change its meaning, or fail, as soon as a release adds an option.
        options.setdefault("allow_abbrev", False)
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
    asked = word.lstrip("-")
    longer = [one for one in known if len(asked) > 2 and one.lstrip("-").startswith(asked)]  # an abbreviation
    found = longer or get_close_matches(word, known, 1)
    return f"; did you mean {found[0]!r}?" if found else ""


CLOSED: Final = 141
"""128 + SIGPIPE: the exit code that a shell shows of a program whose reader has closed the pipe."""


def until_flushed(command: Callable[[], int]) -> int:
    """Run the command and flush what it printed: Python would do that at exit, with a traceback when it fails. Another
    exit code of the command than 0 stands."""
    _open_missing()
    code = CLOSED
    try:
        code = command()
        sys.stdout.flush()
    except BrokenPipeError:
        code = code or CLOSED
        _silence()
    except SystemExit:  # argparse has printed the help or an error
        try:
            sys.stdout.flush()
        except OSError:
            _silence()
        raise
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        _silence()
        sys.stderr.write(f"horsies-migrate: the output cannot be written: {error.strerror}\n")
        code = code if code not in (0, CLOSED) else 1
    return code


def _open_missing() -> None:
    """Lead what the shell has closed (`>&-`, `2>&-`) to nowhere: Python has None for such a stream."""
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number, which is this one
            os.set_inheritable(number, True)  # or it is closed again in the programs that this one starts
    for number, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            stream = open(number, "w", errors="backslashreplace", closefd=False)  # noqa: SIM115
            setattr(sys, name, stream)


def _silence() -> None:
    """Lead stdout to nowhere: what it still holds would fail again at exit."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


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
