"""The common parts of the operators' commands: options, connection, confirmation and exit codes.

Exit codes: 0 success, 1 problems or nothing done, 2 wrong usage, 130 interrupted, 141 the reader has closed the pipe.
An error is printed as a sentence, without a traceback and without a secret. The user's code is imported only with
`--app`.
"""

import argparse
import os
import re
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final

from horsies._command_line import Parser
from horsies._output import CLOSED, silence
from horsies._text import short
from horsies.config.postgres import DATABASE_URL_VARIABLE, REPLICA_URL_VARIABLE
from horsies.errors import HorsiesError
from horsies.ids import is_storable_id
from horsies.operate.commands._examples import EXAMPLES
from horsies.operate.commands._print import complain, plural, say, say_json
from horsies.operate.commands._progress import Progress

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.operate.broker import PostgresBroker

OK: Final = 0
PROBLEMS: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

APPLICATION_NAME: Final = "horsies cli"
MANY: Final = 1
"""A filter that finds more tasks than this needs a confirmation."""

_EPILOG: Final = "exit codes: 0 done; 1 problems found, or nothing done; 2 wrong usage"
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
_LONGEST: Final = timedelta(days=36_500)


class CommandError(HorsiesError):
    """The command failed; its message is printed."""

    def __init__(self, message: str, code: int = PROBLEMS) -> None:
        super().__init__(message)
        self.code = code


class Refused(CommandError):
    """Wrong usage."""

    def __init__(self, message: str) -> None:
        super().__init__(message, USAGE)


@dataclass(frozen=True, slots=True)
class Desk:
    """A running command: its options, its database, and the user's app when `--app` names one."""

    options: argparse.Namespace
    broker: "PostgresBroker"
    given_app: "Horsies | None"
    begun: list[Progress] = field(default_factory=list[Progress])
    """The work on many rows that was begun: what was done of it is told also when stdout is closed."""

    def progress(self, past: str, noun: str, total: int, *, is_bounded: bool = False) -> Progress:
        """The progress of work on many rows, for `with`. When Ctrl-C has stopped it, the command ends with 130."""
        one = Progress(past, noun, total, is_bounded=is_bounded, is_quiet=self.options.json)
        self.begun.append(one)
        return one

    @property
    def reader(self) -> "PostgresBroker":
        """For verbs that list and count: the replica, when one is given. Verbs that name one thing ask the primary: a
        lagging replica would say that there is no such task."""
        return self.broker.for_reading()

    def decodes(self) -> bool:
        """Whether to decode what the app's payload codec has encoded. Raises when there is no codec to do it with."""
        if not self.options.decode:
            return False
        if self.given_app is None:
            raise Refused("--decode needs the app that has the payload codec: give --app module:app")
        if self.given_app.config.payload_codec is None:
            raise Refused(f"--decode: {self.options.app} has no payload_codec in its AppConfig")
        return True

    def has_said(self, document: Mapping[str, object], found: object, empty: str) -> bool:
        """Print the document with `--json`, or `empty` when nothing was found; False when there is more to print."""
        if self.options.json:
            say_json(document)
        elif not found:
            say(empty)
        return self.options.json or not found

    def report(self, done: Iterable[str], problems: Collection[str], /, **document: object) -> int:
        """Print what was done and what was not, or the document with `--json`; returns the exit code."""
        if self.options.json:
            say_json({"verb": self.options.verb, **document})
        else:
            for text in done:
                say(text)
            for text in problems:
                complain(text)
        return PROBLEMS if problems else OK


Work = Callable[[Desk], Awaitable[int]]


# -- the command line ----------------------------------------------------------------------------


