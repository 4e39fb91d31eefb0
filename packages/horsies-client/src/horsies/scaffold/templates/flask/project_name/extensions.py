"""What the application uses, before there is one: `create_app` gives both of them the database."""

from flask_sqlalchemy import SQLAlchemy
from horsies.contrib.flask import FlaskHorsies
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    pass


db = SQLAlchemy(model_class=Base)
app = FlaskHorsies(exception_mapper={OSError: "MAIL_SERVER_DOWN"})
