"""Writes docs/reference/schema.sql, the readable dump of the newest revision. `just schema-dump` runs it."""

from pathlib import Path

from horsies_schema import migrate
from tests.support import catalog, postgres

DUMP = Path(__file__).parents[2] / "docs/reference/schema.sql"
HEADER = """\
-- The horsies schema at revision {head}, as `pg_dump --schema-only` (PostgreSQL 18) prints it.
-- Written by `just schema-dump` for people to read; horsies-migrate is what makes it.

"""


def main() -> None:
    postgres.prepare_run()
    try:
        with postgres.database() as database:
            text = HEADER.format(head=migrate.head()) + catalog.dump(database.url)
        DUMP.write_text(text)
    finally:
        postgres.finish_run()


if __name__ == "__main__":
    main()