class Command:
    """A command such as `horsies tasks`. It does its work itself, or has verbs such as `list` and `retry`."""

    def __init__(
        self, name: str, description: str, work: Work | None = None, *, default: str | None = None,
        epilog: str = _EPILOG,
    ) -> None:  # fmt: skip
        """`default` is the verb of the command alone."""
        self._name = name
        examples = EXAMPLES.get(name, ())
        self.parser = Parser(prog=f"horsies {name}", description=description, epilog=epilog, examples=examples)
        self.parser.default_verb = default
        if work is None:
            self._verbs = self.parser.add_subparsers(dest="verb", required=True)
        else:
            _add_common(self.parser, work)

    def add(self, name: str, description: str, work: Work, *, app: str | None = None) -> argparse.ArgumentParser:
        """Add a verb; the caller adds its own arguments. `app`: an argument in place of `--app`."""
        examples = EXAMPLES.get(f"{self._name} {name}", ())
        verb = self._verbs.add_parser(
            name, help=description, description=description, epilog=_EPILOG, examples=examples
        )
        self._verbs.metavar = "|".join(self._verbs.choices)
        _add_common(verb, work, app)
        return verb

    def run(self, argv: Sequence[str]) -> int:
        """Parse the arguments and do the work."""
        arguments = list(argv)
        default = self.parser.default_verb
        if default is not None and (not arguments or re.match("-(?!h$|-help$)", arguments[0])):
            arguments.insert(0, default)
        return _run(self.parser.parse_args(arguments))


def _add_common(to: argparse.ArgumentParser, work: Work, app: str | None = None) -> None:
    """Add the options of the database, and `--json`."""
    to.set_defaults(work=work)
    add_database_options(to, app)
    to.add_argument("--json", action="store_true", help="print one JSON document")


def add_database_options(to: argparse.ArgumentParser, app: str | None = None) -> None:
    """Add `--database-url`, `--app` and `--schema`, for `chosen_app`. `app`: an argument in place of `--app`."""
    group = to.add_argument_group("database")
    where = group.add_mutually_exclusive_group()
    default = f"the environment's {DATABASE_URL_VARIABLE}" if app is None else f"that of {app}"
    where.add_argument("--database-url", metavar="URL", help=f"postgresql://... (default: {default})")
    if app is None:
        where.add_argument("--app", metavar="MODULE:APP", help="the database of this app, with its settings")
    else:
        to.add_argument("app", metavar=app, help="module:attribute, such as shop.tasks:app")
    group.add_argument(
        "--replica-url", metavar="URL",
        help="list and count from this streaming replica; `show` and actions ask the primary (default: the app's, or "
        f"the environment's {REPLICA_URL_VARIABLE} where the database is that of {DATABASE_URL_VARIABLE})",
    )  # fmt: skip
    group.add_argument("--schema", help="the PostgreSQL schema that horsies lives in (default: by search_path)")


def add_confirmation(to: argparse.ArgumentParser, them: str) -> None:
    to.add_argument("--dry-run", action="store_true", help="only say what would be done")
    to.add_argument("--yes", action="store_true", help=f"do not ask, however many {them}")


def add_decode(to: argparse.ArgumentParser) -> None:
    """Add `--decode`, for `Desk.decodes`."""
    to.add_argument(
        "--decode", action="store_true", help="decode what the app's payload codec has encoded (with --app)"
    )


def duration(text: str) -> timedelta:
    """Parse `90s`, `15m`, `2h`, `7d` or `1h30m`, for argparse."""
    if re.match(r"-\.?[0-9]", text):
        raise argparse.ArgumentTypeError(f"{short(text)!r} is negative: a duration is zero or longer")
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{short(text)!r} is not a duration: write 90s, 15m, 2h, 7d or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds > _LONGEST.total_seconds():
        raise argparse.ArgumentTypeError(f"{short(text)!r} is longer than a hundred years")
    return timedelta(seconds=seconds)


