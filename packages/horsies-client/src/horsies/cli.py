"""The command `horsies`: built-in commands, and those that other installed packages add by the entry-point group
`horsies.commands`. Exit codes: 0 success, 1 problems found, 2 wrong usage."""

import argparse
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import Final

from horsies import __version__
from horsies._text import one_line, printable, short

OK: Final = 0
PROBLEMS: Final = 1
USAGE: Final = 2

Command = Callable[[Sequence[str]], int | None]

_ELSEWHERE: Final = {
    "worker": ("horsies-worker", "run tasks"),
    "scheduler": ("horsies-worker", "enqueue scheduled tasks when they are due"),
    "exporter": ("horsies-worker", "serve the figures of the whole installation to Prometheus"),
    "dev": ("horsies-worker", "worker and scheduler with reload, for development"),
    "migrate": ("horsies-schema", "create and upgrade the tables"),
    "tui": ("horsies-tui", "the dashboard"),
}
"""The commands of the other horsies packages, so that the error for a missing one can name its package."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command with the rest of the arguments."""
    arguments = list(sys.argv[1:] if argv is None else argv)
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
    return _complain(f"there is no command {short(name)!r}: `horsies --help` lists them", USAGE)


def _run_added(entry: EntryPoint, rest: Sequence[str]) -> int:
    try:
        command: Command = entry.load()
    except (ImportError, AttributeError) as error:
        package = entry.dist.name if entry.dist is not None else entry.module
        return _complain(f"`horsies {entry.name}` cannot be loaded from {package}: {error}", PROBLEMS)
    return command(rest) or OK


# -- built-in commands ---------------------------------------------------------------------------


def _version(argv: Sequence[str]) -> int:
    _parser("version", "print the versions of the installed packages").parse_args(argv)
    from importlib.metadata import PackageNotFoundError, version

    for package in ("horsies-client", *sorted({package for package, _ in _ELSEWHERE.values()})):
        try:
            _say(f"{package} {version(package)}")
        except PackageNotFoundError:
            _say(f"{package} {__version__ if package == 'horsies-client' else 'is not installed'}")
    return OK


def _check(argv: Sequence[str]) -> int:
    parser = _parser("check", "import an app and report its problems")
    parser.add_argument("app", help="module:attribute, such as shop.tasks:app")
    parser.add_argument("--live", action="store_true", help="also try the database: schema, notifications, clock")
    options = parser.parse_args(argv)
    from horsies import check
    from horsies.locate import LocatorError, load_app

    try:
        app = load_app(options.app)
    except LocatorError as error:
        return _complain(str(error), PROBLEMS)
    for line in check.describe(app):
        _say(one_line(line))
    findings = list(check.check_app(app))
    if options.live:
        import asyncio

        findings += asyncio.run(check.check_live(app))
    for finding in sorted(findings, key=lambda finding: finding.is_problem):
        if finding.is_problem:
            _complain(finding.text, PROBLEMS)
        else:
            _say(finding.text)
    if any(finding.is_problem for finding in findings):
        return PROBLEMS
    _say("no problems found" if options.live else "no problems found; --live tries the database as well")
    return OK


def _init(argv: Sequence[str]) -> int:
    from horsies.scaffold.command import main as init

    return init(argv)


def _command(name: str) -> Command:
    """A command with its own module, which is imported when the command runs."""

    def run(argv: Sequence[str]) -> int | None:
        from importlib import import_module

        return import_module(f"horsies.operate.commands.{name}").main(argv)

    return run


_BUILT_IN: Final[dict[str, tuple[Command, str]]] = {
    "init": (_init, "write a small project to start from"),
    "check": (_check, "import an app and report its problems"),
    "doctor": (_command("doctor"), "report problems of a database and its workers, with fixes"),
    "tasks": (_command("tasks"), "list, show, retry, cancel and purge tasks"),
    "quarantine": (_command("quarantine"), "tasks that crashed too often: list, release, purge"),
    "stale": (_command("stale"), "tasks without a sign of life from their worker: list, fail, requeue"),
    "workers": (_command("workers"), "list workers with their load and liveness; drain, resume and resize them"),
    "queues": (_command("queues"), "list queues with their waiting tasks; pause, resume, and limit their groups"),
    "limits": (_command("limits"), "the limits that queues share: list, override, unset"),
    "keys": (_command("keys"), "the unique keys that are taken: list, release"),
    "schedules": (
        _command("schedules"),
        "list, make and change schedules; their last runs; run one now, pause and resume",
    ),
    "workflows": (_command("workflows"), "runs of workflows: list, show, check, pause, resume, cancel, retry"),
    "capacity": (_command("capacity"), "what a load needs: connections, processes, WAL, disk, vacuum, CPU"),
    "version": (_version, "print the versions of the installed packages"),
}


# -- output --------------------------------------------------------------------------------------


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog=f"horsies {name}", description=description)


def _help(added: dict[str, EntryPoint]) -> str:
    lines = ["usage: horsies <command> [...]; `horsies <command> --help` says more", "", "commands:"]
    known = {name: text for name, (_, text) in _BUILT_IN.items()}
    for name, (package, text) in _ELSEWHERE.items():
        known[name] = text if name in added else f"{text} (not installed: pip install {package})"
    for name, entry in added.items():
        known.setdefault(name, f"from {entry.dist.name if entry.dist is not None else entry.module}")
    return "\n".join([*lines, *(f"  {name:<10} {text}" for name, text in known.items())])


def _say(text: str) -> None:
    print(printable(text))


def _complain(text: str, code: int) -> int:
    print(f"horsies: {printable(text)}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
