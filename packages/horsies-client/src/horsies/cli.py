"""The command `horsies`: built-in commands, and those that other installed packages add by the entry-point group
`horsies.commands`. The group `horsies.parsers` has the parsers of those, for the completion of shells. Exit codes: 0
success, 1 problems found, 2 wrong usage, 130 interrupted, 141 the reader has closed the pipe."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, TextIO

from horsies import __version__
from horsies._colours import Colour, painted, uses_colours
from horsies._command_line import Parser, did_you_mean
from horsies._output import until_flushed
from horsies._redaction import redact_word
from horsies._text import one_line, printable, short

OK: Final = 0
PROBLEMS: Final = 1
USAGE: Final = 2

Command = Callable[[Sequence[str]], int | None]
BuildParser = Callable[[], argparse.ArgumentParser]

_ELSEWHERE: Final = {
    "worker": ("horsies-worker", "run tasks"),
    "scheduler": ("horsies-worker", "enqueue scheduled tasks when they are due"),
    "exporter": ("horsies-worker", "serve the figures of the whole installation to Prometheus"),
    "dev": ("horsies-worker", "worker and scheduler with reload, for development"),
    "health": ("horsies-worker", "tell by its health file whether a worker or scheduler is alive, for probes"),
    "migrate": ("horsies-schema", "create and upgrade the tables"),
    "tui": ("horsies-tui", "the dashboard"),
}
"""The commands of the other horsies packages, so that the error for a missing one can name its package."""


_EXAMPLES: Final = ("horsies init shop", "horsies doctor", "horsies tasks list --status failed")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the rest of the arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    return until_flushed(lambda: _run(arguments))


def _run(arguments: list[str]) -> int:
    added = {entry.name: entry for entry in entry_points(group="horsies.commands")}
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        _say(_help(added))
        return OK if arguments else USAGE
    name, rest = arguments[0], arguments[1:]
    if name in ("-V", "--version"):
        name = "version"
    try:
        if name in _BUILT_IN:
            return _BUILT_IN[name][0](rest) or OK
        if name in added:
            return _run_added(added[name], rest)
    except KeyboardInterrupt:
        return 130
    if name in _ELSEWHERE:
        package = _ELSEWHERE[name][0]
        return _complain(f"`horsies {name}` is part of {package}, which is not installed: pip install {package}", USAGE)
    meant = did_you_mean(name, _known(added)) if len(name) < 40 else ""
    return _complain(f"there is no command {short(name)!r}{meant or ': `horsies --help` lists them'}", USAGE)


def parsers() -> dict[str, argparse.ArgumentParser]:
    """The parsers of all installed programs and commands, by the words that reach them, such as `horsies tasks` and
    `horsies-migrate`. A command whose package does not say what its parser is has an empty one."""
    found: dict[str, argparse.ArgumentParser] = {
        f"horsies {name}": build() for name, (_, build, _) in _BUILT_IN.items()
    }
    for entry in entry_points(group="horsies.commands"):
        found.setdefault(f"horsies {entry.name}", Parser(add_help=False))
    for entry in entry_points(group="horsies.parsers"):
        try:
            build: BuildParser = entry.load()
        except (ImportError, AttributeError):
            continue  # `horsies COMMAND` says what is wrong with it
        parser = build()
        found[parser.prog] = parser
    return found


def _known(added: dict[str, EntryPoint]) -> dict[str, str]:
    """What each command does, also those that are not installed."""
    known = {name: text for name, (_, _, text) in _BUILT_IN.items()}
    for name, (package, text) in _ELSEWHERE.items():
        known[name] = text if name in added else f"{text} (not installed: pip install {package})"
    for name, entry in added.items():
        known.setdefault(name, f"from {entry.dist.name if entry.dist is not None else entry.module}")
    return known


def _run_added(entry: EntryPoint, rest: Sequence[str]) -> int:
    try:
        command: Command = entry.load()
    except (ImportError, AttributeError) as error:
        package = entry.dist.name if entry.dist is not None else entry.module
        return _complain(f"`horsies {entry.name}` cannot be loaded from {package}: {error}", PROBLEMS)
    return command(rest) or OK


# -- built-in commands ---------------------------------------------------------------------------


def _version_parser() -> Parser:
    about = "print the versions of the installed packages"
    return Parser(prog="horsies version", description=about, examples=("horsies version",))


def _version(argv: Sequence[str]) -> int:
    _version_parser().parse_args(argv)
    from importlib.metadata import PackageNotFoundError, version

    for package in ("horsies-client", *sorted({package for package, _ in _ELSEWHERE.values()})):
        try:
            _say(f"{package} {version(package)}")
        except PackageNotFoundError:
            _say(f"{package} {__version__ if package == 'horsies-client' else 'is not installed'}")
    return OK


def _check_parser() -> Parser:
    parser = Parser(
        prog="horsies check", description="import an app and report its problems",
        epilog="exit codes: 0 no problems; 1 problems found; 2 wrong usage",
        examples=("horsies check shop.tasks:app", "horsies check shop.tasks:app --live"),
    )  # fmt: skip
    parser.add_argument("app", help="module:attribute, such as shop.tasks:app")
    parser.add_argument("--live", action="store_true", help="also try the database: schema, notifications, clock")
    return parser


def _check(argv: Sequence[str]) -> int:
    options = _check_parser().parse_args(argv)
    from horsies import check
    from horsies.locate import AppImportError, LocatorError, load_app

    try:
        app = load_app(options.app)
    except LocatorError as error:
        return _complain(str(error), PROBLEMS if isinstance(error, AppImportError) else USAGE)
    for line in check.describe(app):
        _say(one_line(line))
    findings = list(check.check_app(app))
    if options.live:
        import asyncio

        findings += asyncio.run(check.check_live(app))
    for finding in sorted(findings, key=lambda finding: finding.is_problem):
        if finding.is_problem:
            print(f"{_in(Colour.RED, sys.stderr, 'horsies:')} {printable(finding.text)}", file=sys.stderr)
        else:
            _say(finding.text)
    if any(finding.is_problem for finding in findings):
        return PROBLEMS
    more = "" if options.live else "; --live tries the database as well"
    print(f"{_in(Colour.GREEN, sys.stdout, 'no problems found')}{more}")
    return OK


def _completion_parser() -> Parser:
    parser = Parser(
        prog="horsies completion",
        description="Print a script that completes the commands, verbs, options and choices of all installed horsies "
        "packages in your shell. Print it again after an upgrade.",
        examples=(
            "horsies completion bash > ~/.local/share/bash-completion/completions/horsies",
            "horsies completion zsh > ~/.zfunc/_horsies",
            "horsies completion fish > ~/.config/fish/completions/horsies.fish",
        ),
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    return parser


def _completion(argv: Sequence[str]) -> int:
    options = _completion_parser().parse_args(argv)
    from horsies.completion import script_for

    known = _known({entry.name: entry for entry in entry_points(group="horsies.commands")})
    print(script_for(options.shell, parsers(), known), end="")
    return OK


def _init_parser() -> argparse.ArgumentParser:
    from horsies.scaffold.command import build_parser

    return build_parser()


def _init(argv: Sequence[str]) -> int:
    from horsies.scaffold.command import main as init

    return init(argv)


def _of_operators(name: str, about: str) -> tuple[Command, BuildParser, str]:
    """A command with its own module, which is imported when the command runs."""

    def built() -> Any:
        return _module(name).build()

    return (lambda argv: built().run(argv)), (lambda: built().parser), about


def _module(name: str) -> Any:
    from importlib import import_module

    return import_module(f"horsies.operate.commands.{name}")


_BUILT_IN: Final[dict[str, tuple[Command, BuildParser, str]]] = {
    "init": (_init, _init_parser, "write a small project to start from"),
    "check": (_check, _check_parser, "import an app and report its problems"),
    "doctor": _of_operators("doctor", "report problems of a database and its workers, with fixes"),
    "top": _of_operators("top", "workers, queues, rates and running tasks, live in any terminal"),
    "tasks": _of_operators("tasks", "list, show, retry, cancel and purge tasks"),
    "quarantine": _of_operators("quarantine", "tasks that crashed too often: list, release, purge"),
    "stale": _of_operators("stale", "tasks without a sign of life from their worker: list, fail, requeue"),
    "workers": _of_operators("workers", "list workers with their load and liveness; drain, resume and resize them"),
    "queues": _of_operators("queues", "list queues with their waiting tasks; pause, resume, and limit their groups"),
    "limits": _of_operators("limits", "the limits that queues share: list, override, unset"),
    "keys": _of_operators("keys", "the unique keys that are taken: list, release"),
    "schedules": _of_operators(
        "schedules", "list, make and change schedules; their last runs; run one now, pause and resume"
    ),
    "workflows": _of_operators("workflows", "runs of workflows: list, show, check, pause, resume, cancel, retry"),
    "capacity": (
        lambda argv: _module("capacity").main(argv),
        lambda: _module("capacity").build_parser(),
        "what a load needs: connections, processes, WAL, disk, vacuum, CPU",
    ),
    "completion": (_completion, _completion_parser, "print the completion script of bash, zsh or fish"),
    "version": (_version, _version_parser, "print the versions of the installed packages"),
}
"""For each command: its work, its parser, and what it does."""


# -- output --------------------------------------------------------------------------------------


def _help(added: dict[str, EntryPoint]) -> str:
    lines = ["usage: horsies <command> [...]; `horsies <command> --help` says more", "", "commands:"]
    examples = ["", "examples:", *(f"  {one}" for one in _EXAMPLES)]
    return "\n".join([*lines, *(f"  {name:<10} {text}" for name, text in _known(added).items()), *examples])


def _in(colour: Colour, stream: TextIO, text: str) -> str:
    return painted(text, colour) if uses_colours(stream) else text


def _say(text: str) -> None:
    print(printable(text))


def _complain(text: str, code: int) -> int:
    print(f"horsies: {printable(redact_word(text))}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
