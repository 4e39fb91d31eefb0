"""What the application uses, without an application: that comes with `init_app`."""

from flask_sqlalchemy import SQLAlchemy

from horsies.contrib.flask import FlaskHorsies

db = SQLAlchemy()
queue = FlaskHorsies()
