"""Resolves an `embedded://` URL by `horsies_schema.embedded`, which is imported only then."""

import asyncio
from dataclasses import replace

from horsies.config.dsn import is_embedded
from horsies.config.postgres import PostgresConfig
from horsies.errors import ConfigurationError, Problem


def resolve(config: PostgresConfig) -> PostgresConfig:
    """The configuration with the server's real URL. Starts the server if it is not running, and blocks meanwhile."""
    if not is_embedded(config.url):
        return config
    try:
        from horsies_schema import embedded
    except ImportError:
        raise ConfigurationError(
            [
                Problem(
                    "database_url",
                    "an embedded:// URL needs the package horsies-schema with its embedded PostgreSQL",
                    "pip install 'horsies-schema[embedded]'",
                )
            ]
        ) from None
    return replace(config, database_url=embedded.resolve(config.url))


async def resolve_async(config: PostgresConfig) -> PostgresConfig:
    """See `resolve`; a thread waits for the server."""
    return await asyncio.to_thread(resolve, config) if is_embedded(config.url) else config
