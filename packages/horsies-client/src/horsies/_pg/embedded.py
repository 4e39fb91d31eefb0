"""The door to `horsies_schema.embedded`, opened only for an `embedded://` URL."""

import asyncio
from dataclasses import replace

from horsies._pg.dsn import is_embedded
from horsies.config.postgres import PostgresConfig
from horsies.errors import ConfigurationError, Problem


def resolve(config: PostgresConfig) -> PostgresConfig:
    """The same configuration with a real URL. Starts the server if nobody has; blocks while it does."""
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
    """The same; a thread waits for the server, where there is one to start."""
    return await asyncio.to_thread(resolve, config) if is_embedded(config.url) else config
