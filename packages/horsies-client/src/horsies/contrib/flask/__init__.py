"""Flask: an app whose settings come from an application factory, an application context around each task, and the
commands of horsies as `flask horsies ...`. `docs/guides/flask.md` explains it.

    queue = FlaskHorsies()

    def create_app() -> Flask:
        app = Flask(__name__)
        app.config["HORSIES_DATABASE_URL"] = ...
        queue.init_app(app)
        return app

It needs `horsies-client[flask]`.
"""

try:
    import flask as _flask
except ImportError as error:
    raise ImportError("horsies.contrib.flask needs Flask: pip install 'horsies-client[flask]'") from error

from horsies.contrib.flask.extension import FlaskHorsies, current_horsies

del _flask

__all__ = ["FlaskHorsies", "current_horsies"]
