"""What every operator's command shares: how it finds its database, runs, asks and ends.

Exit codes: 0 fine, 1 problems or nothing done, 2 wrong usage. What goes wrong is told in a sentence, without a
traceback and without a secret. The user's code is imported only when `--app` asks for it.
"""

import argparse
import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NoReturn

from horsies._text import printable
from horsies.commands._print import complain, plural
from horsies.config.postgres import DATABASE_URL_VARIABLE
from horsies.errors import HorsiesError

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.broker import PostgresBroker

OK: Final = 0
PROBLEMS: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130

APPLICATION_NAME: Final = "horsies cli"
MANY: Final = 1
"""Acting on more tasks than this, found by a filter, needs a yes."""

_EPILOG: Final = "exit codes: 0 done; 1 problems found, or nothing done; 2 wrong usage"
_UNITS: Final = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])")
_LONGEST: Final = timedelta(days=36_500)


class CommandError(HorsiesError):
    """The command cannot do what it was asked; told in its message."""

    def __init__(self, message: str, code: int = PROBLEMS) -> None:
        super().__init__(message)
        self.code = code


class Refused(CommandError):
    """Wrong usage."""

    def __init__(self, message: str) -> None:
        super().__init__(message, USAGE)


@dataclass(frozen=True, slots=True)
class Desk:
    """A command at work: the database, and the user's app when `--app` named one."""

    broker: "PostgresBroker"
    app: "Horsies"
    given_app: "Horsies | None" = None


# -- the command line ----------------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    """Repeats what it does not understand, as every parser does; a URL among it without its password."""

    def error(self, message: str) -> NoReturn:
        from horsies._pg.redaction import redact

        super().error(printable(redact(message)))


def parser(name: str, description: str) -> argparse.ArgumentParser:
    return _Parser(prog=f"horsies {name}", description=description, epilog=_EPILOG)


class Verbs:
    """The verbs of a command, such as `list` and `retry`; each has the database's options."""

    def __init__(self, to: argparse.ArgumentParser, names: str) -> None:
        self._verbs = to.add_subparsers(dest="verb", required=True, metavar=names)

    def add(self, name: str, description: str, *, json: bool = True) -> argparse.ArgumentParser:
        verb = self._verbs.add_parser(name, help=description, description=description, epilog=_EPILOG)
        add_database(verb)
        if json:
            add_json(verb)
        return verb


def add_database(to: argparse.ArgumentParser) -> None:
    """`--database-url`, `--app` and `--schema`."""
    group = to.add_argument_group("database")
    where = group.add_mutually_exclusive_group()
    where.add_argument(
        "--database-url", metavar="URL", help=f"postgresql://... (default: the environment's {DATABASE_URL_VARIABLE})"
    )
    where.add_argument("--app", metavar="MODULE:APP", help="the database of this app, with its settings")
    group.add_argument("--schema", help="the PostgreSQL schema that horsies lives in (default: by search_path)")


def add_json(to: argparse.ArgumentParser) -> None:
    to.add_argument("--json", action="store_true", help="print one JSON document")


def duration(text: str) -> timedelta:
    """For argparse: `90s`, `15m`, `2h`, `7d`, `1h30m`."""
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration: write 90s, 15m, 2h, 7d or 1h30m")
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if seconds > _LONGEST.total_seconds():
        raise argparse.ArgumentTypeError(f"{text!r} is longer than a hundred years")
    return timedelta(seconds=seconds)


def at_least_one(text: str) -> int:
    """For argparse: a whole number from 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= 10**9:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return value


# -- running -------------------------------------------------------------------------------------


def run(options: argparse.Namespace, work: Callable[[Desk], Awaitable[int]]) -> int:
    """Open the database that the options name, do the work, close; the exit code."""
    import asyncio

    try:
        app, given = _app(options)
    except HorsiesError as error:
        complain(str(error))
        return error.code if isinstance(error, CommandError) else USAGE

    async def at_work() -> int:
        async with app:
            return await work(Desk(app.get_broker(), app, given))

    try:
        return asyncio.run(at_work())
    except CommandError as error:
        complain(str(error))
        return error.code
    except HorsiesError as error:
        complain(app.config.broker.redact(str(error)))
        return PROBLEMS
    except BrokenPipeError:
        # The reader has seen enough (`| head`); without this, Python complains again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except KeyboardInterrupt:
        complain("interrupted; what was done before stays done")
        return INTERRUPTED


def _app(options: argparse.Namespace) -> "tuple[Horsies, Horsies | None]":
    """An app of the command's own on the right database, and the user's."""
    from horsies.app import Horsies
    from horsies.config import AppConfig, PostgresConfig
    from horsies.locate import load_app

    given: Horsies | None = None
    if options.app is not None:
        given = load_app(options.app)
        config = given.config
        broker = replace(config.broker, application_name=APPLICATION_NAME, pool_min_size=0, pool_max_size=2)
    else:
        url: str | None = options.database_url or os.environ.get(DATABASE_URL_VARIABLE)
        if not url:
            raise Refused(
                f"no database: give --database-url, set {DATABASE_URL_VARIABLE}, or name an app with --app module:app"
            )
        broker = PostgresConfig(url, application_name=APPLICATION_NAME, pool_max_size=2)
        config = AppConfig(broker)
    if options.schema is not None:
        broker = replace(broker, schema=options.schema)
    return Horsies(replace(config, broker=broker)), given


# -- asking --------------------------------------------------------------------------------------


def confirm(verb: str, count: int, noun: str, *, yes: bool, at_least: bool = False) -> None:
    """Ask a person before acting on many; a script has to say `--yes`. Raises when the answer is no."""
    if yes or count <= MANY:
        return
    many = ("at least " if at_least else "") + plural(count, noun)
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise Refused(f"this would {verb} {many}: repeat with --yes, or look first with --dry-run")
    sys.stdout.write(f"{verb} {many}? [y/N] ")
    sys.stdout.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandError("nothing done")
