"""What the catalog says of the horsies tables, as plain data that two databases can be compared by."""

import re
import subprocess

import psycopg

from tests.support import postgres

_QUERIES = {
    "columns": """
        SELECT c.relname, a.attname, format_type(a.atttypid, a.atttypmod),
               CASE WHEN a.attnotnull THEN 'not null' END, pg_get_expr(d.adbin, d.adrelid), a.attidentity
          FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         WHERE c.relname LIKE 'horsies!_%' ESCAPE '!' AND c.relkind = 'r' AND a.attnum > 0 AND NOT a.attisdropped""",
    "constraints": """
        SELECT c.relname, k.conname, pg_get_constraintdef(k.oid)
          FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid
         WHERE c.relname LIKE 'horsies!_%' ESCAPE '!' AND k.contype <> 'n'""",
    "indexes": "SELECT tablename, indexname, indexdef FROM pg_indexes WHERE tablename LIKE 'horsies!_%' ESCAPE '!'",
    "settings": """SELECT relname, array_to_string(reloptions, ', ') FROM pg_class
         WHERE relname LIKE 'horsies!_%' ESCAPE '!' AND relkind = 'r'""",
}

Snapshot = dict[str, set[tuple[object, ...]]]


def snapshot(url: str) -> Snapshot:
    """Tables, columns, constraints, indexes and storage settings; Alembic's own table left out."""
    with psycopg.connect(url) as connection:
        return {
            kind: {row for row in connection.execute(query).fetchall() if row[0] != "horsies_alembic_version"}  # type: ignore[call-overload]
            for kind, query in _QUERIES.items()
        }


def difference(left: Snapshot, right: Snapshot) -> dict[str, set[tuple[object, ...]]]:
    """What one has and the other has not; empty when they are equal."""
    return {kind: left[kind] ^ right[kind] for kind in left if left[kind] != right[kind]}


def dump(url: str) -> str:
    """`pg_dump --schema-only`, without the lines that differ from run to run or name its version."""
    program = postgres.bin_dir() / "pg_dump"
    text = subprocess.run(
        [program, "--schema-only", "--no-owner", "--no-privileges", "--dbname", url],
        check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    kept = [
        line
        for line in text.splitlines()
        if not re.match(r"(--|SET |\\(un)?restrict|SELECT pg_catalog.set_config)", line)
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip() + "\n"
