"""`horsies-migrate`, also reachable as `horsies migrate`."""

import argparse
import logging
import os
import sys
from collections.abc import Sequence
from typing import Final, TextIO

from horsies_schema import __version__
from horsies_schema.command_line import Parser, Progress, until_flushed


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, do one thing, answer with an exit code that a script can act on."""
    return until_flushed(lambda: _run(argv))


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.verb == "up" and options.prefix is not None and not options.grants:
        parser.error("argument --prefix: it names the roles of --grants, which is not given")
    progress = Progress()
    _log_to_stderr(progress)
    from horsies_schema.errors import ExitCode, MigrationError
    from horsies_schema.migrate import apply_grants, check, current, downgrade, head, sql, upgrade
    from horsies_schema.roles import PREFIX, ROLES, grants

    def on_step(revision: str, number: int, total: int | None) -> None:
        progress.show(f"revision {revision}, {number}{f' of {total}' if total else ''}")

    try:
        match options.verb:
            case "up":
                if options.grants and options.revision != "head":
                    raise MigrationError("--grants needs the newest revision: name none", ExitCode.USAGE)
                with progress:
                    found = upgrade(_url(options), options.revision, schema=options.schema, on_step=on_step)
                print(f"at revision {found}")
                if options.grants:
                    prefix = options.prefix or PREFIX
                    apply_grants(_url(options), schema=options.schema, prefix=prefix)
                    print(f"granted to {', '.join(prefix + name for name in ROLES)}")
            case "down":
                if not options.yes:
                    raise MigrationError(
                        f"going down to {options.revision} drops tables and the data in them: "
                        "take a backup, then repeat with --yes",
                        ExitCode.USAGE,
                    )
                with progress:
                    found = downgrade(_url(options), options.revision, schema=options.schema, on_step=on_step)
                print(f"at revision {found}" if found else "nothing of horsies is left in this database")
            case "current":
                print(current(_url(options), schema=options.schema) or "none")
            case "check":
                found = check(_url(options), schema=options.schema)
                fit = (
                    "as this package needs" if found == head() else f"newer than {head()} of this package, which works"
                )
                print(f"the database is at revision {found}, {fit}")
            case "sql":
                print(sql(options.revision, since=options.since, schema=options.schema), end="")
            case _:
                print(grants(schema=options.schema, prefix=options.prefix or PREFIX), end="")
    except MigrationError as error:
        print(f"horsies-migrate: {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print(
            "horsies-migrate: interrupted; each revision is a transaction of its own, so the database is at a whole "
            "one: `horsies-migrate current` prints it, and the same command goes on from there",
            file=sys.stderr,
        )
        return ExitCode.INTERRUPTED
    return ExitCode.OK


class _AboveProgress(logging.StreamHandler[TextIO]):
    """Erases the progress line before it logs."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        self._progress.clear()
        super().emit(record)


def _log_to_stderr(progress: Progress) -> None:
    """What a migration waits for; unless the program that calls this has its own logging."""
    log = logging.getLogger("horsies.migrate")
    if not log.hasHandlers():
        handler = _AboveProgress(progress)
        handler.setFormatter(logging.Formatter("horsies-migrate: %(message)s"))
        log.addHandler(handler)


def _url(options: argparse.Namespace) -> str:
    from horsies_schema.errors import ExitCode, MigrationError

    url: str | None = options.url or os.environ.get("HORSIES_DATABASE_URL")
    if not url:
        raise MigrationError("no database: give --url or set HORSIES_DATABASE_URL", ExitCode.USAGE)
    return url


def _given(text: str) -> str:
    """Refuse an empty argument, such as an unset variable of a shell, instead of taking the default."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty")
    return text


def _role_prefix(text: str) -> str:
    from horsies_schema.roles import prefix_problem

    if (problem := prefix_problem(text)) is not None:
        raise argparse.ArgumentTypeError(problem)
    return text


_EXAMPLES: Final = {
    "up": ("horsies-migrate up", "horsies-migrate up --url postgresql://db.internal/shop --schema horsies"),
    "down": ("horsies-migrate down 0027 --yes",),
    "current": ("horsies-migrate current",),
    "check": ("horsies-migrate check --url postgresql://db.internal/shop",),
    "sql": ("horsies-migrate sql > horsies.sql", "horsies-migrate sql --since 0027"),
    "grants": ("horsies-migrate grants --schema horsies | psql postgresql://db.internal/shop",),
}


def build_command_parser() -> Parser:
    """The parser of `horsies migrate`."""
    return build_parser("horsies migrate")


def build_parser(prog: str = "horsies-migrate") -> Parser:
    parser = Parser(
        prog=prog,
        examples=(f"{prog} up", f"{prog} check"),
        description="Create, upgrade and inspect the horsies tables of a PostgreSQL database.",
        epilog="exit codes: 0 done; 1 check found the schema behind; 2 usage; 3 the database is unsuitable (too old, "
        "not UTF8, read-only, newer than this package); 4 unreachable; 5 locks not obtained; 130 interrupted",
    )
    parser.add_argument("--version", action="version", version=f"horsies-schema {__version__}")
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="up|down|current|check|sql|grants")

    def verb(
        name: str, help_text: str, *, connects: bool = True, schema: str = "by search_path"
    ) -> argparse.ArgumentParser:
        examples = [one.replace("horsies-migrate", prog) for one in _EXAMPLES[name]]
        sub = verbs.add_parser(name, help=help_text, description=help_text, examples=examples)
        sub.add_argument(
            "--schema", type=_given, help=f"the PostgreSQL schema that horsies lives in (default: {schema})"
        )
        if connects:
            sub.add_argument(
                "--url",
                type=_given,
                help="postgresql://... or embedded:///directory (default: the environment's HORSIES_DATABASE_URL)",
            )
        return sub

    up = verb("up", "upgrade the database, to the newest revision unless one is named")
    up.add_argument("revision", nargs="?", type=_given, default="head", help="default: the newest")
    up.add_argument(
        "--grants",
        action="store_true",
        help="afterwards run the SQL of `grants`, for a job that migrates with every deploy; the account of the URL "
        "must own the tables, and create the roles where they do not exist yet",
    )
    down = verb("down", "downgrade the database; drops what the later revisions made")
    down.add_argument("revision", type=_given, help="the revision to go down to; 'base' removes everything")
    down.add_argument("--yes", action="store_true", help="yes, drop the tables and their data")
    verb("current", "print the revision that the database is at")
    verb(
        "check",
        "succeed only if the database is at the revision that this package needs, or at a later fit one",
    )
    offline = verb("sql", "print the upgrade as SQL, without a connection", connects=False)
    offline.add_argument("revision", nargs="?", type=_given, default="head", help="default: the newest")
    offline.add_argument(
        "--since", type=_given, default="base", metavar="REVISION", help="the revision that the database is at"
    )
    roles = verb(
        "grants",
        "print least-privilege roles and their grants as SQL, to be run by the owner of the tables, who needs "
        "CREATEROLE where a role does not exist yet",
        connects=False,
        schema="public",
    )
    for sub in (up, roles):
        sub.add_argument(
            "--prefix",
            type=_role_prefix,
            default=None if sub is up else "horsies_",
            help=f"beginning of the roles' names{' of --grants' if sub is up else ''} (default: horsies_)",
        )
    return parser


if __name__ == "__main__":
    sys.exit(main())
