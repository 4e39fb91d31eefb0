"""`AppRuntime`: the configuration, the task registry and the connections of an app. `Horsies` adds the public methods.

Handles, sends and workflows need this part of an app only. Nothing is opened before the first use.
"""

import atexit
import sys
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Self, TypeVar

from horsies._loading import load_verbs
from horsies.config import AppConfig, PostgresConfig
from horsies.envelopes import Envelopes
from horsies.errors import UsageError
from horsies.registry import Registry

if TYPE_CHECKING:
    from horsies._ambient import Ambient
    from horsies._pg.pool import Database
    from horsies._stand_in import StandIn
    from horsies.codec import PayloadLimits
    from horsies.operate.broker import PostgresBroker
    from horsies.schedule import TaskSchedule
    from horsies.sync import BackgroundLoop

R = TypeVar("R")


class AppRuntime:
    """The part of an app that its tasks, handles and workflows use."""

    def __init__(self, config: AppConfig | None = None) -> None:
        if config is None:
            config = AppConfig(PostgresConfig())
        if not isinstance(config, AppConfig):  # pyright: ignore[reportUnnecessaryIsInstance]
            told = f"Horsies takes an AppConfig, not a {type(config).__name__}"
            raise UsageError(f"{told}: write Horsies(AppConfig(PostgresConfig(url)))")
        self.config = config
        self.registry = Registry()
        self.envelopes = Envelopes(config.payload_codec)
        """Encodes and decodes what is stored; for the other horsies packages."""
        self._database: Database | None = None
        self._broker: PostgresBroker | None = None
        self._limits: PayloadLimits | None = None
        self._background: BackgroundLoop | None = None
        self.stand_in: StandIn | None = None
        """Takes the place of the database inside `horsies.testing.recorded` and `inline`."""
        self.ambient: Ambient | None = None
        """Finds the transaction that sends without `connection=` join; set by `horsies.contrib.django`."""

    def get_broker(self) -> "PostgresBroker":
        """Monitoring and manual recovery."""
        if self.stand_in is not None:
            raise self.stand_in.refusal("the broker, and what handles ask it for,")
        if self._broker is None:
            from horsies.operate.broker import PostgresBroker

            self._broker = PostgresBroker(self.database, self.config, self.encode_schedule)
        return self._broker

    def encode_schedule(self, schedule: "TaskSchedule") -> str:
        """The arguments of a schedule as JSON; `Horsies` checks them against its tasks."""
        from horsies.stored_schedule import plain_kwargs

        return plain_kwargs(schedule)

    @property
    def database(self) -> "Database":
        """The connections; for the other horsies packages."""
        database = self._database
        if database is None:
            from horsies._pg.pool import Database

            # setdefault is atomic: a second Database, made by another thread at the same time, would never be closed
            database = vars(self).setdefault("_first_database", Database(self.config.broker, self.config.resilience))
            self._database = database
        return database

    def redirect(self, config: AppConfig, database: "Database | None" = None) -> Callable[[], None]:
        """Use another configuration, and its connections, until the returned function is called; for
        `horsies.testing`, and for frameworks whose test runs have a database of their own."""
        kept = {name: vars(self).get(name) for name in ("config", "_database", "_broker", "_first_database")}

        def use(values: dict[str, Any]) -> None:
            vars(self).update(values)
            if values["_first_database"] is None:
                del vars(self)["_first_database"]

        use({**dict.fromkeys(kept), "config": config, "_database": database})
        return lambda: use(kept)

    @property
    def schema(self) -> str | None:
        return self.config.broker.schema

    @property
    def payload_limits(self) -> "PayloadLimits":
        if self._limits is None:
            from horsies.codec import PayloadLimits

            self._limits = PayloadLimits(self.config.payload_warn_bytes, self.config.payload_max_bytes)
        return self._limits

    def run_sync(self, verb: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run a coroutine for a caller without an event loop; for the other horsies packages."""
        background = self._background
        if background is None:
            load_verbs(verb)
            from horsies.sync import BackgroundLoop

            # atomic, as in `database`: two threads that come here at the same time get the same loop
            background = vars(self).setdefault("_first_background", BackgroundLoop(self._close_here))
            self._background = background
        return background.run(verb, work)

    def close(self) -> None:
        """Close the connections of the synchronous methods. Happens automatically at exit."""
        if self._background is not None:
            self._background.close()
        if self._database is not None:
            self._database.forget_closed_loops()

    async def aclose(self) -> None:
        """Close the connections of the running loop, and those of the synchronous methods."""
        await self._close_here()
        import asyncio

        await asyncio.to_thread(self.close)

    async def _close_here(self) -> None:
        if self._broker is not None:
            await self._broker.close_replica()
        if self._database is not None:
            await self._database.close_here()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()


def _close_at_exit() -> None:
    sync = sys.modules.get("horsies.sync")
    if sync is not None:
        sync.close_at_exit()


# Registered at import and not at the first send: atexit functions that the program registers later run earlier, and may
# still send.
atexit.register(_close_at_exit)
