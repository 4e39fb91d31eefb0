"""A private PostgreSQL server from a PyPI wheel, for development, demos and tests (extra `embedded`).

`start()` gives a server in a directory of choice or a temporary one; `resolve()` turns an `embedded://` URL into a
`postgresql://` URL and keeps the server for the life of the process. Many processes may use one directory: the first
one in starts the server, the last one out (by exit, by `stop()` or by kill -9) stops it.

Each user holds a shared lock on a file; one keeper process owns the server and sleeps in the kernel until it gets that
lock exclusively. Nothing counts references on disk, so nothing can be miscounted by a crash. Standard library only:
importing this must stay cheap and must never load SQLAlchemy or Alembic. POSIX only.
"""

from horsies_schema.embedded.errors import EmbeddedError, EmbeddedUnavailable
from horsies_schema.embedded.server import EmbeddedPostgres, start
from horsies_schema.embedded.urls import default_directory, is_embedded, resolve

__all__ = [
    "EmbeddedError",
    "EmbeddedPostgres",
    "EmbeddedUnavailable",
    "default_directory",
    "is_embedded",
    "resolve",
    "start",
]
