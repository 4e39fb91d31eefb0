"""The app of the Flask application that this process, or the one that started it, was told to load."""

import os

import click
from flask.cli import ScriptInfo

from horsies.contrib.flask.extension import FlaskHorsies, horsies_of
from horsies.errors import UsageError

_loaded: FlaskHorsies | None = None


def set_loaded(queue: FlaskHorsies | None) -> None:
    """`flask` has loaded this application already; None: its command has ended."""
    global _loaded
    _loaded = queue


def loaded() -> FlaskHorsies:
    """The app of the application that FLASK_APP names, or of wsgi.py or app.py, by the rules of Flask."""
    if _loaded is not None:
        return _loaded
    try:
        app = ScriptInfo(app_import_path=os.environ.get("FLASK_APP")).load_app()
    except click.ClickException as error:
        raise UsageError(f"the Flask application cannot be loaded by FLASK_APP: {error.message}") from error
    return horsies_of(app)