def at_least_one(text: str) -> int:
    """Parse a whole number from 1, for argparse."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= 10**9:
        raise argparse.ArgumentTypeError(f"{short(text)!r} is not a whole number from 1 to 1,000,000,000")
    return value


def row_id(text: str) -> str:
    """Parse an id that a task or a workflow can have, for argparse."""
    if not text or not is_storable_id(text):
        raise argparse.ArgumentTypeError(f"{short(text)!r} cannot be the id of a task or a workflow")
    return text


# -- running -------------------------------------------------------------------------------------


def _run(options: argparse.Namespace) -> int:
    """Open the database that the options name, do the work and close it; returns the exit code."""
    import asyncio

    try:
        app, given = chosen_app(options)
    except HorsiesError as error:
        complain(str(error))
        return error.code if isinstance(error, CommandError) else USAGE

    begun: list[Progress] = []

    async def at_work() -> int:
        async with app:
            code = await options.work(Desk(options, app.get_broker(), given, begun))
            state = app.get_broker().for_reading().replica_state
            if state is not None and state.is_worth_telling:
                complain(state.told)
            return code

    try:
        code = asyncio.run(at_work())
        sys.stdout.flush()
    except CommandError as error:
        complain(str(error))
        return error.code
    except HorsiesError as error:
        complain(app.config.broker.redact(str(error)))
        return PROBLEMS
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`); Ctrl-C ends all programs of a pipe, also the reader.
        silence(sys.stdout)
        for one in begun:
            if not one.is_stopped:
                complain(one.told())
        code = CLOSED
    except KeyboardInterrupt:
        complain("interrupted; what was done before stays done")
        return INTERRUPTED
    stopped = [one for one in begun if one.is_stopped]
    for one in stopped:
        complain(one.interrupted())
    return INTERRUPTED if stopped else code


def chosen_app(
    options: argparse.Namespace, application_name: str = APPLICATION_NAME
) -> "tuple[Horsies, Horsies | None]":
    """An app of the command's own on the database that the options name, and the user's app. Also for the commands of
    the other packages. Raises HorsiesError."""
    from horsies.app import Horsies
    from horsies.config import AppConfig, PostgresConfig
    from horsies.locate import load_app

    for option in ("database_url", "replica_url"):
        if getattr(options, option) == "":  # an unset variable of a script must not lead to another database
            raise Refused(f"--{option.replace('_', '-')} is empty: give a URL, or leave the option out")
    given: Horsies | None = None
    if options.app is not None:
        given = load_app(options.app)
    if given is not None and not options.database_url:
        config = given.config
        broker = replace(config.broker, application_name=application_name, pool_min_size=0, pool_max_size=2)
    else:
        url: str | None = options.database_url or os.environ.get(DATABASE_URL_VARIABLE)
        if not url:
            raise Refused(
                f"no database: give --database-url, set {DATABASE_URL_VARIABLE}, or name an app with --app module:app"
            )
        replica = None if options.database_url else os.environ.get(REPLICA_URL_VARIABLE)
        broker = PostgresConfig(
            url, application_name=application_name, pool_max_size=2, replica_url=options.replica_url or replica or None
        )
        config = AppConfig(broker)
    if options.replica_url and broker.replica_url != options.replica_url:
        broker = replace(broker, replica_url=options.replica_url)
    if options.schema is not None:
        broker = replace(broker, schema=options.schema)
    return Horsies(replace(config, broker=broker)), given


# -- confirming ----------------------------------------------------------------------------------


def confirm(
    verb: str, count: int, noun: str, *, yes: bool, at_least: bool = False, look: str = "look first with --dry-run"
) -> None:
    """Ask for confirmation before acting on many; a script has to give `--yes`. Raises when the answer is no."""
    if yes or count <= MANY:
        return
    many = ("at least " if at_least else "") + plural(count, noun)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(f"this would {verb} {many}: repeat with --yes, or {look}")
    # asyncio's handler would only cancel this task, which waits in readline until the next line
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        sys.stdout.write(f"{verb} {many}? [y/N] ")
        sys.stdout.flush()
        answer = sys.stdin.readline()
    except KeyboardInterrupt:
        raise CommandError("nothing done", INTERRUPTED) from None
    finally:
        signal.signal(signal.SIGINT, before)
    if answer.strip().lower() not in ("y", "yes"):
        raise CommandError("nothing done")
