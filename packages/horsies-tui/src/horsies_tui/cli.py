"""`horsies tui`, also as `horsies-tui`: the dashboard in a terminal or, with --serve, in a browser."""

import argparse
import os
import sys
from collections.abc import Sequence

from horsies._command_line import Parser
from horsies._output import until_flushed
from horsies.config.postgres import DATABASE_URL_VARIABLE, REPLICA_URL_VARIABLE, PostgresConfig
from horsies.errors import HorsiesError, UsageError
from horsies_tui.data.feed import SLOW_S

DIRECT_URL_VARIABLE = "HORSIES_TUI_DIRECT_URL"
"""The variable by which `--serve` passes the URL to its dashboards; see `_serve`."""


def main() -> None:
    """Run the console script."""
    sys.exit(until_flushed(lambda: run(sys.argv[1:], prog="horsies-tui"), "horsies-tui"))


def run(argv: Sequence[str], prog: str = "horsies tui") -> int:
    """Run `horsies tui`."""
    parser = build_parser(prog)
    options = parser.parse_args(argv)
    if not 0.5 <= options.refresh <= 3_600:  # NaN is not
        parser.error("--refresh must be 0.5 to 3600 seconds")
    if options.serve is not None and not 1 <= options.serve <= 65_535:
        parser.error("--serve must be a port, 1 to 65535")
    if not all([options.host, *options.allowed_hosts]):
        parser.error("--host and --allow-host must not be empty; --host 0.0.0.0 listens on every address")
    try:
        config = None if options.demo else _config(options)
    except HorsiesError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    if options.serve is not None:
        return _serve(options, config, prog)
    if not _has_terminal():
        print(
            f"{prog}: the dashboard needs a terminal, and standard input or standard error is none; `horsies top` "
            "prints its figures anywhere, and --serve shows it in a browser",
            file=sys.stderr,
        )
        return 2
    from horsies_tui.app import Dashboard

    if config is None:
        from horsies_tui.demo import DemoSource

        source = DemoSource()
    else:
        from horsies_tui.data.postgres import PostgresSource

        source = PostgresSource(config)
    app = Dashboard(source, read_only=options.read_only, refresh_s=options.refresh, is_demo=options.demo)
    app.run()
    return app.return_code or 0


def _has_terminal() -> bool:
    """Without one, Textual would wait for keys from a file, at a third of a processor. It draws on standard error."""
    if "TEXTUAL_DRIVER" in os.environ:  # as in a browser
        return True
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def build_script_parser() -> Parser:
    """The parser of the console script."""
    return build_parser("horsies-tui")


def build_parser(prog: str = "horsies tui") -> Parser:
    examples = (prog, f"{prog} --read-only --refresh 2", f"{prog} --demo")
    parser = Parser(prog=prog, description="Worker states and stale tasks, live.", examples=examples)
    parser.add_argument("--database-url", metavar="URL", help=f"default: the environment's {DATABASE_URL_VARIABLE}")
    parser.add_argument("--direct-url", metavar="URL", help="past a transaction-mode pooler, for notifications")
    parser.add_argument("--replica-url", metavar="URL", help="read from this streaming replica; actions go to the "
                        f"primary (default: {REPLICA_URL_VARIABLE}, if {DATABASE_URL_VARIABLE} is used)")  # fmt: skip
    parser.add_argument("--schema", help="where the horsies tables are, if not in the search_path")
    parser.add_argument("--read-only", action="store_true", help="look only: no action is offered")
    parser.add_argument("--refresh", type=float, default=SLOW_S, metavar="SECONDS", help="poll (default: %(default)g)")
    parser.add_argument("--demo", action="store_true", help="made-up data; needs no database")
    serve = parser.add_argument_group(
        "in a browser", "needs horsies-tui[serve]; the address that it prints has a token"
    )
    serve.add_argument("--serve", type=int, nargs="?", const=8000, metavar="PORT", help="serve on PORT (default: 8000)")
    serve.add_argument("--host", default="localhost", help="listen on this address (default: %(default)s only)")
    serve.add_argument("--allow-host", action="append", default=[], metavar="NAME", dest="allowed_hosts",
                       help="another name that browsers reach it by, such as a proxy's; can be repeated")  # fmt: skip
    serve.add_argument("--allow-actions", action="store_true", help="serve it with actions, not read-only")
    return parser


def _config(options: argparse.Namespace) -> PostgresConfig:
    from horsies_tui.data.postgres import APPLICATION_NAME

    for option in ("database_url", "replica_url", "direct_url"):
        if getattr(options, option) == "":  # an unset variable of a script must not lead to another database
            raise UsageError(f"--{option.replace('_', '-')} is empty: give a URL, or leave the option out")
    if not (options.database_url or os.environ.get(DATABASE_URL_VARIABLE)):
        raise UsageError(
            f"no database: give --database-url, or set {DATABASE_URL_VARIABLE}; --demo shows made-up data without one"
        )
    direct_url = options.direct_url or os.environ.get(DIRECT_URL_VARIABLE) or None
    replica_url = options.replica_url or (None if options.database_url else os.environ.get(REPLICA_URL_VARIABLE))
    return PostgresConfig(
        options.database_url, direct_url=direct_url, pooler=direct_url is not None, replica_url=replica_url or None,
        schema=options.schema, pool_max_size=1, application_name=APPLICATION_NAME, connect_timeout_ms=5_000,
    )  # fmt: skip


def _serve(options: argparse.Namespace, config: PostgresConfig | None, prog: str) -> int:
    try:
        from horsies_tui.serving import is_loopback, serve
    except ImportError:
        print(f"{prog}: --serve needs another package: pip install 'horsies-tui[serve]'", file=sys.stderr)
        return 2
    arguments = ["--refresh", str(options.refresh)]
    if options.demo:
        arguments.append("--demo")
    if options.read_only or not options.allow_actions:
        arguments.append("--read-only")
    if config is not None:
        # by the environment: the list of processes would show an argument, with its password, to every user
        os.environ[DATABASE_URL_VARIABLE] = config.url
        if config.direct_url is not None:
            os.environ[DIRECT_URL_VARIABLE] = config.direct_url
        if config.replica_url is not None:
            os.environ[REPLICA_URL_VARIABLE] = config.replica_url
        if config.schema is not None:
            arguments += ["--schema", config.schema]
    if not is_loopback(options.host):
        print(
            f"{prog}: other machines can reach {options.host}, and what they send and see, token included, is not "
            "encrypted: put a proxy with TLS in front of it",
            file=sys.stderr,
        )
    try:
        serve(arguments, host=options.host, port=options.serve, allowed_hosts=options.allowed_hosts)
    except OSError as error:
        print(f"{prog}: --serve cannot listen on {options.host}, port {options.serve}: {error}", file=sys.stderr)
        return 1
    return 0
