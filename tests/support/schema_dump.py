"""Writes `schema.sql`, the dump of head that people read. `just schema-dump` runs it; a test compares it."""

from pathlib import Path

from horsies_schema import migrate
from tests.support import catalog, postgres

HEADER = """\
-- The horsies schema at revision {head}, as `pg_dump --schema-only` (PostgreSQL 18) prints it.
-- Written by `just schema-dump` for people to read; horsies-migrate is what makes it.

"""


def main() -> None:
    postgres.prepare_run()
    try:
        with postgres.database() as database:
            text = HEADER.format(head=migrate.head()) + catalog.dump(database.url)
        Path(migrate.__file__).with_name("schema.sql").write_text(text)
    finally:
        postgres.finish_run()


if __name__ == "__main__":
    main()
