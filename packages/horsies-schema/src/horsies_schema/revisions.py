"""The revisions that this package knows."""

from functools import cache

from alembic.config import Config
from alembic.script import ScriptDirectory
from alembic.util import CommandError
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
    ordered = [script.revision for script in ScriptDirectory.from_config(alembic_config()).walk_revisions()][::-1]
    places = {"base": 0, "head": len(ordered), **{name: number for number, name in enumerate(ordered, 1)}}
    if wanted not in places or (current or "base") not in places:
        return None
    return abs(places[wanted] - places[current or "base"])


def is_older(one: str, other: str) -> bool:
    """Whether a revision comes before another; False for a relative or unknown one."""
    scripts = ScriptDirectory.from_config(alembic_config())
    ordered = [script.revision for script in scripts.walk_revisions()][::-1]

    def place(name: str) -> int | None:
        if name == "base":
            return -1
        try:
            return ordered.index(scripts.get_revision(name).revision)
        except CommandError:
            return None

    first, second = place(one), place(other)
    return first is not None and second is not None and first < second


def alembic_config(connection: Connection | None = None) -> Config:
    config = Config(attributes={"connection": connection} if connection is not None else {})
    config.set_main_option("script_location", "horsies_schema:migrations")
    return config
