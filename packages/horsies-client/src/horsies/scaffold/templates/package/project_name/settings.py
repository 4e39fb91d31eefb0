"""Settings come from environment variables, so that no secret stands in the repository."""

import os

DATABASE_URL = os.environ.get("HORSIES_DATABASE_URL") or "embedded://?dbname=project_name"
"""In production the variable is set. Without it, this is a private PostgreSQL from a wheel, which only the extra `dev`
installs: a production image without the variable stops with an error."""
