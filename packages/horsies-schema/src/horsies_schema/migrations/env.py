"""Alembic's entry; the environment itself is `horsies_schema.environment`."""

from horsies_schema.environment import run

run()
