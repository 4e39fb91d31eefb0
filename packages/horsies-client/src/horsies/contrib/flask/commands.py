"""`flask horsies ...`: the commands of horsies for the database and the tasks of a Flask application."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import click
from flask.cli import ScriptInfo

from horsies.cli import main as run_horsies
from horsies.config.postgres import DATABASE_URL_VARIABLE
from horsies.contrib.flask.extension import FlaskHorsies, horsies_of
from horsies.contrib.flask.loaded import set_loaded
from horsies.errors import HorsiesError

LOCATOR: Final = "horsies.contrib.flask.worker:queue"
"""Leads the other processes of a worker to the same app, by FLASK_APP."""

_OF_AN_APP: Final = {
    "worker": "run tasks",
    "scheduler": "enqueue scheduled tasks when they are due",
    "check": "report problems of the app",
}
_OF_A_DATABASE: Final = {
    "doctor": "report problems of the database and its workers, with fixes",
    "tasks": "list, show, retry, cancel and purge tasks",
    "workers": "list workers; drain, resume and resize them",
    "queues": "list queues; pause, resume, and limit their groups",
    "schedules": "list, make and change schedules",
    "limits": "the limits that queues share: list, override, unset",
    "keys": "the unique keys that are taken: list, release",
    "stale": "tasks without a sign of life from their worker: list, fail, requeue",
    "quarantine": "tasks that crashed too often: list, release, purge",
    "workflows": "runs of workflows: list, show, pause, resume, cancel, retry",
}


def horsies_group() -> click.Group:
    """The command `flask horsies`."""
    group = click.Group("horsies", help="Commands of horsies for this application.")
    for name, text in (_OF_AN_APP | _OF_A_DATABASE | {"migrate": "create and upgrade the tables"}).items():
        group.add_command(_command(name, text))
    return group


def _command(name: str, text: str) -> click.Command:
    @click.pass_context
    def run(context: click.Context, arguments: tuple[str, ...]) -> None:
        with _entered(context.ensure_object(ScriptInfo)) as queue:
            code = run_horsies([name, *_completed(name, list(arguments), queue.config.broker.schema)])
        context.exit(code)

    return click.Command(
        name,
        callback=run,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        short_help=text,
        add_help_option=False,  # that of the command itself is shown
        context_settings={"ignore_unknown_options": True},
    )


@contextmanager
def _entered(info: ScriptInfo) -> Generator[FlaskHorsies]:
    """Load the application, for this process and for those that it starts. A test that runs several commands in one
    process, each of another application, finds the environment as it was."""
    app = info.load_app()
    try:
        queue = horsies_of(app)
    except HorsiesError as error:
        raise click.ClickException(str(error)) from error
    # not on the command line, where every user of the machine can read it
    wanted = {DATABASE_URL_VARIABLE: queue.config.broker.url}
    if info.app_import_path is not None:
        wanted["FLASK_APP"] = info.app_import_path
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    set_loaded(queue)
    try:
        yield queue
    finally:
        set_loaded(None)
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _completed(name: str, arguments: list[str], schema: str | None) -> list[str]:
    """The arguments with those that name the app or its database, where they are not given."""
    if name in _OF_AN_APP:
        return [*arguments, LOCATOR]
    given = {one.split("=")[0] for one in arguments}
    if name in _OF_A_DATABASE and not given & {"--app", "--database-url"}:
        return [*arguments, f"--app={LOCATOR}"]
    if name == "migrate" and schema is not None and arguments and not given & {"--schema", "--help", "-h"}:
        return [*arguments, f"--schema={schema}"]
    return arguments
