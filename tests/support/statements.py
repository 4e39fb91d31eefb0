"""Every named statement of every package: found on disk, so that a new file is tested without being listed."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from horsies._pg.statements import Statement, load

PACKAGES = Path(__file__).parents[2] / "packages"


def files() -> list[tuple[str, str]]:
    """(import package, file name) of every .sql file that the loader can read."""
    found = []
    for path in sorted(PACKAGES.glob("*/src/**/sql/*.sql")):
        source = next(parent for parent in path.parents if parent.name == "src")
        package = ".".join(path.parent.parent.relative_to(source).parts)
        if path.name != "fragments.sql":  # parts of statements
            found.append((package, path.name))
    return found


def statements(schema: str | None = None) -> Iterator[tuple[str, Statement]]:
    """Every statement with a name for messages, such as `horsies._pg/tasks.sql:insert_task`."""
    for package, file in files():
        loaded: Mapping[str, Statement] = load(package, file, schema)
        for statement in loaded.values():
            yield f"{package}/{file}:{statement.name}", statement
