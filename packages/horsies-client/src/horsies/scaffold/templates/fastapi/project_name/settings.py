"""Settings come from environment variables, so that no secret stands in the repository."""

import os

DATABASE_URL = os.environ.get("HORSIES_DATABASE_URL") or "embedded://?dbname=project_name"
"""In production the variable is set. Without it, this is a private PostgreSQL from a wheel, which only the extra `dev`
installs: a production image without the variable stops with an error."""


def postgres_url() -> str:
    """The URL for other libraries than horsies, which know no `embedded://`."""
    if not DATABASE_URL.startswith("embedded:"):
        return DATABASE_URL
    from horsies_schema import embedded

    return embedded.resolve(DATABASE_URL)
