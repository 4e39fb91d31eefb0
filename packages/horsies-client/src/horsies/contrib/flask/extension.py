"""`FlaskHorsies`: a Horsies app that gets its database from a Flask application."""

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Final, cast

from flask import Flask, current_app
from werkzeug.local import LocalProxy

from horsies._checks import shown
from horsies.app import Horsies
from horsies.config import AppConfig, PostgresConfig
from horsies.config.postgres import DATABASE_URL_VARIABLE
from horsies.context import BatchCall, TaskContext
from horsies.errors import ConfigurationError, Problem, UsageError
from horsies.middleware import Middleware

if TYPE_CHECKING:
    from horsies._pg.pool import Database

KEY: Final = "horsies"
PREFIX: Final = "HORSIES_"
FLASK_SQLALCHEMY_URL: Final = "SQLALCHEMY_DATABASE_URI"
_SETTINGS: Final = {f"{PREFIX}{item.name.upper()}": item.name for item in fields(PostgresConfig)}
"""The keys of `app.config`, each with the field of PostgresConfig that it sets."""

_NO_DATABASE_YET: Final = Problem(
    "FlaskHorsies",
    "it has no database yet: init_app(app) was not called",
    "call it in the factory; a worker needs the application too: start it with `flask --app <your app> horsies worker`",
)


_NOWHERE: Final = "postgresql://init-app-was-not-called.invalid/"


class _NotYet(PostgresConfig):
    """An AppConfig needs a database, which a factory knows later. A copy with another URL, as `testing.real` makes it,
    has one."""

    @property
    def url(self) -> str:
        self._require_database()
        return super().url

    @property
    def listen_url(self) -> str:
        self._require_database()
        return super().listen_url

    def _require_database(self) -> None:
        if self.database_url == _NOWHERE:
            raise ConfigurationError([_NO_DATABASE_YET], subject="Flask configuration")


_NOT_YET: Final = _NotYet(_NOWHERE)


class AppContext(Middleware):
    """Each attempt runs in an application context of its own: `current_app`, `g`, and what extensions clean up when
    such a context ends, such as the session of Flask-SQLAlchemy."""

    def __init__(self, queue: "FlaskHorsies") -> None:
        self._queue = queue

    @contextmanager
    def scope(self, ctx: TaskContext) -> Generator[None]:
        with self._pushed():
            yield

    @contextmanager
    def batch_scope(self, call: BatchCall) -> Generator[None]:
        with self._pushed():
            yield

    @contextmanager
    def _pushed(self) -> Generator[None]:
        app = self._queue.flask_app
        if app is None:  # a test of one task without an application
            yield
        else:
            with app.app_context():
                yield


class FlaskHorsies(Horsies):
    """A `Horsies` app, with all its methods, for application factories: tasks are defined with it at import, and
    `init_app` gives it the database later.

    `broker`: settings that do not come from `app.config`. Everything else is as in `AppConfig`: `queue_mode`,
    `middleware`, `schedule`.
    """

    def __init__(self, app: Flask | None = None, *, broker: PostgresConfig | None = None, **settings: Any) -> None:
        given = AppConfig(broker or _NOT_YET, **settings)
        super().__init__(replace(given, middleware=[AppContext(self), *given.middleware]))
        self._given = broker
        self._flask_app: Flask | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Take the settings of this application, and give it the command `flask horsies`.

        Of several applications in one process, as in tests, the last one gives the database and the context of tasks.
        """
        if not isinstance(app, Flask):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(f"init_app takes the Flask application, not {shown(app)}")
        if app.extensions.get(KEY, self) is not self:
            raise UsageError(f"{app!r} has a FlaskHorsies already: an application has one")
        broker = configured(app.config, self._given)
        if broker != self.config.broker:
            self._move_to(broker)
        self._flask_app = app
        app.extensions[KEY] = self
        from horsies.contrib.flask.commands import horsies_group

        app.cli.add_command(horsies_group())

    @property
    def flask_app(self) -> Flask | None:
        """The application in whose context tasks run: that of the last `init_app`."""
        return self._flask_app

    @property
    def database(self) -> "Database":
        if self.config.broker is _NOT_YET and self.stand_in is None:
            raise ConfigurationError([_NO_DATABASE_YET], subject="Flask configuration")
        return super().database

    def _move_to(self, broker: PostgresConfig) -> None:
        self.close()
        self.config = replace(self.config, broker=broker)
        self._database = self._broker = None
        vars(self).pop("_first_database", None)


def configured(config: Mapping[str, Any], given: PostgresConfig | None) -> PostgresConfig:
    """The database of an application: keys such as HORSIES_DATABASE_URL, else what was given to `FlaskHorsies`, else
    the environment, else that of Flask-SQLAlchemy."""
    import os

    changes = {field: config[key] for key, field in _SETTINGS.items() if config.get(key) is not None}
    known = ", ".join(sorted(_SETTINGS))
    problems = [
        Problem(f"app.config[{key!r}]", "is not a setting of horsies", f"the settings are {known}")
        for key in config
        if key.startswith(PREFIX) and key not in _SETTINGS
    ]
    if problems:
        raise ConfigurationError(problems, subject="Flask configuration")
    if given is not None:
        return replace(given, **changes)
    if "database_url" not in changes and not os.environ.get(DATABASE_URL_VARIABLE):
        url = str(config.get(FLASK_SQLALCHEMY_URL) or "")
        if not url.startswith(("postgresql", "postgres")):
            raise ConfigurationError(
                [
                    Problem(
                        f"app.config[{DATABASE_URL_VARIABLE!r}]",
                        f"is not set, nor is the environment variable of this name, nor is {FLASK_SQLALCHEMY_URL} a "
                        "PostgreSQL URL",
                        "set it to postgresql://user:password@host:5432/database before init_app",
                    )
                ],
                subject="Flask configuration",
            )
        changes["database_url"] = url
    return PostgresConfig(**changes)


def horsies_of(app: Flask) -> FlaskHorsies:
    """The extension of this application."""
    found = app.extensions.get(KEY)
    if not isinstance(found, FlaskHorsies):
        raise UsageError(f"{app!r} has no FlaskHorsies: call queue.init_app(app) in its factory")
    return found


def _current() -> FlaskHorsies:
    return horsies_of(cast("Any", current_app)._get_current_object())


current_horsies: FlaskHorsies = cast("FlaskHorsies", LocalProxy(_current))
"""The `FlaskHorsies` of the current application."""
