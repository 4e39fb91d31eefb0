"""Reports on demand: `flask --app reports run`, and for its tasks `flask --app reports horsies worker`."""

import os
from typing import Any

from flask import Flask

from reports import tasks, views
from reports.extensions import db, queue

__all__ = ["create_app", "tasks"]  # a worker must know the tasks


def create_app(config: dict[str, Any] | None = None) -> Flask:
    app = Flask(__name__)
    app.config["SQLALCHEMY_DATABASE_URI"] = os.environ.get("DATABASE_URL", "postgresql+psycopg://localhost/reports")
    app.config.update(config or {})
    db.init_app(app)
    queue.init_app(app)  # in the database of SQLALCHEMY_DATABASE_URI, unless HORSIES_DATABASE_URL names another
    app.register_blueprint(views.pages)
    app.cli.add_command(views.create_tables)
    return app
