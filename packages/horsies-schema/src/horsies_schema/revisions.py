"""The revisions that this package knows."""

from functools import cache

from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection


@cache
def head() -> str:
    """The newest revision that this package knows."""
    found = ScriptDirectory.from_config(alembic_config()).get_current_head()
    if found is None:
        raise RuntimeError("this installation of horsies-schema has no migrations")
    return found


@cache
def known_revisions() -> frozenset[str]:
    return frozenset(script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions())


def steps_between(current: str | None, wanted: str) -> int | None:
    """How many revisions a migration runs, up or down; None for a relative or unknown revision."""
    places = _places()
    if wanted not in places or (current or "base") not in places:
        return None
    return abs(places[wanted] - places[current or "base"])


def is_older(one: str, other: str) -> bool:
    """Whether a revision comes before another; False for a relative or unknown one."""
    places = _places()
    return one in places and other in places and places[one] < places[other]


def _places() -> dict[str, int]:
    """The number of each revision in their order, and those of `base` and `head`."""
    ordered = [script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()][::-1]
    return {"base": 0, "head": len(ordered), **{name: number for number, name in enumerate(ordered, 1)}}


def alembic_config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection} if connection is not None else {})
    config.set_main_option("script_location", "horsies_schema:migrations")
    return config
